"""Relaxation, dynamics, phonons and vibrations with a model that has learnt a little of ASE's EMT copper."""

from __future__ import annotations

import sys

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS
from ase.phonons import Phonons
from ase.vibrations import Vibrations

from molflt.model.file import save_model
from molflt.simulate.ase import MolFLTCalculator

pytestmark = pytest.mark.slow

LATTICE_CONSTANT = 3.589
"""Å, EMT's."""


@pytest.fixture
def calc(copper):
    return MolFLTCalculator(copper, dtype="float64")


@pytest.fixture
def md_drift():
    from scripts.benchmarks import md_drift

    return md_drift


def test_a_cell_relaxes_to_the_lattice_constant(calc):
    found = {}
    for name, calculator in {"EMT": EMT(), "model": calc}.items():
        atoms = bulk("Cu", a=3.7, cubic=True)
        atoms.rattle(0.05, seed=1)
        atoms.calc = calculator
        assert BFGS(FrechetCellFilter(atoms), logfile=None).run(fmax=0.005, steps=100)
        found[name] = atoms.cell.cellpar()
        # It is a minimum of the energy, too.
        energy = atoms.get_potential_energy()
        for scale in (0.99, 1.01):
            other = atoms.copy()
            other.set_cell(atoms.cell * scale, scale_atoms=True)
            other.calc = calculator
            assert other.get_potential_energy() > energy
    assert found["EMT"][:3] == pytest.approx(LATTICE_CONSTANT, abs=0.005)
    np.testing.assert_allclose(found["model"][:3], found["EMT"][:3], rtol=0, atol=0.03)
    np.testing.assert_allclose(found["model"][3:], 90, rtol=0, atol=0.2)


def crystal() -> Atoms:
    return bulk("Cu", a=LATTICE_CONSTANT, cubic=True) * (2, 2, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_energy_is_conserved(copper, md_drift, dtype, record_property):
    atoms = crystal()
    atoms.calc = MolFLTCalculator(copper, dtype=dtype)
    found = md_drift.run_dynamics(atoms, steps=500, timestep=2.0, temperature=300.0)
    record_property("drift_meV_per_atom_per_ps", found.drift)
    print(f"\n{dtype}: drift {found.drift:.2g} meV/atom/ps, fluctuation {found.fluctuation:.2g} meV/atom")
    assert is_conserved(found)
    assert 80 < found.temperature[250:].mean() < 220


def is_conserved(dynamics) -> bool:
    return abs(dynamics.drift) < 0.01 and dynamics.fluctuation < 0.03


class Broken(MolFLTCalculator):
    """Forces that are not quite the derivative of the energy."""

    def calculate(self, *args):
        super().calculate(*args)
        if "forces" in self.results:
            self.results["forces"] = 1.05 * self.results["forces"]


def test_a_broken_force_does_not_conserve_energy(copper, md_drift):
    """Power of the bounds above."""
    atoms = crystal()
    atoms.calc = Broken(copper)
    assert not is_conserved(md_drift.run_dynamics(atoms, steps=250, timestep=2.0, temperature=300.0))


def test_phonons(calc, tmp_path):
    """meV. At Γ nothing is imposed: the acoustic modes vanish by themselves."""
    found = {}
    for name, calculator in {"EMT": EMT(), "model": calc}.items():
        phonons = Phonons(
            bulk("Cu", a=LATTICE_CONSTANT), calculator, supercell=(3, 3, 3), delta=0.02, name=str(tmp_path / name)
        )
        phonons.run()
        phonons.read(acoustic=False, symmetrize=0)
        points = [[0, 0, 0], [0.5, 0.5, 0], [0.5, 0.5, 0.5], [0.25, 0.25, 0]]
        found[name] = 1e3 * phonons.band_structure(points, verbose=False)
    print(found)
    assert np.abs(found["model"][0]).max() < 0.05
    assert found["model"][1:].min() > 10
    np.testing.assert_allclose(found["model"][1:], found["EMT"][1:], rtol=0.25)


def test_vibrations(calc, tmp_path):
    """Copper's icosahedron: six modes without energy, the others real."""
    cluster = Icosahedron("Cu", 2)
    atoms = Atoms(cluster.numbers, cluster.positions)
    atoms.calc = calc
    BFGS(atoms, logfile=None).run(fmax=1e-4, steps=200)
    vibrations = Vibrations(atoms, name=str(tmp_path / "vib"))
    vibrations.run()
    energies = 1e3 * np.sort_complex(vibrations.get_energies())
    print(energies)
    free = np.abs(energies) < 1.0
    assert free.sum() == 6
    assert np.abs(energies[~free].imag).max() == 0
    assert energies[~free].real.min() > 3


def test_the_script(copper, md_drift, monkeypatch, tmp_path, capsys):
    save_model(tmp_path / "m.safetensors", copper.model, copper.metadata)
    ase.io.write(tmp_path / "cu.extxyz", bulk("Cu", cubic=True) * (1, 1, 2))
    arguments = [str(tmp_path / "m.safetensors"), str(tmp_path / "cu.extxyz")]

    def run(*more):
        monkeypatch.setattr(sys, "argv", ["md_drift.py", *arguments, *more])
        md_drift.main()
        return capsys.readouterr().out

    out = tmp_path / "drift"
    text = run("--steps", "20", "--timestep", "2", "--out", str(out))
    assert "8 atoms, 20 steps of 2 fs from 300 K" in text
    assert "meV/atom/ps" in text
    assert (out / "drift.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "drift.csv").read_text(encoding="utf-8").splitlines()) == 22
    time, energy = np.loadtxt(out / "drift.csv", delimiter=",", skiprows=1, usecols=(0, 1)).T
    assert f"{1e3 * np.polyfit(time, energy, 1)[0] / 8:+.3g} meV/atom/ps" in text
    arguments[1] = str(tmp_path / "nothing.xyz")
    with pytest.raises(SystemExit):
        run()
    assert "no such file" in capsys.readouterr().err
