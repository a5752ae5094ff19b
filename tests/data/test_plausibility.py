"""Labels that are not what they are said to be, or a single one out of line: caught, and good sets left in peace."""

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from scipy.spatial.transform import Rotation

from molflt.data.ase import from_atoms
from molflt.data.labels import ENERGY_UNITS, FORCE_UNITS, LabelSpec
from molflt.data.open import open_dataset
from molflt.data.quality.forces import ForceCheck
from molflt.data.quality.labels import doubts, energies_out_of_line, forces_out_of_line, free_atoms
from molflt.data.quality.screen import Screening
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.files import resolve_path

HARTREE_FOCK = {2: -2.8617, 6: -37.6886, 8: -74.8094, 16: -397.5049, 18: -526.8175, 36: -2752.0550}
"""Hartree: ground states of free atoms, Clementi and Roetti 1974."""

SETS = {
    "qm7/qm7_train.extxyz.gz": ("energy", ":600"),
    "perovskites/perovskites.extxyz.gz": ("energy", ":600"),
    "fg/slice1.extxyz.gz": ("y_relaxed", ":"),
    "adsorption/atomic_adsorption_882.extxyz.gz": ("y_relaxed", ":"),
    "acac/train_300K.xyz.gz": ("energy", ":50"),
}


def test_free_atoms():
    for z, energy in HARTREE_FOCK.items():
        assert free_atoms()[z] == pytest.approx(energy * units.Hartree, rel=0.012 if z > 2 else 0.05)


def test_totals_of_all_electrons():
    compositions = np.zeros((40, 119), dtype=np.int64)
    random = np.random.default_rng(0)
    for z, most in {1: 9, 6: 6, 8: 3}.items():
        compositions[:, z] = random.integers(1, most, 40)
    n_atoms = compositions.sum(axis=1)
    totals = compositions @ free_atoms() - 4.5 * n_atoms
    assert doubts(LabelSpec(), totals, compositions, "s") == []
    for unit, factor in ENERGY_UNITS.items():
        for per, share in (("structure", 1), ("atom", n_atoms)):
            stored = totals / factor / share
            good = LabelSpec(unit=unit, per=per)
            assert doubts(good, totals, compositions, "s") == []
            if (unit, per) != ("eV", "structure"):
                with pytest.raises(InputError) as error:
                    doubts(LabelSpec(), stored, compositions, "s")
                assert (f"data.unit={unit}" in str(error.value)) == (unit != "eV")
                assert ("data.per=atom" in str(error.value)) == (per == "atom")
                assert "data.target" not in str(error.value)
    with pytest.raises(InputError, match=r"Give data\.unit=Hartree data\.target=energy \(evaluate: --unit Hartree\)"):
        doubts(LabelSpec(target="y_relaxed", label="E"), totals / units.Hartree, compositions, "s")
    # With valence electrons only, as plane waves have them, it is a doubt: it may be something else.
    (doubt,) = doubts(LabelSpec(target="y_relaxed"), -6.0 * n_atoms, compositions, "s")
    assert "data.target=energy" in doubt
    assert doubts(LabelSpec(), -6.0 * n_atoms, compositions, "s") == []


def _moving(atoms):
    """Geometries around one with EMT's energies and forces; molecules tumble, atoms of crystals cross the border."""
    found = []
    for seed in range(20):
        moved = atoms.copy()
        moved.rattle(0.05, seed=seed)
        if atoms.pbc.any():
            moved.wrap()
        else:
            moved.positions @= Rotation.random(random_state=seed).as_matrix()
        moved.calc = EMT()
        found.append(moved)
    return found


@pytest.mark.parametrize("atoms", [molecule("CH3OH"), bulk("Cu", cubic=True)], ids=["molecule", "crystal"])
def test_forces_in_a_wrong_unit_or_with_the_wrong_sign_do_not_fit_the_energies(atoms):
    frames = _moving(atoms)
    forces = [frame.get_forces() for frame in frames]
    structures = [from_atoms(frame, "s") for frame in frames]

    def doubt(spec, stored_in):
        """Of forces as they were stored; read with ``spec``."""
        check = ForceCheck(spec)
        for data, frame, of_frame in zip(structures, frames, forces, strict=True):
            data.energy = torch.tensor([frame.get_potential_energy()])
            data.forces = torch.from_numpy(of_frame / stored_in * spec.force_factor)
            check.add(0, data)
        return " ".join(check.doubts("s"))

    for unit, factor in FORCE_UNITS.items():
        assert doubt(LabelSpec(force_unit=unit), factor) == ""
        if unit != "eV/Ang":
            assert doubt(LabelSpec(), factor).endswith(f", data.force_unit={unit}")
        assert ("force_unit" in doubt(LabelSpec(force_unit="Hartree/bohr"), factor)) == (unit != "Hartree/bohr")
    assert "wrong sign" in doubt(LabelSpec(), -1.0)


