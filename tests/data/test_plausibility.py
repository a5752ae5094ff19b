"""Energies that are not what they are said to be: caught, and good ones left in peace."""

import ase.io
import numpy as np
import pytest
import torch
from ase import units
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from scipy.spatial.transform import Rotation

from molflt.data.ase import from_atoms
from molflt.data.labels import ENERGY_UNITS, FORCE_UNITS, LabelSpec
from molflt.data.open import open_dataset
from molflt.data.quality.forces import ForceCheck
from molflt.data.quality.labels import doubts, free_atoms
from molflt.data.quality.screen import Screening
from molflt.data.reading import ReadOptions
from molflt.errors import InputError

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
        assert doubts(LabelSpec(), found["energy"].ravel(), compositions, name) == []


def _file(path, **info):
    frames = []
    for k in range(3):
        atoms = molecule("CH3OH")
        atoms.info.update(
            {key: value - 0.01 * k if isinstance(value, float) else value for key, value in info.items()}
        )
        frames.append(atoms)
    ase.io.write(path, frames, format="extxyz")
    return str(path)


@pytest.mark.parametrize(
    ("info", "spec", "remedy"),
    [
        ({"energy": -1.0}, {"target": "y_relaxed"}, "data.target=energy"),
        ({"y_init": -1.0}, {"target": "y_relaxed", "label": "E"}, "data.target=y_init data.label=null"),
        ({"U0": -1.0, "comment": "x", "sid": 3}, {"target": "y_relaxed"}, "data.target=energy data.label=U0"),
        ({"U0": -1.0, "Q": 2.0}, {}, "data.label=Q or data.label=U0"),
        ({"E_ads": -1.0}, {"target": "y_relaxed"}, "data.label=E_ads"),
    ],
)
def test_a_wrong_name_leads_to_the_right_one(info, spec, remedy, tmp_path):
    path = _file(tmp_path / "a.extxyz", **info)
    labels = LabelSpec(**spec)
    with pytest.raises(InputError) as error:
        Screening(open_dataset(path, ReadOptions(labels=labels)), labels, path).each(lambda *_: 0)
    assert f"Name what is there: {remedy} (evaluate: --label" in str(error.value)
    # What it says works.
    given = dict(word.removeprefix("data.").split("=") for word in remedy.split(" or ")[0].split())
    better = LabelSpec(**{**spec, **{k: None if v == "null" else v for k, v in given.items()}})
    assert len(Screening(open_dataset(path, ReadOptions(labels=better)), better, path).each(lambda *_: 0)) == 3


def test_no_number_at_all(tmp_path):
    path = _file(tmp_path / "a.extxyz", comment="x")
    with pytest.raises(InputError, match="None of it is an energy"):
        Screening(open_dataset(path, ReadOptions(labels=LabelSpec())), LabelSpec(), path).each(lambda *_: 0)
