"""Structures from and to ASE's Atoms."""

import json
from importlib.util import find_spec

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase import constraints as held_by
from ase.build import add_adsorbate, bulk, fcc111, molecule
from ase.calculators.calculator import all_properties
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from molflt.data.ase import from_atoms, to_atoms
from molflt.data.extxyz_output import write_extxyz
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.oc20.writer import write_lmdb
from molflt.data.reading import KNOWN_VALUES, ReadOptions
from molflt.data.record import to_data, to_record
from molflt.errors import InputError


def _as_oc20(atoms):
    """Tags of layers that ASE counts from the surface down: sub-surface 0, surface 1, adsorbate 2."""
    return [{0: 2, 1: 1}.get(tag, 0) for tag in atoms.get_tags().tolist()]


def slab():
    """Copper with oxygen on it, tagged as OC20 does."""
    atoms = fcc111("Cu", (2, 2, 3), vacuum=8.0)
    add_adsorbate(atoms, "O", 1.2, "fcc")
    # how the slab was built, which no file format can hold
    atoms.info.clear()
    atoms.set_tags(_as_oc20(atoms))
    return atoms


def test_nothing_is_computed():
    atoms = bulk("Cu")
    atoms.calc = EMT()
    assert "energy" not in from_atoms(atoms, "x")
    energy = atoms.get_potential_energy()
    assert float(from_atoms(atoms, "x").energy) == energy
    # an energy of other positions is not this structure's
    atoms.positions += [[0.1, 0, 0]]
    atoms.set_cell(atoms.cell * 1.1)
    assert "energy" not in from_atoms(atoms, "x")


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("with_adsorbate", [True, False])
def test_layer_numbers_are_not_taken_for_oc20_tags(layers, with_adsorbate):
    atoms = fcc111("Cu", (2, 2, layers), vacuum=8.0)
    if with_adsorbate:
        add_adsorbate(atoms, "O", 1.2, "fcc")
    if len(set(atoms.get_tags())) > 1:
        with pytest.raises(InputError, match="tags='layers'"):
            from_atoms(atoms, "slab")
    assert from_atoms(atoms, "slab", ReadOptions(tags="layers")).tags.tolist() == _as_oc20(atoms)


def test_oc20_tags_pass_and_can_be_forced():
    atoms = slab()
    assert from_atoms(atoms, "x").tags.tolist() == atoms.get_tags().tolist()
    upside_down = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    assert from_atoms(upside_down, "x", ReadOptions(tags="oc20")).tags.tolist() == upside_down.get_tags().tolist()
    # tags of a structure that is no slab say nothing about layers
    atoms = molecule("CO2")
    atoms.set_tags([0, 2, 1])
    assert from_atoms(atoms, "x").tags.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.set_tags([-1] + [0] * 12), "tags"),
        *(
            (lambda a, t=t: a.arrays.update(tags=np.array([t] * 13)), "whole numbers")
            for t in (0.5, np.nan, np.inf, "a")
        ),
        (lambda a: a.set_pbc(True) or a.set_cell([5, 5, 0]), "zero"),
        (lambda a: a.info.update(y_relaxed="low"), "'y_relaxed'"),
        (lambda a: a.info.update(sid=1.5), "'sid'"),
        (lambda a: a.info.update(energy=float("nan")), "'energy'"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 0.5, "Au": 0.5}}), "occupied"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 1.0}, "1": {"Cu": 1.0, "Au": 1.0}}), "shared by elements"),
        (lambda a: a.info.update(occupancy={"0": {"Cu": 0.9}}), "partly occupied"),
        (lambda a: a.numbers.__setitem__(0, 0), "atomic_numbers"),
        (lambda a: a.positions.__setitem__((0, 0), np.inf), "positions"),
    ],
)
def test_unusable_atoms_are_named(change, message):
    atoms = slab()
    change(atoms)
    with pytest.raises(InputError, match=rf"^slab\.traj#4.*{message}"):
        from_atoms(atoms, "slab.traj#4")


NEUTRAL = {
    "charge": {0}, "total_charge": {0}, "net_charge": {0},
    "spin": {0, 1}, "total_spin": {0}, "multiplicity": {1}, "spin_multiplicity": {1},
}  # fmt: skip


@pytest.mark.parametrize("key", [*NEUTRAL, "Charge", "MULTIPLICITY", "charges"])
def test_only_neutral_and_closed_shell_molecules(key):
    assert set(KNOWN_VALUES) == set(NEUTRAL)
    atoms = molecule("H2O")
    for value in (-2, -1, 0, 0.5, 1, 2, 3):
        atoms.info = {key: value, 7: 3}
        if value in NEUTRAL.get(key.lower(), {value}):
            from_atoms(atoms, "water")
        else:
            with pytest.raises(InputError, match=rf"water: atoms.info\['{key}'\] is {value}"):
                from_atoms(atoms, "water")


