"""The mechanisms that molflt is compared with on atoms, against their formulas written out."""

import math

import pytest
import torch

from tests.attention.layers import DIM, HEADS, local_sum, prepare
from tests.attention.structures import STRUCTURES


@pytest.mark.parametrize("name", ["linear", "wire", "molecule"])
def test_softmax_attention_is_its_formula(name):
    layer, shared, _, geometry, x, context = prepare(name, {"mechanism": "softmax"})
    found = layer(x, geometry, layer.prepare(geometry, context))
    atoms, z, n = STRUCTURES[name](), geometry.atomic_numbers, geometry.n_atoms
    q, k, v = (t.reshape(n, HEADS, -1) for t in layer.projection(x).chunk(3, dim=-1))
    q = q / math.sqrt(DIM / HEADS)
    periodic = bool(any(atoms.pbc))
    weights = torch.stack(
        [
            torch.stack([local_sum(atoms, i, j, q, k, layer, shared.radial, 5.0, z, env=periodic) for j in range(n)])
            for i in range(n)
        ]
    )
    out = torch.einsum("ijh,jhc->ihc", weights / weights.sum(1, keepdim=True), v)
    torch.testing.assert_close(found, layer.output(out.reshape(n, DIM)), rtol=1e-9, atol=1e-10)


def test_performer_is_the_normalised_kernel():
    layer, _, _, geometry, x, context = prepare("molecule", {"mechanism": "kernelised"})
    n = geometry.n_atoms
    q, k, v = (t.reshape(n, HEADS, -1) for t in layer.projection(x).chunk(3, dim=-1))
    scale, omega = (DIM / HEADS) ** -0.25, layer.kernel.weights.omega
    phi_q, phi_k = ((t @ omega.T - (t**2).sum(-1, keepdim=True) / 2).exp() for t in (q * scale, k * scale))
    kernel = torch.einsum("ihm,jhm->ijh", phi_q, phi_k)
    out = torch.einsum("ijh,jhc->ihc", kernel / kernel.sum(1, keepdim=True), v)
    found = layer(x, geometry, layer.prepare(geometry, context))
    torch.testing.assert_close(found, layer.output(out.reshape(n, DIM)))
