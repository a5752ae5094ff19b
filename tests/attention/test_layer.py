"""The attention of DESIGN §3 against its formula written out with loops, and its two contraction orders."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from molflt.attention.far.method import PositionFeatures
from molflt.errors import InputError
from tests.attention.layers import (
    CUTOFF,
    DIM,
    HEADS,
    Layer,
    check_batch_mates_change_nothing,
    check_orders_agree,
    images,
    local_sum,
    prepare,
)
from tests.attention.structures import STRUCTURES

ISOLATED = ["molecule", "benzene", "linear", "atom"]
PERIODIC = ["slab", "slab_open", "wire", "triclinic", "tiny_cell"]
METHODS = {
    "lattice": ({"frequencies": "lattice"}, PERIODIC + ISOLATED),
    "mesh": ({"frequencies": "mesh", "tolerance": 5e-3}, ["slab_open", "triclinic", "molecule"]),
    "lattice, waves": ({"frequencies": "lattice", "spectrum": "sampled"}, ["slab", "triclinic", "molecule"]),
}


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
                f = shared.rpe().values((delta**2).sum(-1)).sum(0) @ layer.rpe_weights
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


CASES = [
    *((method, 0, 12) for method in METHODS),
    *((method, "m", None) for method in METHODS),
    *(("lattice", *rest) for rest in ((0, None), (1, 6), ("m", 6))),
]


@pytest.mark.parametrize(("method", "far_rank", "far_dim"), CASES)
def test_orders_agree(method, far_rank, far_dim, monkeypatch):
    keys, names = METHODS[method]
    # Several strips, the last of them shorter.
    monkeypatch.setattr("molflt.attention.far.method.STRIP", 7)
    check_orders_agree(names, ("linear", "mixed"), **keys, far_rank=far_rank, far_dim=far_dim)


def test_orders_agree_on_strips_of_exact_pairs(monkeypatch):
    monkeypatch.setattr("molflt.attention.far.exact.STRIP", 7)
    check_orders_agree([*PERIODIC, *ISOLATED], ("mixed",), frequencies="exact")


def test_orders_agree_without_a_far_field():
    check_orders_agree(PERIODIC + ISOLATED, mechanism="local")


def test_a_feature_dropped_shows():
    """Power: the agreement is not that of two zeros."""
    layer = Layer(frequencies="lattice")
    atoms = [STRUCTURES["tiny_cell"]()]
    expected, _ = layer(atoms, "quadratic")
    complete = PositionFeatures.__call__

    def incomplete(self, weights, values):
        return complete(PositionFeatures(self.features[:, 1:], self.coefficients[1:]), weights, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PositionFeatures, "__call__", incomplete)
        found, _ = layer(atoms, "linear")
    assert float((found - expected).abs().max()) > 1e-4 * float(expected.abs().max())


def test_the_order_is_chosen_per_structure_and_batch_mates_change_nothing(monkeypatch):
    check_batch_mates_change_nothing(Layer(frequencies="lattice", tolerance=5e-3), monkeypatch)


@pytest.mark.parametrize("method", ["exact", "quadrature"])
def test_an_order_that_is_not_there_is_refused(method):
    with pytest.raises(InputError, match="no linear form"):
        Layer(frequencies=method)([STRUCTURES["molecule"]()], "linear")
