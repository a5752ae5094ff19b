"""Learned relaxations: their potentials against ASE's, and symmetry."""

import numpy as np
import pytest
import torch
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms

from molflt.simulate.pair_lbfgs import MAX_STEP, batch, pair_direction, shortened
from scripts.literature.relaxation_model import LearnedHessian, SummedSteps
from scripts.literature.relaxation_structures import draw, emt, evaluate
from scripts.literature.relaxation_training import advance, start
from tests.simulate.test_pair_lbfgs import slab


def random_model(kind):
    """With large random weights, so that nothing cancels."""
    torch.manual_seed(0)
    model = kind()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def test_emt_is_that_of_ase():
    random = np.random.default_rng(3)
    structures = [draw(random, "emt", 8, 24)[0] for _ in range(6)] + [slab()]
    packed = batch(structures)
    energy, forces = evaluate(emt, packed, packed.positions)
    for k, atoms in enumerate(structures):
        atoms.calc = EMT()
        assert float(energy[k]) == pytest.approx(atoms.get_potential_energy(), abs=1e-9)
        assert np.abs(forces[k, : len(atoms)].numpy() - atoms.get_forces()).max() < 1e-9


def walked(direction, atoms, n=4):
    """The step after a few others in EMT, (n_atoms, 3)."""
    packed = batch([atoms], 9.0)
    history = start(packed, emt)
    for _ in range(n):
        history = advance(direction, packed, emt, history)
    with torch.no_grad():
        return shortened(packed, history, direction(packed, history))[0]


@pytest.mark.parametrize("kind", [LearnedHessian, SummedSteps])
def test_steps_turn_with_the_structure(kind):
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


def test_untrained_it_is_the_pair_hessian():
    assert torch.equal(walked(LearnedHessian(), slab()), walked(pair_direction, slab()))
