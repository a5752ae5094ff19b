"""Relaxation with a pair Hessian: its matrix and L-BFGS against dense oracles, symmetry, and its end."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.data import covalent_radii
from ase.filters import FrechetCellFilter

from molflt import InputError, PairLBFGS
from molflt.simulate.pair_lbfgs import batch, begin, pair_hessian, two_loops


def slab(seed=0):
    """Eighteen atoms of two elements, the lower half fixed, disturbed."""
    atoms = fcc111("Cu", (3, 3, 2), vacuum=8.0)
    random = np.random.default_rng(seed)
    atoms.symbols[random.choice(18, 5, replace=False)] = "Au"
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 2))
    atoms.positions[atoms.get_tags() == 1] += random.uniform(-0.2, 0.2, (9, 3))
    return atoms


def test_the_pair_hessian_is_springs_along_and_across_pairs():
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[1] = "Au"
    atoms.rattle(0.1, seed=0)
    atoms.set_constraint(FixAtoms([2]))
    expected = np.zeros((4, 3, 4, 3))
    for i in range(4):
        expected[i, :, i, :] += 5 * math.exp(-3) * np.eye(3)
        for j in range(4):
            for image in np.ndindex(7, 7, 7):
                delta = atoms.positions[j] + (np.array(image) - 3) @ atoms.cell.array - atoms.positions[i]
                r = np.linalg.norm(delta)
                if not 0 < r < 7:
                    continue
                x = r / (covalent_radii[atoms.numbers[i]] + covalent_radii[atoms.numbers[j]])
                along = 5 * math.exp(-6 * (x - 1)) * (1 - (r / 7) ** 2) ** 3
                unit = np.outer(delta, delta) / r**2
                block = along * unit + along * math.exp(-3) * (np.eye(3) - unit)
                expected[i, :, i, :] += block
                expected[i, :, j, :] -= block
    expected[2], expected[:, :, 2] = 0, 0
    expected[2, :, 2, :] = np.eye(3)
    packed = batch([atoms])
    found = pair_hessian(packed, packed.positions)[0]
    # The weakest springs count as a little stiffer.
    np.testing.assert_allclose(found.numpy(), expected.reshape(12, 12), rtol=0, atol=1e-6)
    assert float(torch.linalg.eigvalsh(found).min()) > 0


def test_two_loops_are_bfgs_updates_of_the_initial_hessian():
    torch.manual_seed(1)
    dim = 9
    a, h0 = (m @ m.mT + torch.eye(dim) for m in torch.randn(2, dim, dim, dtype=torch.float64))
    history = begin(*(torch.randn(*shape, dtype=torch.float64) for shape in ((1, 3, 3), (1,), (1, 3, 3))))
    for _ in range(4):
        s = torch.randn(1, dim, dtype=torch.float64)
        history.steps.append(s)
        history.changes.append(s @ a)
        history.valid.append(torch.tensor([True]))
    y, s = history.changes[-1][0], history.steps[-1][0]
    inverse = torch.linalg.inv(h0) / (y @ torch.linalg.solve(h0, y) / (y @ s))
    for s_, y_ in zip(history.steps, history.changes, strict=True):
        s, y = s_[0], y_[0]
        left = torch.eye(dim) - torch.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.mT + torch.outer(s, s) / (s @ y)
    # A step without positive curvature changes nothing.
    history.steps.append(torch.randn(1, dim, dtype=torch.float64))
    history.changes.append(-history.steps[-1])
    history.valid.append(torch.tensor([False]))
    found = two_loops(history, lambda q: torch.linalg.solve(h0, q[..., None])[..., 0])
    assert torch.allclose(found[0], inverse @ history.forces.flatten(), rtol=1e-9)


class Wrong(Calculator):  # type: ignore[misc]
    """A parabola whose energy says the opposite of its forces."""

    implemented_properties = ("energy", "forces")

    def calculate(self, atoms=None, properties=None, system_changes=None):
        super().calculate(atoms, properties, system_changes)
        x = atoms.positions - [[0, 0, 0], [0, 0, 2.0]]
        self.results = {"energy": -float((x**2).sum()), "forces": -2 * x}


def test_it_relaxes_and_leaves_what_is_fixed():
    atoms = slab()
    start = atoms.copy()
    atoms.calc = EMT()
    before = atoms.get_potential_energy()
    assert PairLBFGS(atoms, logfile=None).run(fmax=0.01, steps=60)
    assert np.abs(atoms.get_forces()).max() < 0.01
    assert atoms.get_potential_energy() < before - 0.1
    fixed = atoms.constraints[0].get_indices()
    assert np.array_equal(atoms.positions[fixed], start.positions[fixed])


def test_where_the_energy_misleads_lbfgs_takes_over():
    atoms = Atoms("Ar2", positions=[[0.3, 0, 0], [0, 0.2, 2.5]], calculator=Wrong())
    optimiser = PairLBFGS(atoms, logfile=None)
    assert optimiser.run(fmax=0.01, steps=100)
    assert optimiser.failures > 0


def test_it_refuses_what_it_does_not_relax():
    with pytest.raises(InputError, match="not a FrechetCellFilter; take ASE's BFGS"):
        PairLBFGS(FrechetCellFilter(bulk("Cu")))