def test_forces_of_structures_that_have_nothing_in_common_are_judged_by_their_size():
    check = ForceCheck(LabelSpec())
    for k, name in enumerate(["H2O", "CH4", "NH3"]):
        data = from_atoms(molecule(name), name)
        data.forces = torch.from_numpy(np.random.default_rng(k).normal(scale=23.0, size=data.positions.shape))
        check.add(0, data)
    (found,) = check.doubts("s")
    assert found.endswith("data.force_unit, such as kcal/mol/Ang")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_real_sets(name, real_data):
    """No false alarm in eV; in Hartree and kcal/mol, and as totals of all electrons, caught with the remedy."""
    target, some = SETS[name]
    frames = ase.io.read(real_data(name), some, format="extxyz")
    stored = [a.info["y_relaxed"] if "y_relaxed" in a.info else a.get_potential_energy() for a in frames]
    energies = np.array(stored)
    compositions = np.stack([np.bincount(a.numbers, minlength=119) for a in frames])
    spec = LabelSpec(target=target)
    assert doubts(spec, energies, compositions, name) == []

    def caught(values, spec):
        try:
            return " ".join(doubts(spec, values, compositions, name))
        except InputError as error:
            return str(error)

    assert "data.unit=Hartree" in caught(energies / units.Hartree, spec)
    assert "data.unit" in caught(energies * 23.06, spec)
    totals = energies if "acac" in name else compositions @ free_atoms() + energies
    assert caught(totals, LabelSpec()) == ""
    assert "data.unit=Hartree" in caught(totals / units.Hartree, LabelSpec())
    assert "Give data.target=energy" in caught(totals, LabelSpec(target="y_relaxed"))
    if "acac" in name:
        for factor, remedy in ((1.0, []), (units.Hartree / units.Bohr, ["data.force_unit=Hartree/bohr"])):
            check = ForceCheck(spec)
            for frame, energy in zip(frames, energies, strict=True):
                data = from_atoms(frame, "s")
                data.energy = torch.tensor([energy])
                data.forces = torch.from_numpy(frame.get_forces() / factor)
                check.add(0, data)
            assert [doubt.split()[-1] for doubt in check.doubts(name)] == remedy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3D_cluster_16_atoms_radius_2point5", "3D_cluster_32_atoms_radius_5"])
def test_energies_in_units_of_their_own(name, real_data):
    with np.load(real_data(f"efa/{name}.npz")) as found:
        compositions = np.stack([np.bincount(z, minlength=119) for z in found["atomic_numbers"].astype(int)])
        energies, forces = found["energy"].ravel(), found["forces"]
    assert doubts(LabelSpec(), energies, compositions, name) == []
    assert _outliers(energies, compositions)[0] == []
    assert forces_out_of_line((forces**2).mean(axis=(1, 2)) ** 0.5).places.tolist() == []


def _file(path, **info):
    frames = [molecule("CH3OH") for _ in range(3)]
    for k, atoms in enumerate(frames):
        atoms.info |= {key: value - 0.01 * k if isinstance(value, float) else value for key, value in info.items()}
    ase.io.write(path, frames, format="extxyz")
    return str(path)


def _screened(path, labels):
    return Screening(open_dataset(path, ReadOptions(labels=labels)), labels, path).each(lambda *_: 0)


@pytest.mark.parametrize(
    ("info", "spec", "remedy"),
    [
        ({"energy": -1.0}, {"target": "y_relaxed"}, "--task energy"),
        ({"y_init": -1.0}, {"target": "y_relaxed", "label": "E"}, "data.target=y_init data.label=null"),
        ({"y_init": -1.0}, {"target": "y_init", "label": "E"}, "--energy-key y_init"),
        ({"U0": -1.0, "comment": "x", "sid": 3}, {"target": "y_relaxed"}, "--task energy --energy-key U0"),
        ({"U0": -1.0, "Q": 2.0}, {}, "--energy-key Q or --energy-key U0"),
        ({"E_ads": -1.0}, {"target": "y_relaxed"}, "--energy-key E_ads"),
    ],
)
def test_a_wrong_name_leads_to_the_right_one(info, spec, remedy, tmp_path):
    path = _file(tmp_path / "a.extxyz", **info)
    with pytest.raises(InputError) as error:
        _screened(path, LabelSpec(**spec))
    assert f"Give {remedy} (evaluate: --label" in str(error.value)
    # What it says works.
    keys = remedy.split(" or ")[0].replace("--task ", "target=").replace("--energy-key ", "label=")
    given = dict(word.removeprefix("data.").split("=") for word in keys.split())
    assert len(_screened(path, LabelSpec(**spec | {k: None if v == "null" else v for k, v in given.items()}))) == 3


def test_no_number_at_all(tmp_path):
    with pytest.raises(InputError, match="None of it is an energy"):
        _screened(_file(tmp_path / "a.extxyz", comment="x"), LabelSpec())


ELEMENTS = (-13.6, -1029.5, -2042.0)
"""eV: of hydrogen, carbon and oxygen."""


