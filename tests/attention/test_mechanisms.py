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


def test_concatenated_attention_is_algorithm_one():
    """φ applied to [√|a| cos, √|a| sin, q d^{-1/4}], with the sign of a on the key side only."""
    layer, shared, _, geometry, x, context = prepare("molecule", {"mechanism": "concat"})
    n = geometry.n_atoms
    a = shared.method.coefficients(shared.rpe()) @ layer.rpe_weights
    assert bool((a < 0).any())
    xi = shared.method.frequencies()
    delta = geometry.positions[:, None] - geometry.positions[None]
    mask = torch.einsum("ijk,kh->ijh", torch.cos(2 * math.pi * delta @ xi.T), a)
    q, k, v = (t.reshape(n, HEADS, -1) for t in layer.projection(x).chunk(3, dim=-1))
    scale = (DIM / HEADS) ** -0.25
    phase = 2 * math.pi * (geometry.positions + geometry.centroids) @ xi.T
    waves = torch.cat([phase.cos(), phase.sin()], dim=1)[:, None]
    root, sign = a.T.repeat(1, 2).abs().sqrt(), a.T.repeat(1, 2).sign()
    qq, kk = torch.cat([waves * root, q * scale], -1), torch.cat([waves * root * sign, k * scale], -1)
    # Theorem 4.1: the concatenated vectors' scalar product is the estimated mask plus q·k/√d.
    product = torch.einsum("ihc,jhc->ijh", qq, kk)
    torch.testing.assert_close(product, mask + torch.einsum("ihc,jhc->ijh", q, k) / math.sqrt(DIM / HEADS))
    omega = layer.kernel.weights.omega
    phi_q, phi_k = ((t @ omega.T - (t**2).sum(-1, keepdim=True) / 2).exp() for t in (qq, kk))
    kernel = torch.einsum("ihm,jhm->ijh", phi_q, phi_k)
    out = torch.einsum("ijh,jhc->ihc", kernel / kernel.sum(1, keepdim=True), v)
    found = layer(x, geometry, layer.prepare(geometry, context))
    torch.testing.assert_close(found, layer.output(out.reshape(n, DIM)), rtol=1e-6, atol=1e-6)
