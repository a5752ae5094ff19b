"""The attention of DESIGN §3 against its formula written out with loops, and in every way of the far field."""

import math

import pytest
import torch
from torch.nn import functional

from tests.attention.layers import (
    DIM,
    HEADS,
    Layer,
    check_batch_mates_change_nothing,
    check_ways_agree,
    near_and_far,
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

    atoms, n = STRUCTURES[name](), geometry.n_atoms
    tau = 16 * torch.sigmoid(layer.query_key.raw_temperature)
    q, k = layer.query_key.projection(x).view(n, 2, HEADS, -1).unbind(1)
    q = q / q.norm(dim=-1, keepdim=True) * tau.sqrt()[:, None]
    k = k / k.norm(dim=-1, keepdim=True) * tau.sqrt()[:, None]
    v = layer.value(x).view(n, HEADS, -1)
    near, far = near_and_far(atoms, layer, shared, radial, q, k)
    if far_rank == 1:
        gates = (functional.softplus(gate.linear(x)) for gate in (layer.query_gate, layer.key_gate))
        far = far * torch.einsum("ih,jh->ijh", *gates)
    if far_rank == "m":
        omega = layer.kernel.weights.omega
        phi_q, phi_k = ((t @ omega.T - (t**2).sum(-1, keepdim=True) / 2).exp() for t in (q, k))
        far = far * torch.einsum("ihm,jhm->ijh", phi_q, phi_k) / len(omega)
    # The far field carries the first channels of every head.
    width = v.shape[-1] if far_rank == "m" else math.ceil(v.shape[-1] / 4)
    carried = v * (torch.arange(v.shape[-1]) < width)
    out = torch.einsum("ijh,jhc->ihc", near, v) + torch.einsum("ijh,jhc->ihc", far, carried)
    out = out / near.sum(dim=1)[..., None]
    # Moments have their own formula, in test_moments.py.
    expected = layer.output(out.reshape(n, DIM)) + layer.moments(x, context.moments)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("far_rank", "far_dim"), [(0, 12), (0, None), (1, 6), ("m", None), ("m", 6)])
def test_ways_agree(far_rank, far_dim):
    keys = {"far_rank": far_rank, "far_dim": far_dim, "spectrum": "both"}
    check_ways_agree([*PERIODIC, *ISOLATED], ("pairs", "waves", "auto"), **keys)


@pytest.mark.parametrize("keys", [{}, {"far_rank": "m"}, {"vector_channels": HEADS}], ids=str)
def test_the_mesh_agrees_to_its_tolerance(keys):
    layer, atoms = Layer(tolerance=1e-4, **keys), [STRUCTURES[n]() for n in ("slab_open", "triclinic")]
    expected, _ = layer(atoms, "pairs")
    found, _ = layer(atoms, "mesh")
    assert 1e-9 < float((found - expected).abs().max()) < 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("keys", [{}, {"far_rank": "m"}, {"mechanism": "local"}], ids=str)
def test_batch_mates_change_nothing(keys):
    check_batch_mates_change_nothing(Layer(**keys))