def _outliers(energies, compositions, additive=True):
    kinds, places = np.unique(compositions, axis=0, return_inverse=True)
    found = energies_out_of_line(energies, places.ravel(), kinds, additive)
    return found.places.tolist(), [*found.sizes.tolist(), found.others]


def _set(n, n_compositions, seed):
    """Energies of elements and 0.2 eV per √atom, of a few compositions drawn at random."""
    random = np.random.default_rng(seed)
    kinds = np.zeros((n_compositions, 119), dtype=np.int64)
    kinds[:, (1, 6, 8)] = random.integers(1, 9, (n_compositions, 3))
    compositions = kinds[random.integers(0, n_compositions, n)]
    noise = random.normal(scale=0.2, size=n) * np.sqrt(compositions.sum(axis=1))
    return compositions[:, (1, 6, 8)] @ ELEMENTS + noise, compositions


@pytest.mark.parametrize(("n", "n_compositions"), [(20, 1), (40, 4), (60, 60), (12_000, 400)])
@pytest.mark.parametrize("error", [-80.0, 5000.0])
def test_a_wrong_energy_is_found_and_measured(n, n_compositions, error):
    for seed in range(1 if n > 1000 else 5):
        energies, compositions = _set(n, n_compositions, seed)
        assert _outliers(energies, compositions)[0] == []
        place = (7 * seed + 3) % n
        energies[place] += error
        (found,), (size, others) = _outliers(energies, compositions)
        assert found == place
        # Of three elements in sixty compositions an error of one is known to within the noise.
        assert size == pytest.approx(abs(error), abs=6)
        assert others < 6


def test_free_atoms_and_a_lone_molecule_of_another_kind_are_no_outliers():
    """Bonds are worth eV, and the spread of vibrations is small."""
    random = np.random.default_rng(0)
    one, several = ("H", "C", "O", "C2H6"), ("CH4", "CH3OH", "H2O")
    formulas = [*several * 30, *one]
    bonds = [*(-17.0, -21.0, -9.5) * 30, 0.0, 0.0, 0.0, -29.0]
    compositions = np.stack([np.bincount(Atoms(formula).numbers, minlength=119) for formula in formulas])
    energies = compositions[:, (1, 6, 8)] @ ELEMENTS + bonds + random.normal(scale=0.02, size=len(bonds))
    assert _outliers(energies, compositions)[0] == []
    energies[40] += 10
    assert _outliers(energies, compositions)[0] == [40]


def test_long_tails_and_sets_too_small_to_judge_have_no_outliers():
    energies, compositions = _set(100, 1, 0)
    energies[::10] += np.linspace(30, 300, 10)
    assert _outliers(energies, compositions)[0] == []
    energies, compositions = _set(3, 3, 0)
    assert _outliers(energies, compositions)[0] == []
    assert _outliers(energies[:1], compositions[:1], additive=False)[0] == []


def test_energies_of_adsorption_are_compared_with_each_other():
    energies = np.random.default_rng(0).normal(-1.0, 1.0, 50)
    energies[[4, 9]] = [-80.0, 500.0]
    places, sizes = _outliers(energies, _set(50, 50, 0)[1], additive=False)
    assert places == [9, 4]
    assert sizes == pytest.approx([501, 79, 2], abs=1.5)


def test_forces_out_of_line():
    sizes = np.random.default_rng(0).uniform(0.1, 2.0, 40)
    assert forces_out_of_line(sizes).places.tolist() == []
    # Relaxed structures but one are no error, and forces in another unit are large everywhere.
    assert forces_out_of_line(np.array([*[1e-3] * 20, 2.0])).places.tolist() == []
    assert forces_out_of_line(500 * sizes).places.tolist() == []
    sizes[[3, 17]] = [200.0, 3000.0]
    found = forces_out_of_line(sizes)
    assert (found.places.tolist(), found.sizes.tolist()) == ([17, 3], [3000.0, 200.0])
    assert found.others <= 2.0
    assert forces_out_of_line(np.empty(0)).places.tolist() == []


@pytest.mark.parametrize(
    "name",
    [
        "bundled:fg/val.lmdb",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in [*list(SETS)[:2], "acac/train_300K.xyz.gz", "wwl/wwl.extxyz.gz"]
        ),
    ],
)
def test_no_false_alarm_in_real_sets(name, real_data):
    """In a whole set, and in small ones drawn from it."""
    path = resolve_path(name) if name.startswith("bundled:") else real_data(name)
    found = [*open_dataset(path, ReadOptions(tags="oc20"))]
    target = "energy" if "energy" in found[0] else "y_relaxed"
    energies = np.array([float(data[target]) for data in found])
    compositions = np.stack([np.bincount(data.atomic_numbers.numpy(), minlength=119) for data in found])
    draws = (np.random.default_rng(seed).choice(len(energies), 30, replace=False) for seed in range(20))
    for some in (np.arange(len(energies)), *draws):
        assert _outliers(energies[some], compositions[some], target == "energy")[0] == []
