"""Derivatives of the energy: against central differences, and what symmetry says of them."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from tests.attention.structures import STRUCTURES, batch_of

WIDTHS = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4, "n_frequencies": 8, "n_features": 8}
METHODS = {
    "exact": {"frequencies": "exact"},
    "exact, rank m": {"frequencies": "exact", "far_rank": "m"},
    "lattice": {"frequencies": "lattice"},
    "lattice, linear": {"frequencies": "lattice", "order": "linear"},
    "mesh": {"frequencies": "mesh", "tolerance": 1e-3},
    "averaged": {"frequencies": "sampled"},
    "random": {"frequencies": "sampled", "directions": "random"},
}
ISOLATED_ONLY = {
    "quadrature": {"frequencies": "quadrature"},
    "quadrature, linear": {"frequencies": "quadrature", "order": "linear"},
    "quadrature budget": {"frequencies": "quadrature", "l_max": 3, "order": "linear"},
    "averaged budget": {"frequencies": "sampled", "l_max": 3, "order": "linear"},
    "random, linear": {"frequencies": "sampled", "directions": "random", "order": "linear"},
}
CASES = [(m, n) for m in METHODS for n in ("molecule", "slab", "triclinic")]
CASES += [(m, n) for m in ISOLATED_ONLY for n in ("molecule", "linear")]


def make_model(method: str) -> EnergyModel:
    torch.manual_seed(0)
    attention = {**WIDTHS, **{**METHODS, **ISOLATED_ONLY}[method]}
    config = ModelConfig(dim=16, n_heads=4, n_layers=2, ffn_dim=32, cutoff=4.0, n_rbf=8, attention=attention)
    model = EnergyModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(10.0)
    return model


def energy(model: EnergyModel, atoms: Atoms, positions: torch.Tensor | None = None) -> torch.Tensor:
    """The neighbour list reaches 0.5 Å beyond the cutoff, so that no edge is missed when an atom is moved."""
    batch = batch_of([atoms], model.config.cutoff + 0.5)
    if positions is not None:
        batch.positions = positions
    return model(batch).energy.sum()


def forces(model: EnergyModel, atoms: Atoms) -> torch.Tensor:
    positions = torch.from_numpy(atoms.positions.copy()).requires_grad_()
    (gradient,) = torch.autograd.grad(energy(model, atoms, positions), positions)
    return -gradient


@pytest.mark.parametrize(("method", "name"), CASES)
def test_forces_are_central_differences(method, name):
    model, atoms = make_model(method), STRUCTURES[name]()
    found = forces(model, atoms)
    assert float(found.abs().max()) > 1e-4
    step = 1e-4
    with torch.no_grad():
        for i in {0, len(atoms) - 1}:
            for axis in range(3):
                at = []
                for sign in (1, -1):
                    moved = torch.from_numpy(atoms.positions.copy())
                    moved[i, axis] += sign * step
                    at.append(float(energy(model, atoms, moved)))
                assert float(found[i, axis]) == pytest.approx(-(at[0] - at[1]) / (2 * step), abs=1e-6)


@pytest.mark.parametrize(("method", "name"), CASES)
def test_net_force_and_torque_vanish(method, name):
    """No net force by translation invariance; no net torque on an isolated structure by rotation invariance."""
    model, atoms = make_model(method), STRUCTURES[name]()
    found = forces(model, atoms)
    scale = float(found.abs().max())
    # The grid does not move with a structure: the mesh's forces add up to zero within its ε only.
    assert float(found.sum(dim=0).abs().max()) < (1e-3 if method == "mesh" else 1e-11) * max(1.0, scale)
    if not any(atoms.pbc) and not method.startswith("random"):
        arms = torch.from_numpy(atoms.positions - atoms.positions.mean(axis=0))
        torque = torch.linalg.cross(arms, found).sum(dim=0)
        # The artificial cell of the lattice sum does not turn with a molecule: invariant to ε only.
        bound = 1e-3 if method.startswith(("lattice", "mesh")) else 1e-10
        assert float(torque.abs().max()) < bound * max(1.0, scale)


def test_random_directions_have_a_net_torque():
    """Power: the paper's estimator pushes a molecule round."""
    model, atoms = make_model("random"), STRUCTURES["molecule"]()
    found = forces(model, atoms)
    arms = torch.from_numpy(atoms.positions - atoms.positions.mean(axis=0))
    assert float(torch.linalg.cross(arms, found).sum(dim=0).abs().max()) > 1e-3 * float(found.abs().max())


@pytest.mark.parametrize(("method", "name"), [(m, "molecule") for m in [*METHODS, *ISOLATED_ONLY]])
def test_second_derivatives(method, name):
    """A Hessian-vector product against differences of forces, and gradients of forces reach the weights."""
    model, atoms = make_model(method), STRUCTURES[name]()
    positions = torch.from_numpy(atoms.positions.copy()).requires_grad_()
    (gradient,) = torch.autograd.grad(energy(model, atoms, positions), positions, create_graph=True)
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=atoms.positions.shape))
    weights = [p for name, p in model.named_parameters() if name.endswith("rpe_weights")]
    curved, *reached = torch.autograd.grad((gradient * direction).sum(), [positions, *weights])
    assert all(bool(torch.isfinite(g).all()) and float(g.abs().max()) > 0 for g in reached)
    step, at = 1e-4, []
    for sign in (1, -1):
        moved = atoms.copy()
        moved.positions += sign * step * direction.numpy()
        at.append(forces(model, moved))
    expected = -(at[0] - at[1]) / (2 * step)
    torch.testing.assert_close(curved, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
