"""The energy is smooth along a path, although numerical methods are chosen by counting (DESIGN §3, "Smoothness").

A jump of the energy shows at its full height in second differences, and in the second differences of these. There the
smooth part is below the bound: with two continuous derivatives at cutoffs, it falls with the third power of the step.
"""

from dataclasses import replace

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111

from molflt.attention.layout import Plan
from molflt.simulate.ase import MolFLTCalculator
from tests.attention.structures import STRUCTURES

BOUND = 1e-9
"""eV."""


def slab():
    atoms = fcc111("Cu", (2, 2, 2), vacuum=6.0, periodic=False)
    atoms = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=(True, True, False))
    atoms.rattle(0.1, seed=1)
    return atoms


def crystal():
    atoms = bulk("Ni", cubic=True)
    atoms.rattle(0.1, seed=1)
    return atoms


def move(atoms, t):
    atoms.positions[-1] += np.array([0.1, 0.2, 1.0]) * t


def strain(atoms, t):
    change = np.eye(3) * (1 + 0.05 * (t - 0.5))
    change[0, 1] = 0.02 * t
    atoms.set_cell(atoms.cell @ change, scale_atoms=True)


def roughness(calc, atoms, change, span, n_steps):
    """eV: the largest second difference of the second difference of the energy."""
    energies = []
    for t in np.linspace(0, span, n_steps):
        here = atoms.copy()
        change(here, t)
        here.calc = calc
        energies.append(here.get_potential_energy())
    assert np.ptp(energies) > 1e-5
    return float(np.abs(np.diff(energies, 4)).max())


FLT, BOTH, MESH = {}, {"spectrum": "both"}, {"frequencies": "mesh"}
PATHS = [(slab, move, 0.75), (slab, strain, 1.0), (crystal, strain, 1.0)]
CASES = [(attention, *path) for attention in (FLT, BOTH, MESH) for path in PATHS]
CASES += [(attention, STRUCTURES["molecule"], move, -1.0) for attention in (FLT, BOTH, MESH)]


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "make", "change", "span"), CASES)
def test_no_jump_in_400_steps(random_model, attention, make, change, span):
    assert roughness(MolFLTCalculator(random_model(attention)), make(), change, span, 400) < BOUND


def test_choices_are_made_anew_for_other_atoms(random_model):
    calc = MolFLTCalculator(random_model())
    for make in (slab, crystal, STRUCTURES["molecule"], slab):
        atoms, alone = make(), make()
        atoms.calc, alone.calc = calc, MolFLTCalculator(random_model())
        assert atoms.get_potential_energy() == alone.get_potential_energy()


def test_a_cell_that_grows_gets_a_finer_grid(random_model):
    """Held as long as its error stays within ε, and no longer."""
    attention = {"frequencies": "mesh", "tolerance": 1e-3}
    calc, free = MolFLTCalculator(random_model(attention)), random_model(attention)
    for scale in (1.0, 1.05, 1.4):
        atoms = crystal()
        atoms.set_cell(atoms.cell * scale, scale_atoms=True)
        atoms.calc = calc
        held = atoms.get_potential_energy()
        atoms.calc = MolFLTCalculator(free)
        assert held == pytest.approx(atoms.get_potential_energy(), abs=1e-4)
    assert held == atoms.get_potential_energy()


@pytest.mark.parametrize("attention", [FLT, BOTH, MESH, {**MESH, "vector_channels": 4}])
@pytest.mark.parametrize(("make", "span"), [(slab, 0.7), (crystal, 0.7), (STRUCTURES["molecule"], -0.7)])
def test_a_layout_that_is_kept_is_as_good_as_a_new_one(random_model, monkeypatch, attention, make, span):
    """Along a path on which an atom leaves the skin: energies as of layouts made at every step, and few layouts."""
    laid_out, with_skin, anew = (
        [],
        MolFLTCalculator(random_model(attention)),
        MolFLTCalculator(random_model(attention)),
    )
    with_skin._moving._plan, anew._moving._plan = (
        replace(calc._moving._plan, skin=skin) for calc, skin in ((with_skin, 0.3), (anew, 0.0))
    )
    monkeypatch.setattr(
        Plan,
        "__call__",
        lambda plan, batch, call=Plan.__call__, **how: laid_out.append(plan.skin) or call(plan, batch, **how),
    )
    for t in np.linspace(0, span, 15):
        energies, forces = [], []
        for calc in (with_skin, anew):
            atoms = make()
            move(atoms, t)
            atoms.calc = calc
            energies.append(atoms.get_potential_energy())
            forces.append(atoms.get_forces())
        assert energies[0] == pytest.approx(energies[1], abs=1e-10)
        np.testing.assert_allclose(forces[0], forces[1], rtol=0, atol=1e-9)
    assert laid_out.count(0.3) == 3
    assert laid_out.count(0.0) == 15