def test_an_odd_number_of_electrons_is_refused_of_molecules():
    methyl = molecule("CH3")
    for atoms in (Atoms("H"), bulk("Cu"), molecule("CH4")):
        from_atoms(atoms, "x")
    with pytest.raises(InputError, match="x: has an odd number of electrons"):
        from_atoms(Atoms(methyl.numbers, methyl.positions), "x")


def laden(seed):
    """A crystal with everything that ASE keeps with atoms, random."""
    random = np.random.default_rng(seed)
    atoms = bulk("Cu", cubic=True) * (1, 1, 3)
    n = len(atoms)
    held = [
        FixAtoms([0, 2]),
        FixAtoms([2]),
        held_by.FixCartesian([3]),
        held_by.FixScaled([4]),
        held_by.FixCartesian([5], (False,) * 3),
    ]
    jacobian = np.eye(6)[:, : int(random.integers(1, 7))]
    parameters = [f"p{k}" for k in range(jacobian.shape[1])]
    atoms.set_constraint(
        [
            *held, held_by.FixCartesian([1, 5], (True, True, False)), held_by.FixScaled([6], (False, True, False)),
            held_by.FixedPlane([7], random.normal(size=3)), held_by.FixedLine([8], random.normal(size=3)),
            held_by.FixedMode(random.normal(size=(n, 3))), held_by.FixCom(), held_by.FixSubsetCom([2, 3]),
            held_by.FixBondLength(0, 1), held_by.FixBondLengths([[2, 3], [3, 4]], tolerance=1e-5),
            held_by.FixLinearTriatomic([[0, 1, 2]]),
            held_by.FixInternals([[2.5, [0, 1]]], angles_deg=[[90.0, [0, 1, 2]]], bondcombos=[[0.0, [[0, 1, 1.0]]]]),
            *([held_by.FixSymmetry(atoms, symprec=0.02)] if find_spec("spglib") else []),
            held_by.Hookean(0, 1, 5.0, 2.0), held_by.Hookean(0, (0.0, 1.0, 2.0), 5.0, 1.5),
            held_by.Hookean(0, (0, 0, 1, -7), 5.0),
            held_by.ExternalForce(0, 1, 0.5), held_by.MirrorForce(0, 1, fmax=0.2), held_by.MirrorTorque(0, 1, 2, 3),
            held_by.FixCartesianParametricRelations([0, 1], jacobian, np.zeros(6)),
            held_by.FixScaledParametricRelations([2, 3], jacobian, np.zeros(6), parameters),
        ]
    )  # fmt: skip
    atoms.set_tags(random.permutation([0, 1, 2] * 4))
    atoms.set_initial_charges(random.permutation([0.25, -0.25] * 6))
    atoms.set_initial_magnetic_moments(random.normal(size=n))
    atoms.set_masses(random.uniform(60, 70, n))
    atoms.arrays["momenta"] = random.normal(size=(n, 3))
    own = {"density": random.normal(size=n), "site": random.integers(9, size=n).astype(np.int32)}
    own |= {
        "seen": random.random((n, 2)) < 0.5,
        "label": np.array(["aa", "b"] * 6),
        "tensor": random.random((n, 3, 3)),
    }
    atoms.arrays.update(own)
    atoms.info.update(
        {"config_type": "bulk", "run": 7, "trial": True, "weight": 0.1, "group": 3, "vector": [1.0, 2.0, 3.0]}
        | {"smiles": "F/C=C\\F", "note": 'two\nlines, "quoted"', "total_charge": 0, "y_relaxed": -0.5, "sid": 12},
        spectrum=random.normal(size=20), words=["a b", "c"], nested={"a": [1, {"b": "x\x7f\\"}], "c": [0.5, -1.0]},
    )  # fmt: skip
    shapes = {"dipole": 3, "polarization": 3, "magmoms": n, "charges": n, "energies": n, "stress": 6}
    results = {key: random.normal(size=shape) for key, shape in shapes.items()}
    results |= {"stresses": random.normal(size=(n, 6)), "forces": random.normal(size=(n, 3))}
    results |= {"dielectric_tensor": np.eye(3), "born_effective_charges": random.normal(size=(n, 3, 3))}
    assert {"energy", "free_energy", "magmom", *results} == set(all_properties)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.5, free_energy=-1.6, magmom=2.0, **results)
    return atoms


