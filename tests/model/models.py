"""Small models of every kind of attention, and what each must stand."""

import numpy as np
import pytest
import torch

from molflt.model.config import ModelConfig
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel
from molflt.model.scale_shift import Statistics
from tests.attention.structures import STRUCTURES, batch_of

SIZES = {"dim": 16, "n_heads": 4, "n_layers": 2, "ffn_dim": 32, "n_rbf": 8}
MEAN = 0.3
"""eV: the mean of the statistics of :func:`make_model`."""


def make_model(attention, dtype=torch.float64, **sizes):
    """Generic weights, with the far field scaled up until it matters and tags that weigh alike."""
    torch.manual_seed(0)
    config = ModelConfig(**{**SIZES, "pair_types": True, **sizes}, attention=attention)
    model = EnergyModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(30.0)
            if "radial" in name and name.endswith(("gamma", "beta")):
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.energy_head.factor.fill_(1.0)
    references = {z: -0.1 * z for z in range(1, 119)}
    model.standardiser.load_statistics(Statistics("element", MEAN, 2.0, 2.0, references, 0.1))
    return model.to(dtype).eval()


def batch_for(model, atoms, margin=0.0):
    """Structures with the neighbour list that a model asks for, or one that reaches some Å further."""
    config = model.config
    return batch_of(atoms, config.neighbour_cutoff + margin, config.all_pairs_if_isolated)


def energies(model, atoms, n_max=None):
    with torch.no_grad():
        return model(batch_for(model, atoms), n_max).energy


def all_structures():
    return [make() for make in STRUCTURES.values()]


def check_finite(model, atoms, autocast=False):
    """No NaN and no infinity in energies, displacements and gradients, those of the positions included."""
    batch = batch_for(model, atoms)
    batch.positions.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = model(batch)
    assert bool(torch.isfinite(output.energy).all())
    loss = output.energy.sum()
    if output.displacement is not None:
        assert bool(torch.isfinite(output.displacement).all())
        loss = loss + output.displacement.abs().sum()
    loss.backward()
    reached = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    assert reached
    for name, gradient in [("positions", batch.positions.grad), *reached]:
        assert gradient is None or bool(torch.isfinite(gradient).all()), name
    return output.energy.detach()


def forces(model, atoms):
    """Automatic −∂E/∂r. The neighbour list reaches 0.5 Å too far, so that no edge is missed when atoms are moved."""
    batch = batch_for(model, [atoms], margin=0.5)
    batch.positions.requires_grad_()
    (gradient,) = torch.autograd.grad(model(batch).energy.sum(), batch.positions)
    return -gradient


def check_forces(model, atoms, at_rest=1e-11, torque=1e-10):
    """Forces are central differences, add up to zero, and do not turn an isolated structure.

    Args:
        model: in double precision.
        atoms: a structure.
        at_rest: largest net force, relative to the largest force or 1 eV/Å.
        torque: largest net torque on an isolated structure, alike; None: not asked for.
    """
    found, step = forces(model, atoms), 1e-4
    assert float(found.abs().max()) > 1e-4
    for i in {0, len(atoms) - 1}:
        for axis in range(3):
            moved = [atoms.copy(), atoms.copy()]
            moved[0].positions[i, axis] += step
            moved[1].positions[i, axis] -= step
            with torch.no_grad():
                up, down = (float(model(batch_for(model, [one], margin=0.5)).energy.sum()) for one in moved)
            assert float(found[i, axis]) == pytest.approx(-(up - down) / (2 * step), abs=1e-6)
    scale = max(1.0, float(found.abs().max()))
    assert float(found.sum(dim=0).abs().max()) < at_rest * scale
    if torque is not None and not any(atoms.pbc):
        assert float(net_torque(atoms, found).abs().max()) < torque * scale


def check_stress(model, atoms, tolerance=1e-5):
    """The stress of a periodic structure is symmetric, and made of central differences, to ``tolerance``."""
    stress, step = derivatives(model, batch_for(model, [atoms], margin=0.5), stress=True).stress, 1e-5
    assert stress is not None
    assert float(stress.abs().max()) > 1e-6
    torch.testing.assert_close(stress[0], stress[0].T, rtol=0, atol=1e-14)
    for i, j in ((2, 2), (0, 1)):
        strain = np.zeros((3, 3))
        strain[i, j] += step / 2
        strain[j, i] += step / 2
        at = []
        for sign in (1, -1):
            moved, change = atoms.copy(), np.eye(3) + sign * strain
            moved.set_cell(np.asarray(atoms.cell) @ change, scale_atoms=False)
            moved.positions = atoms.positions @ change
            with torch.no_grad():
                at.append(float(model(batch_for(model, [moved], margin=0.5)).energy))
        expected = (at[0] - at[1]) / (2 * step * atoms.get_volume())
        assert float(stress[0, i, j]) == pytest.approx(expected, rel=tolerance, abs=1e-4 * tolerance)


def net_torque(atoms, found):
    """About the centre, (3,)."""
    arms = torch.from_numpy(atoms.positions - atoms.positions.mean(axis=0))
    return torch.linalg.cross(arms, found).sum(dim=0)


def check_hessian_vector_product(model, atoms):
    """Against differences of forces; and gradients of forces reach the weights of the far field."""
    batch = batch_for(model, [atoms], margin=0.5)
    batch.positions.requires_grad_()
    (gradient,) = torch.autograd.grad(model(batch).energy.sum(), batch.positions, create_graph=True)
    direction = torch.from_numpy(np.random.default_rng(0).normal(size=atoms.positions.shape))
    weights = [p for name, p in model.named_parameters() if name.endswith("rpe_weights")]
    curved, *reached = torch.autograd.grad((gradient * direction).sum(), [batch.positions, *weights])
    assert all(bool(torch.isfinite(g).all()) and float(g.abs().max()) > 0 for g in reached)
    step, at = 1e-4, []
    for sign in (1, -1):
        moved = atoms.copy()
        moved.positions += sign * step * direction.numpy()
        at.append(forces(model, moved))
    expected = -(at[0] - at[1]) / (2 * step)
    torch.testing.assert_close(curved, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def excess(model, gap):
    """Energy of two molecules some Å apart less the sum of their energies, relative to the sum, without means."""
    first, second = STRUCTURES["molecule"](), STRUCTURES["benzene"]()
    second.positions += (gap, 0.3 * gap, -0.1 * gap)
    one, two, both = (energies(model, [atoms])[0] - MEAN for atoms in (first, second, first + second))
    return abs(float((both - one - two) / (one + two)))
