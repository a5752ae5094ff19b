"""The mechanisms that molflt is compared with on atoms, against formulas written out and against dense attention."""

import math

import pytest
import torch

from molflt.attention.randomised import randomised_attention
from tests.attention.kernels.checks import standard_errors_off
from tests.attention.layers import DIM, HEADS, local_sum, prepare
from tests.attention.structures import STRUCTURES

N, WIDTH = 6, 4
"""Tokens, and their width, of randomised attention without atoms."""


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


def inputs(masked):
    generator = torch.Generator().manual_seed(0)
    q, k = 0.8 * torch.randn(2, 1, HEADS, N, WIDTH, generator=generator, dtype=torch.float64)
    v = torch.randn(1, HEADS, N, 5, generator=generator, dtype=torch.float64)
    near = torch.ones(1, 1, N, N, dtype=torch.float64)
    if not masked:
        return q, k, v, near, None
    near = torch.rand(1, HEADS, N, N, generator=generator, dtype=torch.float64)
    near = near * (torch.rand(1, HEADS, N, N, generator=generator, dtype=torch.float64) < 0.6) + torch.eye(N)
    far = 0.5 * torch.randn(1, HEADS, N, N, generator=generator, dtype=torch.float64)
    return q, k, v, near, far


def dense(q, k, v, near, far):
    weight = (q @ k.transpose(-1, -2)).exp()
    total = near if far is None else near + far
    return (total * weight) @ v / (near * weight).sum(dim=-1, keepdim=True)


def draws(n_samples, masked, sampling="exact", count=400):
    torch.manual_seed(0)
    return torch.stack([randomised_attention(*inputs(masked), n_samples, sampling, True) for _ in range(count)])


@pytest.mark.parametrize("masked", [False, True])
def test_exact_sampling_is_unbiased(masked):
    """Proposition 3.2, and the same with a positive mask in the mixture and one of any sign in the numerator."""
    wanted = dense(*inputs(masked))
    assert standard_errors_off(draws(8, masked), wanted) < 4.5
    # Power: the biased variant is found out by the same check.
    assert standard_errors_off(draws(8, masked, "biased"), wanted) > 6


@pytest.mark.parametrize("masked", [False, True])
def test_without_noise_exact_sampling_is_dense_attention(masked):
    arguments = inputs(masked)
    torch.testing.assert_close(randomised_attention(*arguments, 4, "exact", False), dense(*arguments))


def test_without_noise_biased_sampling_sits_at_the_mean():
    """ω = Kπ + q (Eq. 31)."""
    q, k, v, near, _ = inputs(False)
    omega = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ k + q
    weights = torch.softmax(omega @ k.transpose(-1, -2) - (k * k).sum(-1)[..., None, :] / 2, dim=-1)
    torch.testing.assert_close(randomised_attention(q, k, v, near, None, 3, "biased", False), weights @ v)


@pytest.mark.parametrize("sampling", ["exact", "biased"])
def test_tokens_that_do_not_exist_change_nothing_and_have_finite_gradients(sampling):
    q, k, v, near, far = inputs(True)
    mask = torch.arange(N) < 4
    near = (near * (mask[:, None] & mask[None])).requires_grad_()
    far = (far * (mask[:, None] & mask[None])).requires_grad_()
    q = q.clone().requires_grad_()
    found = randomised_attention(q, k, v, near, far, 2, sampling, False)[:, :, :4]
    small = [t[:, :, :4] for t in (q, k, v)] + [t[:, :, :4, :4] for t in (near, far)]
    torch.testing.assert_close(found, randomised_attention(*small, 2, sampling, False))
    torch.manual_seed(0)
    randomised_attention(q, k, v, near, far, 2, sampling, True)[:, :, :4].sum().backward()
    for t in (q, near, far):
        assert bool(torch.isfinite(t.grad).all())


@pytest.mark.parametrize("name", ["linear", "wire", "tiny_cell"])
def test_on_atoms_the_mask_is_local_plus_fourier(name):
    """A layer in evaluation against the far field of rank m with the exact kernel in place of its features."""
    layer, _, _, geometry, x, context = prepare(name, {"mechanism": "randomised-rpe"})
    found = layer.eval()(x, geometry, layer.prepare(geometry, context))
    q, k = layer.query_key(x)
    v = layer.value(x).view(geometry.n_atoms, HEADS, -1)
    near = layer.local_rpe(geometry, context.neighbourhood)[:, 0].permute(1, 2, 0)
    far = context.fields[0].matrix(layer.rpe_weights)[:, 0].permute(1, 2, 0)
    weight = torch.einsum("ihc,jhc->ijh", q, k).exp()
    out = torch.einsum("ijh,jhc->ihc", (near + far) * weight, v) / (near * weight).sum(dim=1)[..., None]
    torch.testing.assert_close(found, layer.output(out.flatten(1)), rtol=1e-9, atol=1e-10)


def test_training_draws_and_evaluation_does_not():
    layer, _, _, geometry, x, context = prepare("molecule", {"mechanism": "randomised"})
    prepared = layer.prepare(geometry, context)
    assert not torch.equal(layer(x, geometry, prepared), layer(x, geometry, prepared))
    layer.eval()
    assert torch.equal(layer(x, geometry, prepared), layer(x, geometry, prepared))