def differences(before, after):
    """Name the parts that differ, as ASE has it; the constraints that hold atoms in all directions are one."""

    def parts(atoms):
        found = {f"array '{key}'": value for key, value in atoms.arrays.items()}
        found |= {f"result '{key}'": value for key, value in atoms.calc.results.items()}
        found |= {f"info '{key}'": value for key, value in atoms.info.items() if key != "name"}
        everywhere = [c for c in atoms.constraints if np.all(getattr(c, "mask", isinstance(c, FixAtoms)))]
        found["held"] = sorted({int(i) for c in everywhere for i in c.index})
        for constraint in atoms.constraints:
            if constraint not in everywhere and np.any(getattr(constraint, "mask", True)):
                told = constraint.todict()
                arguments = {key: value for key, value in told["kwargs"].items() if key != "atoms"}
                # extxyz has one for each atom.
                single = [{**arguments, "a": [i]} for i in arguments["a"]] if "a" in arguments else [arguments]
                found.setdefault(f"constraint {type(constraint).__name__}", []).extend(single)
        return found

    a, b = parts(before), parts(after)
    return {key for key in a.keys() | b.keys() if key not in a or key not in b or not alike(a[key], b[key])}


def alike(a, b):
    """Compare two values, but for lists that became arrays and eight decimals."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    a, b = (value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in (a, b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return bool(abs(a - b) < 1e-8) if numbers else a == b


@pytest.mark.parametrize("seed", range(3))
def test_a_laden_structure_comes_back(seed, tmp_path):
    atoms = laden(seed)
    assert differences(atoms, to_atoms(from_atoms(atoms, "x"))) == set()
    record = to_record(from_atoms(atoms, "x"))
    write_lmdb(tmp_path / "a.lmdb", [record], progress=False)
    (read,) = LmdbDataset(tmp_path / "a.lmdb")
    back = to_atoms(read)
    assert differences(atoms, back) == set()
    assert [type(c).__name__ for c in back.constraints].count("FixAtoms") == 1
    assert differences(atoms, to_atoms(to_data(to_record(read), "x"))) == set()
    # Power: without any one part of what is carried along, something is missed.
    parts = json.loads(record["extra_json"])
    for part in ("arrays", "results", "constraints", "info", "info_json"):
        less = {**record, "extra_json": json.dumps({key: value for key, value in parts.items() if key != part})}
        less.pop(part, None)
        assert differences(atoms, to_atoms(to_data(less, "x"))), part
    # What extxyz has no place for is named, and no more is missed.
    with open(tmp_path / "a.extxyz", "w", encoding="utf-8") as handle:
        left = set(write_extxyz(handle, back))
    known = {"constraint FixAtoms", "constraint FixCartesian"}
    unheld = {f"constraint {type(c).__name__}" for c in atoms.constraints} - known
    assert left == {"array 'tensor'", "result 'born_effective_charges'", *unheld}
    assert differences(atoms, ase.io.read(tmp_path / "a.extxyz")) == left


def test_content_that_cannot_be_carried_is_told(tmp_path):
    class Odd(held_by.FixCom):
        def todict(self):
            return {"name": "Odd", "kwargs": {}}

    atoms = bulk("Cu", cubic=True)
    atoms.info.update({"keep": 1, "ragged": [1, [2, 3]], "odd": object(), "complex": 1j, 7: 1})
    atoms.set_array("wave", np.ones(4, dtype=complex))
    atoms.set_constraint([FixAtoms([0]), Odd()])
    left = from_atoms(atoms, "x").extra.left
    assert set(left) == {"info 'odd'", "info 'complex'", "info 7", "array 'wave'", "constraint Odd"}


def test_texts_come_back_from_extxyz(tmp_path):
    """Also those for which ASE writes another one, or one that it cannot read."""
    atoms = molecule("H2O")
    kept = [
        "C\\C", "a\nb", "F", "T F", "1,2", "1_0", "nan", "_JSON 5", "'", '"', "{", "a=b", "eA==", " x", "a\tb", "ü",
    ]  # fmt: skip
    atoms.info = {f"key {k}": text for k, text in enumerate(kept)} | {"q'": 1, "virial": np.eye(3), "one": np.ones(1)}
    for text in [(text, left) for text in kept for left in kept]:
        atoms.info[f"both{len(atoms.info)}"] = "".join(text)
    expected = dict(atoms.info)
    atoms.info |= {"empty": "", "none": None, "dipole": "high", "pbc": "odd", "a=b": 1, "stress": np.ones(6)}
    atoms.info["ragged"] = [1, [2, 3]]
    with open(tmp_path / "a.extxyz", "w", encoding="utf-8") as handle:
        assert write_extxyz(handle, atoms) == [
            f"info '{key}'" for key in ("dipole", "pbc", "a=b", "stress", "ragged")
        ]
    found = ase.io.read(tmp_path / "a.extxyz").info
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(found[key], value), key
        assert isinstance(found[key], str) == isinstance(value, str), key
