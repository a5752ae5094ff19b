"""Every component function with every weight matrix: formula, gradients, padding, structures, single precision."""

import pytest
import torch

from molflt.attention.kernels.kernel import kernelised_attention
from molflt.attention.kernels.random_features import RandomFeatureKernel
from molflt.literature.kernels import generalised_features, mean_square_of_sums, optimal_a, optimised_positive
from tests.literature.kernels.grid import (
    FLOOR,
    GRID,
    dense_attention,
    estimate,
    generator,
    kernel_of,
    pair_terms,
    tokens,
)

COMPONENTS = ("trigrf", "posrf", "oprf", "saderf")
grid = pytest.mark.parametrize(("component", "matrix"), GRID)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def padded(*x: torch.Tensor, by: int = 3) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Tokens with others behind them that do not exist, and the mask that says so."""
    n = x[0].shape[2]
    rest = 2 * torch.randn(*x[0].shape[:2], by, x[0].shape[3], generator=generator(5), dtype=x[0].dtype)
    mask = (torch.arange(n + by) < n)[None, None, :, None].expand(len(x[0]), -1, -1, -1)
    return [torch.cat([t, rest + i], dim=2) for i, t in enumerate(x)], mask


@grid
def test_attention_is_the_dense_formula(component, matrix):
    kernel, (q, k, v) = kernel_of(component, matrix), tokens(scale=0.25)
    with torch.no_grad():
        found = kernelised_attention(kernel, q, k, v, None)
        wanted, _ = dense_attention(component, kernel.weights(), q, k, v)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
        # Power: the component functions give different answers from the same matrix.
        for other in set(COMPONENTS) - {component}:
            assert not torch.allclose(found, dense_attention(other, kernel.weights(), q, k, v)[0], rtol=1e-4)


def test_an_estimate_of_either_sign_is_raised_to_the_floor():
    """Far queries, whose sums of cosines come out below the floor: divided by 1 % of the sum of absolute values."""
    kernel, (q, k, v) = kernel_of("trigrf", "iid"), tokens(n=12, scale=2.0)
    found = kernelised_attention(kernel, q, k, v, None)
    low = torch.zeros_like(v[..., 0], dtype=torch.bool)
    for b in range(2):
        for h in range(2):
            omega = kernel.weights()
            weights = pair_terms("trigrf", omega, q[b, h], k[b, h]).sum(-1)
            lengths = [torch.exp(x[b, h].square().sum(1) / 2) for x in (q, k)]
            phase_q, phase_k = q[b, h] @ omega.T, k[b, h] @ omega.T
            overlap = phase_q.cos().abs() @ phase_k.cos().abs().T + phase_q.sin().abs() @ phase_k.sin().abs().T
            bound = FLOOR * (lengths[0][:, None] * lengths[1][None] * overlap / len(omega)).sum(1)
            low[b, h] = weights.sum(1) < bound
            wanted = weights @ v[b, h] / torch.maximum(weights.sum(1), bound)[:, None]
            torch.testing.assert_close(found[b, h], wanted, rtol=1e-8, atol=1e-10)
    # Power: both cases occur, and without the floor they differ.
    assert bool(low.any())
    assert not bool(low.all())
    plain, _ = dense_attention("trigrf", kernel.weights(), q, k, v)
    assert not torch.allclose(plain[low], found[low], rtol=1e-3)


@grid
def test_gradients_reach_everything(component, matrix):
    kernel, inputs = kernel_of(component, matrix), [t.requires_grad_() for t in tokens(scale=0.25)]
    kernelised_attention(kernel, *inputs, None).square().sum().backward()
    parameters = list(kernel.parameters())
    assert len(parameters) == (3 if matrix == "fastfood" else 0)
    for tensor in (*inputs, *parameters):
        assert tensor.grad is not None
        assert bool(torch.isfinite(tensor.grad).all())
        assert float(tensor.grad.abs().max()) > 1e-8


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(component, masked):
    kernel, inputs = kernel_of(component, "iid", m=4, c=2), tokens(batch=1, heads=1, n=3, c=2, scale=0.3)
    mask = (torch.arange(3) < 2)[None, None, :, None] if masked else None
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *x: kernelised_attention(kernel, *x, mask), inputs)


def test_gradcheck_of_the_parameters_of_fastfood():
    kernel, x = kernel_of("oprf", "fastfood", m=5, c=3), tokens(batch=1, heads=1, n=3, c=3, scale=0.3)
    assert torch.autograd.gradcheck(lambda *_: kernelised_attention(kernel, *x, None), list(kernel.parameters()))


@grid
def test_padding_changes_nothing(component, matrix):
    kernel, x = kernel_of(component, matrix), tokens(scale=0.25)
    wide, mask = padded(*x)
    with torch.no_grad():
        alone = kernelised_attention(kernel, *x, None)
        n = alone.shape[2]
        assert same(kernelised_attention(kernel, *wide, mask)[:, :, :n], alone)
        # Power: so it does without the mask.
        assert not torch.allclose(kernelised_attention(kernel, *wide, None)[:, :, :n], alone, rtol=1e-3)


@grid
def test_padding_has_no_gradient(component, matrix):
    kernel, (wide, mask) = kernel_of(component, matrix), padded(*tokens(scale=0.25))
    wide = [t.requires_grad_() for t in wide]
    n = int(mask[0].sum())
    kernelised_attention(kernel, *wide, mask)[:, :, :n].square().sum().backward()
    for tensor in wide:
        assert not bool(tensor.grad[:, :, n:].any())


@grid
def test_structures_do_not_see_their_batch_mates(component, matrix):
    kernel, (q, k, v) = kernel_of(component, matrix), tokens(batch=1, scale=0.25)
    axes = torch.tensor([30.0, 0.01, 1.0, -8.0, 3.0], dtype=torch.float64)
    with torch.no_grad():
        alone = kernelised_attention(kernel, q, k, v, None)
        mates = kernelised_attention(
            kernel, torch.cat([q, axes * q]), torch.cat([k, 5 * k]), torch.cat([v, 100 * v]), None
        )
    assert same(mates[:1], alone)


@grid
def test_heads_do_not_see_each_other(component, matrix):
    kernel, x = kernel_of(component, matrix), tokens(batch=1, heads=3, scale=0.25)
    x = [t * torch.tensor([1.0, 6.0, 0.1], dtype=torch.float64)[:, None, None] for t in x]
    with torch.no_grad():
        together = kernelised_attention(kernel, *x, None)
        for h in range(3):
            assert same(together[:, h : h + 1], kernelised_attention(kernel, *(t[:, h : h + 1] for t in x), None))


@pytest.mark.parametrize("component", ["oprf", "saderf"])
def test_a_statistic_of_the_batch_is_found_out(component):
    """Power of the test of batch mates: A, or Ψ, averaged over the batch gives another answer."""

    def averaged(query, key, omega, mask):
        if component == "saderf":
            psi = (key.square().mean(dim=(0, 2)) / query.square().mean(dim=(0, 2)))[None, :, None] ** 0.25
            return optimised_positive(query * psi, key / psi, omega, mask)
        a = optimal_a(mean_square_of_sums(query, key, mask).mean(dim=0, keepdim=True), query.shape[-1])
        return generalised_features(query, omega, a), generalised_features(key, omega, a)

    wrong = RandomFeatureKernel(averaged, kernel_of(component, "iid").weights)
    q, k, _ = tokens(batch=1, scale=0.25)
    axes = torch.tensor([30.0, 0.01, 1.0, -8.0, 3.0], dtype=torch.float64)
    alone, mates = estimate(wrong, q, k), estimate(wrong, torch.cat([q, axes * q]), torch.cat([k, 5 * k]))
    torch.testing.assert_close(alone, estimate(kernel_of(component, "iid"), q, k))
    assert not torch.allclose(mates[:1], alone, rtol=1e-2)


@grid
def test_permuted_tokens_permute_the_result(component, matrix):
    kernel, (q, k, v) = kernel_of(component, matrix), tokens(scale=0.25)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        out = kernelised_attention(kernel, q, k, v, None)
        moved = kernelised_attention(kernel, *(t[:, :, order] for t in (q, k, v)), None)
        assert same(moved, out[:, :, order])
        # Keys and values move together or not at all.
        torn = kernelised_attention(kernel, q, k[:, :, order], v, None)
        assert not torch.allclose(torn, out, rtol=1e-3)


@grid
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_signs_of_the_features(component, matrix, scale):
    kernel, (q, k, _) = kernel_of(component, matrix), tokens(scale=scale)
    with torch.no_grad():
        phi_q, phi_k = (feature.values() for feature in kernel(q, k))
    assert phi_q.shape[-1] == phi_k.shape[-1] == kernel.n_features
    assert kernel.positive == (component != "trigrf")
    negative = bool((phi_q < 0).any()) and bool((phi_k < 0).any())
    assert negative == (component == "trigrf")


@grid
def test_single_precision_with_huge_queries_stays_finite(component, matrix):
    kernel = kernel_of(component, matrix).float()
    q, k, v = (t.float() for t in tokens(scale=1.0))
    inputs = [t.requires_grad_() for t in (100 * q, k, v)]
    out = kernelised_attention(kernel, *inputs, None)
    assert bool(torch.isfinite(out).all())
    out.square().sum().backward()
    for tensor in (*inputs, *kernel.parameters()):
        assert bool(torch.isfinite(tensor.grad).all())
    # Power: features without their shift do not.
    phi_q, phi_k = (feature.values() for feature in kernel(*inputs[:2]))
    assert not bool(torch.isfinite(phi_q @ (phi_k.transpose(-1, -2) @ v) / (phi_q @ phi_k.sum(2)[..., None])).all())


@pytest.mark.parametrize("component", ["posrf", "oprf", "saderf"])
def test_single_precision_keeps_its_accuracy_with_long_queries(component):
    """Against the logarithms of all pairs in double precision, for |q| near 60 and 16 wide heads."""
    kernel = kernel_of(component, "orf", m=32, c=16)
    q, k, v = torch.randn(3, 2, 2, 20, 16, generator=generator(50), dtype=torch.float64)
    q, k = 15 * q, 0.5 * k
    with torch.no_grad():
        log_q, log_k = (feature.exponent for feature in kernel(q, k))
        weights = torch.logsumexp(log_q[..., :, None, :] + log_k[..., None, :, :], dim=-1)
        wanted = torch.softmax(weights, dim=-1) @ v
        found = kernelised_attention(kernel.float(), *(t.float() for t in (q, k, v)), None).double()
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3
