"""The calculator: numbers against finite differences, and what it refuses."""

import copy
import pickle
import warnings

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

from molflt.errors import InputError
from molflt.model.file import save_model
from molflt.prediction.model import Model
from molflt.simulate.ase import MolFLTCalculator
from tests.attention.structures import STRUCTURES


def slab_open():
    atoms = STRUCTURES["slab_open"]()
    atoms.set_tags([0] * 8 + [1] * 4 + [2])
    return atoms


KINDS = {"molecule": STRUCTURES["molecule"], "slab": slab_open, "triclinic": STRUCTURES["triclinic"]}
MESH = {"frequencies": "mesh", "tolerance": 1e-3}


@pytest.fixture
def calc(random_model):
    return MolFLTCalculator(random_model())


# Numbers


@pytest.mark.parametrize(
    ("kind", "attention"), [*((kind, {}) for kind in KINDS), pytest.param("triclinic", MESH, id="triclinic, mesh")]
)
def test_forces_are_central_differences(random_model, kind, attention):
    atoms = KINDS[kind]()
    atoms.calc = MolFLTCalculator(random_model(attention))
    some = [0, len(atoms) - 1]
    expected = calculate_numerical_forces(atoms, eps=1e-4, iatoms=some)
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(atoms.get_forces()[some], expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["slab", "triclinic"])
def test_stress_is_a_central_difference(random_model, kind):
    atoms = KINDS[kind]()
    atoms.calc = MolFLTCalculator(random_model())
    found = atoms.get_stress()
    assert found.shape == (6,)
    assert np.abs(found).max() > 1e-6
    expected = calculate_numerical_stress(atoms, eps=1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_energy_is_that_of_predict(random_model):
    loaded = random_model()
    model = Model([loaded], device="cpu")
    calc = MolFLTCalculator(loaded)
    for kind in KINDS:
        atoms = KINDS[kind]()
        expected = model.predict(atoms)[0]
        atoms.calc = calc
        assert atoms.get_potential_energy() == pytest.approx(expected, abs=1e-12)
        assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()


def test_single_precision_agrees_with_double(random_model):
    atoms = KINDS["triclinic"]()
    found = {}
    for dtype in ("float32", "float64", torch.float64):
        atoms.calc = MolFLTCalculator(random_model(), dtype=dtype)
        found[dtype] = (atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress())
    for single, double, again in zip(*found.values(), strict=True):
        assert np.abs(single - double).max() < 1e-5
        assert np.abs(single - double).max() > 0
        np.testing.assert_array_equal(double, again)


def test_an_ensemble(random_model, tmp_path):
    members = [random_model(seed=seed) for seed in range(3)]
    paths = []
    for k, member in enumerate(members):
        paths.append(tmp_path / f"{k}.safetensors")
        save_model(paths[-1], member.model, member.metadata)
    atoms = KINDS["triclinic"]()
    energies, forces, stresses = [], [], []
    for path in paths:
        atoms.calc = MolFLTCalculator(path)
        assert atoms.calc.uncertainty_eV is None
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces())
        assert atoms.calc.forces_std is None
        stresses.append(atoms.get_stress())
    calc = atoms.calc = MolFLTCalculator(paths)
    assert atoms.get_potential_energy() == pytest.approx(np.mean(energies), abs=1e-12)
    assert calc.uncertainty_eV == pytest.approx(np.std(energies, ddof=1))
    assert calc.forces_std is None
    np.testing.assert_allclose(atoms.get_forces(), np.mean(forces, axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(calc.forces_std, np.std(forces, axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(atoms.get_stress(), np.mean(stresses, axis=0), rtol=0, atol=1e-12)
    assert calc.uncertainty_eV == pytest.approx(np.std(energies, ddof=1))


# What is computed, and when


def test_only_what_is_asked_for_is_computed(calc):
    atoms = KINDS["triclinic"]()
    atoms.calc = calc
    atoms.get_potential_energy()
    assert set(calc.results) == {"energy", "free_energy"}
    atoms.get_forces()
    assert set(calc.results) == {"energy", "free_energy", "forces"}
    atoms.get_stress()
    assert set(calc.results) == {"energy", "free_energy", "forces", "stress"}
    # From now on the stress comes with the forces, of which it is a by-product, and never with an energy alone.
    for ask, with_stress in ((atoms.get_potential_energy, False), (atoms.get_forces, True)):
        atoms.rattle(0.01)
        ask()
        assert ("stress" in calc.results) is with_stress
    alone = MolFLTCalculator(calc.model).get_stress(atoms)
    np.testing.assert_array_equal(atoms.get_stress(), alone)
    calc.get_forces(KINDS["molecule"]())
    assert "stress" not in calc.results


def test_results_are_kept_until_something_changes(calc, monkeypatch):
    calls = []
    own = MolFLTCalculator.calculate
    monkeypatch.setattr(MolFLTCalculator, "calculate", lambda *args: (calls.append(1), own(*args)))
    atoms = slab_open()
    atoms.calc = calc
    atoms.get_forces()
    atoms.get_potential_energy()
    assert len(calls) == 1
    energy = atoms.get_potential_energy()
    changes = [
        lambda a: a.rattle(0.01, seed=2),
        lambda a: a.set_cell(a.cell * 1.01),
        lambda a: a.set_tags(0),
        lambda a: setattr(a, "pbc", (True, False, False)),
        lambda a: a.symbols.__setitem__(0, "Ni"),
    ]
    for n, change in enumerate(changes, start=2):
        change(atoms)
        assert atoms.get_potential_energy() != energy
        energy = atoms.get_potential_energy()
        assert len(calls) == n
    atoms.set_initial_magnetic_moments([1.0] * len(atoms))
    assert atoms.get_potential_energy() == energy
    assert len(calls) == n


def test_a_model_that_is_given_is_left_as_it_was(random_model):
    model = Model([random_model()], device="cpu")
    assert MolFLTCalculator(model).model is model
    single = MolFLTCalculator(model, dtype="float32")
    assert single.model is not model
    assert model.members[0].model.dtype == torch.float64
    loaded = random_model()
    MolFLTCalculator(loaded, dtype="float32")
    assert loaded.model.dtype == torch.float64
    assert all(p.requires_grad for p in loaded.model.parameters())


def test_copies_and_pickles(calc):
    atoms = KINDS["triclinic"]()
    atoms.calc = calc
    forces = atoms.get_forces()
    for other in (copy.deepcopy(calc), pickle.loads(pickle.dumps(calc))):
        moved = atoms.copy()
        moved.calc = other
        np.testing.assert_array_equal(moved.get_forces(), forces)
        moved.rattle(0.1)
        assert np.abs(moved.get_forces() - forces).max() > 1e-6
    np.testing.assert_array_equal(atoms.get_forces(), forces)


@pytest.mark.parametrize("name", ["x.extxyz", "x.traj", "x.json", "x.db"])
def test_files_hold_the_results(random_model, tmp_path, name):
    atoms = KINDS["triclinic"]()
    atoms.calc = MolFLTCalculator(Model([random_model(seed=0), random_model(seed=1)]))
    expected = (atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress())
    ase.io.write(tmp_path / name, atoms)
    read = ase.io.read(tmp_path / name)
    found = (read.get_potential_energy(), read.get_forces(), read.get_stress())
    for value, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, want, rtol=0, atol=1e-7)
    assert dict(atoms.calc.export_properties())["energy"] == expected[0]


# What is refused


def test_only_energies_of_the_given_geometry_have_forces(random_model):
    for target in ("energy", "y_init"):
        assert "forces" in MolFLTCalculator(random_model(target=target)).implemented_properties
    calc = MolFLTCalculator(random_model(target="y_relaxed"))
    assert calc.implemented_properties == ["energy", "free_energy"]
    atoms = KINDS["triclinic"]()
    atoms.calc = calc
    assert np.isfinite(atoms.get_potential_energy())
    for ask in (atoms.get_forces, atoms.get_stress):
        with pytest.raises(PropertyNotImplementedError, match=r"not a force.*data.target=y_init"):
            ask()


def test_no_stress_without_a_volume_and_no_energies_of_atoms(calc):
    for atoms in (KINDS["molecule"](), molecule("H2O", vacuum=3.0), fcc111("Cu", (1, 1, 2))):
        atoms = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
        atoms.calc = calc
        with pytest.raises(PropertyNotImplementedError, match="three lattice vectors"):
            atoms.get_stress()
        with pytest.raises(PropertyNotImplementedError):
            atoms.get_potential_energies()
        assert np.isfinite(atoms.get_forces()).all()


CHARGED = [("charge", 1), ("Charge", -1.0), ("total_charge", "1"), ("charge", "cation"), ("charge", float("nan"))]
OPEN_SHELLS = [("spin", 2), ("spin", 0.5), ("multiplicity", 3), ("spin_multiplicity", 2)]


def test_charges_and_spins_are_refused(calc):
    """Results at hand do not prevent it, for ``info`` is no part of ASE's state."""
    atoms = KINDS["molecule"]()
    atoms.calc = calc
    atoms.info.update(charge=0, total_charge="0", spin=1, multiplicity=1, spin_multiplicity=None)
    atoms.get_forces()
    atoms.info.clear()
    for key, value in CHARGED + OPEN_SHELLS:
        atoms.info[key] = value
        for ask in (atoms.get_potential_energy, atoms.get_forces, lambda: calc.calculate(atoms)):
            with pytest.raises(InputError, match=rf"C2H6O: atoms.info\['{key}'\] is .*--allow-charged"):
                ask()
        with pytest.raises(InputError, match=key):
            calc.model.predict(atoms)
        del atoms.info[key]
    atoms.set_initial_charges([0.4, -0.4] + [0.0] * 7)
    energy = atoms.get_potential_energy()
    atoms.set_initial_charges([1.0] + [0.0] * 8)
    with pytest.raises(InputError, match=r"net charge of \+1.*--allow-charged"):
        atoms.get_potential_energy()
    atoms.set_initial_charges(None)
    assert atoms.get_potential_energy() == energy
    atoms.set_initial_magnetic_moments([1.0, 1.0] + [0.0] * 7)
    with pytest.raises(InputError, match="open shell"):
        atoms.get_forces()
    atoms.info["charge"] = 1
    atoms.calc = MolFLTCalculator(calc.model, allow_charged=True)
    assert atoms.get_potential_energy() == energy
    assert calc.model.predict(atoms, allow_charged=True) == pytest.approx(energy, rel=1e-12)


def test_forces_of_a_model_of_minima_come_with_a_warning(random_model):
    loaded = random_model()
    loaded.metadata.validation = {}
    atoms = KINDS["molecule"]()
    atoms.calc = MolFLTCalculator(loaded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.get_potential_energy()
    with pytest.warns(UserWarning, match=r"trained without forces.*--task forces"):
        atoms.get_forces()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.rattle(0.1)
        atoms.get_forces()


def test_initial_moments_of_a_crystal_play_no_part(calc):
    nickel = bulk("Ni")
    assert nickel.get_initial_magnetic_moments().any()
    nickel.calc = calc
    plain = Atoms(nickel.numbers, nickel.positions, cell=nickel.cell, pbc=True)
    plain.calc = calc
    assert nickel.get_potential_energy() == plain.get_potential_energy()


def test_layer_tags(random_model):
    slab = fcc111("Cu", (2, 2, 3), vacuum=5.0)
    slab.calc = MolFLTCalculator(random_model())
    with pytest.raises(InputError, match="tags='layers'"):
        slab.get_potential_energy()
    slab.calc = MolFLTCalculator(random_model(), tags="layers")
    energy = slab.get_potential_energy()
    slab.set_tags([0] * 8 + [1] * 4)
    slab.calc = MolFLTCalculator(random_model())
    assert slab.get_potential_energy() == energy


def test_the_meaning_of_tags_does_not_change_while_atoms_move(calc):
    """A structure that passed is not refused in mid-run, when an adsorbate has gone below the slab."""
    atoms = Atoms("CuCuO", [[0, 0, 0], [2.5, 0, 0.1], [1, 1, 2]], cell=[9, 9, 9], pbc=True, tags=[1, 1, 2])
    atoms.calc = calc
    atoms.get_potential_energy()
    atoms.positions[2, 2] = -2.0
    assert np.isfinite(atoms.get_potential_energy())
    with pytest.raises(InputError, match="layer numbers"):
        calc.model.predict(atoms)


def test_one_warning_about_unknown_elements(calc):
    atoms = Atoms("AuCu", [[0, 0, 0], [2.5, 0, 0]])
    atoms.calc = calc
    with pytest.warns(UserWarning, match="not trained on Au"):
        atoms.get_potential_energy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.rattle(0.1)
        atoms.get_forces()
        atoms.symbols[0] = "Ni"
        atoms.get_forces()
    atoms.symbols[0] = "Pt"
    with pytest.warns(UserWarning, match="not trained on Pt") as warned:
        atoms.get_forces()
    # The line of the user, neither ASE's nor molflt's.
    assert warned[0].filename == __file__


def test_what_is_not_finite_is_refused(random_model):
    loaded = random_model()
    with torch.no_grad():
        loaded.model.energy_head.factor.fill_(float("nan"))
    atoms = KINDS["molecule"]()
    atoms.calc = MolFLTCalculator(loaded)
    for ask in (atoms.get_potential_energy, atoms.get_forces):
        with pytest.raises(InputError, match=r"C2H6O: the model's energy is not finite.*overlap"):
            ask()


def test_what_cannot_be_used(calc, random_model, tmp_path):
    atoms = Atoms("CuCu", [[0, 0, 0], [0, 0, 0]])
    atoms.calc = calc
    with pytest.raises(InputError, match="Å apart"):
        atoms.get_forces()
    with pytest.raises(InputError, match="no atoms"):
        MolFLTCalculator(random_model()).calculate()
    for dtype in ("float16", torch.bfloat16, "double precision"):
        with pytest.raises(InputError, match="float32"):
            MolFLTCalculator(random_model(), dtype=dtype)
    for nonsense in (3, [3], None):
        with pytest.raises(InputError, match="is not a path of a model"):
            MolFLTCalculator(nonsense)
    with pytest.raises(InputError, match="no such file"):
        MolFLTCalculator(tmp_path / "nothing.safetensors")
