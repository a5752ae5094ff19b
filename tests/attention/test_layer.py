"""The attention of DESIGN §3 against its formula written out with loops, and in every way of the far field."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from molflt.attention.far.waves import OnWaves
from tests.attention.layers import (
    CUTOFF,
    DIM,
    HEADS,
    Layer,
    check_batch_mates_change_nothing,
    check_ways_agree,
    images,
    local_sum,
    prepare,
)
from tests.attention.structures import STRUCTURES

ISOLATED = ["molecule", "benzene", "linear", "atom"]
PERIODIC = ["slab", "slab_open", "wire", "triclinic", "tiny_cell"]


@pytest.mark.parametrize("far_rank", [0, 1, "m", None])
@pytest.mark.parametrize("name", ["linear", "wire", "tiny_cell", "atom"])
def test_the_layer_is_its_formula(name, far_rank):
    keys = {"mechanism": "local"} if far_rank is None else {"far_rank": far_rank, "frequencies": "exact"}
    layer, shared, radial, geometry, x, context = prepare(name, keys)
    found = layer(x, geometry, layer.prepare(geometry, context))

    atoms, z, n = STRUCTURES[name](), geometry.atomic_numbers, geometry.n_atoms
    tau = 16 * torch.sigmoid(layer.query_key.raw_temperature)
    q, k = layer.query_key.projection(x).view(n, 2, HEADS, -1).unbind(1)
    q = q / q.norm(dim=-1, keepdim=True) * tau.sqrt()[:, None]
    k = k / k.norm(dim=-1, keepdim=True) * tau.sqrt()[:, None]
    v = layer.value(x).view(n, HEADS, -1)
    # The far field carries the first channels of every head.
    width = v.shape[-1] if far_rank == "m" else math.ceil(v.shape[-1] / 4)
    carried = torch.arange(v.shape[-1]) < width
    shifts = torch.from_numpy(np.array(images(atoms, 20.0)))
    out = torch.zeros_like(v)
    for i in range(n):
        numerator, denominator = torch.zeros_like(v[0]), torch.zeros(HEADS, dtype=torch.float64)
        for j in range(n):
            near = local_sum(atoms, i, j, q, k, layer, radial, CUTOFF, z)
            denominator = denominator + near
            weight = near[:, None].expand_as(v[j])
            if far_rank is not None:
                delta = torch.from_numpy(atoms.positions[i] - atoms.positions[j]) + shifts
                f = shared.rpe().on_pairs((delta**2).sum(-1)).sum(1) @ layer.rpe_weights
                content = torch.ones(HEADS, dtype=torch.float64)
                if far_rank == 1:
                    gates = layer.query_gate.linear(x[i]), layer.key_gate.linear(x[j])
                    content = functional.softplus(gates[0]) * functional.softplus(gates[1])
                if far_rank == "m":
                    omega = layer.kernel.weights.omega
                    phi_q = (q[i] @ omega.T - (q[i] ** 2).sum(-1, keepdim=True) / 2).exp()
                    phi_k = (k[j] @ omega.T - (k[j] ** 2).sum(-1, keepdim=True) / 2).exp()
                    content = (phi_q * phi_k).mean(-1)
                weight = weight + (f * content)[:, None] * carried
            numerator = numerator + weight * v[j]
        out[i] = numerator / denominator[:, None]
    # Moments have their own formula, in test_moments.py.
    expected = layer.output(out.reshape(n, DIM)) + layer.moments(x, context.moments)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("far_rank", "far_dim"), [(0, 12), (0, None), (1, 6), ("m", None), ("m", 6)])
def test_ways_agree(far_rank, far_dim):
    keys = {"far_rank": far_rank, "far_dim": far_dim, "spectrum": "both"}
    check_ways_agree([*PERIODIC, *ISOLATED], ("pairs", "waves", "auto"), **keys)


@pytest.mark.parametrize("far_rank", [0, "m"])
def test_the_mesh_agrees_to_its_tolerance(far_rank):
    layer, atoms = Layer(far_rank=far_rank, tolerance=1e-4), [STRUCTURES[n]() for n in ("slab_open", "triclinic")]
    expected, _ = layer(atoms, "pairs")
    found, _ = layer(atoms, "mesh")
    assert 1e-9 < float((found - expected).abs().max()) < 1e-3 * float(expected.abs().max())


def test_a_wave_dropped_shows():
    """Power: the agreement is not that of two zeros."""
    layer, atoms = Layer(), [STRUCTURES["tiny_cell"]()]
    expected, _ = layer(atoms, "waves")
    complete = OnWaves.__call__

    def incomplete(self, weights, values):
        return complete(OnWaves(self.features[..., 1:], self.coefficients[..., 1:]), weights, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnWaves, "__call__", incomplete)
        found, _ = layer(atoms, "waves")
    assert float((found - expected).abs().max()) > 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("keys", [{}, {"far_rank": "m"}, {"mechanism": "local"}], ids=str)
def test_batch_mates_change_nothing(keys):
    check_batch_mates_change_nothing(Layer(**keys))
