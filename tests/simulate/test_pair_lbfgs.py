"""Relaxations, learned or not: potentials against ASE's, symmetry, L-BFGS against a dense oracle, and their end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import fcc111
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms

from molflt.simulate.pair_lbfgs import (
    MAX_STEP,
    Direction,
    PairLBFGS,
    batch,
    begin,
    pair_direction,
    shortened,
    two_loops,
)
from scripts.literature.relaxation_model import LearnedHessian, SummedSteps
from scripts.literature.relaxation_structures import draw, emt, evaluate
from scripts.literature.relaxation_training import advance, start


def slab(seed: int = 0) -> Atoms:
    """Eighteen atoms of two elements, the lower half fixed, disturbed."""
    atoms = fcc111("Cu", (3, 3, 2), vacuum=8.0)
    random = np.random.default_rng(seed)
    atoms.symbols[random.choice(18, 5, replace=False)] = "Au"
    atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 2))
    atoms.positions[atoms.get_tags() == 1] += random.uniform(-0.2, 0.2, (9, 3))
    return atoms


def random_model(kind: type[torch.nn.Module]) -> Direction:
    """With large random weights, so that nothing cancels."""
    torch.manual_seed(0)
    model = kind()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def test_emt_is_that_of_ase() -> None:
    random = np.random.default_rng(3)
    structures = [draw(random, "emt", 8, 24)[0] for _ in range(6)] + [slab()]
    packed = batch(structures)
    energy, forces = evaluate(emt, packed, packed.positions)
    for k, atoms in enumerate(structures):
        atoms.calc = EMT()
        assert float(energy[k]) == pytest.approx(atoms.get_potential_energy(), abs=1e-9)
        assert np.abs(forces[k, : len(atoms)].numpy() - atoms.get_forces()).max() < 1e-9


def walked(direction: Direction, atoms: Atoms, n: int = 4) -> torch.Tensor:
    """The step after a few others in EMT, (n_atoms, 3)."""
    packed = batch([atoms], 9.0)
    history = start(packed, emt)
    for _ in range(n):
        history = advance(direction, packed, emt, history)
    with torch.no_grad():
        return shortened(packed, history, direction(packed, history))[0]


@pytest.mark.parametrize("kind", [LearnedHessian, SummedSteps])
def test_steps_turn_with_the_structure(kind: type[torch.nn.Module]) -> None:
    atoms, model = slab(), random_model(kind)
    step = walked(model, atoms)
    random = np.random.default_rng(5)
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    order = random.permutation(len(atoms))
    other = atoms[order]
    fixed = atoms.constraints[0].get_indices()
    other.set_constraint(FixAtoms(np.flatnonzero(np.isin(order, fixed))))
    other.set_cell(atoms.cell.array @ turn)
    other.positions = atoms.positions[order] @ turn + random.normal(size=3)
    assert float((walked(model, other) - step[order] @ torch.from_numpy(turn)).abs().max()) < 1e-7
    # With power: the networks matter, and steps differ among atoms and directions.
    assert float((walked(kind(), atoms) - step).abs().max()) > 1e-3
    assert float((step[order] - step).abs().max()) > 1e-3
    assert float((step @ torch.from_numpy(turn) - step).abs().max()) > 1e-3
    assert not step[torch.from_numpy(fixed)].any()
    assert float(step.norm(dim=-1).max()) <= MAX_STEP + 1e-12


def test_untrained_it_is_the_pair_hessian() -> None:
    assert torch.equal(walked(LearnedHessian(), slab()), walked(pair_direction, slab()))


def test_two_loops_are_bfgs_updates_of_the_initial_hessian() -> None:
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

    def calculate(self, atoms: Any = None, properties: Any = None, system_changes: Any = None) -> None:
        super().calculate(atoms, properties, system_changes)
        x = atoms.positions - [[0, 0, 0], [0, 0, 2.0]]
        self.results = {"energy": -float((x**2).sum()), "forces": -2 * x}


def test_it_relaxes_and_leaves_what_is_fixed() -> None:
    atoms = slab()
    start = atoms.copy()
    atoms.calc = EMT()
    before = atoms.get_potential_energy()
    assert PairLBFGS(atoms, logfile=None).run(fmax=0.01, steps=60)
    assert np.abs(atoms.get_forces()).max() < 0.01
    assert atoms.get_potential_energy() < before - 0.1
    fixed = atoms.constraints[0].get_indices()
    assert np.array_equal(atoms.positions[fixed], start.positions[fixed])


def test_where_the_energy_misleads_lbfgs_takes_over() -> None:
    atoms = Atoms("Ar2", positions=[[0.3, 0, 0], [0, 0.2, 2.5]], calculator=Wrong())
    optimiser = PairLBFGS(atoms, logfile=None)
    assert optimiser.run(fmax=0.01, steps=100)
    assert optimiser.failures > 0
