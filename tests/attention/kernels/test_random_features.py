"""FAVOR+: its formula, its mean and variance, the law of its matrix, and what is taken off exponents."""

import math

import pytest
import torch

from molflt.attention.kernels import FLOOR, Features, kernelised_attention, normalised, stable_features
from molflt.attention.kernels.random_features import (
    DrawnMatrix,
    RandomFeatureKernel,
    haar,
    orthogonal,
    positive,
    redraw,
)
from tests.attention.kernels.checks import (
    WIDTH,
    check_kernel,
    draws,
    estimates,
    generator,
    pairs,
    rows_are_gaussian,
    softmax_kernel,
    square_of_sums,
    standard_errors_off,
    tokens,
)


def iid(m: int, c: int, random: torch.Generator) -> torch.Tensor:
    return torch.randn(m, c, generator=random, dtype=torch.float64)


def kernel_of(m: int = 14, c: int = WIDTH, seed: int = 0, draw=orthogonal) -> RandomFeatureKernel:
    return RandomFeatureKernel(positive, DrawnMatrix(draw, m, c, generator(seed))).double()


def test_attention_is_the_dense_formula():
    kernel, (q, k, v) = kernel_of(), tokens()
    omega, found = kernel.weights(), kernelised_attention(kernel, q, k, v, None)
    for b in range(2):
        for h in range(2):
            phi_q, phi_k = (torch.exp(x[b, h] @ omega.T - x[b, h].square().sum(1)[:, None] / 2) for x in (q, k))
            weights = phi_q @ phi_k.T
            expected = weights @ v[b, h] / weights.sum(1, keepdim=True)
            torch.testing.assert_close(found[b, h], expected, rtol=1e-9, atol=1e-11)


def test_what_must_hold_for_every_kernel():
    check_kernel(kernel_of())


@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(masked):
    kernel, inputs = kernel_of(m=4, c=2), tokens(batch=1, heads=1, n=3, c=2)
    mask = (torch.arange(3) < 2)[None, None, :, None] if masked else None
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *x: kernelised_attention(kernel, *x, mask), inputs)


@pytest.mark.parametrize("draw", [orthogonal, iid])
def test_unbiased_for_the_softmax_kernel(draw):
    q, k, _ = tokens(batch=1, n=4, scale=0.35)
    values = estimates(positive, draws(draw, 1500, 8), q, k)
    assert standard_errors_off(values, softmax_kernel(q, k)) < 4.5
    # Power: three per cent more are found out.
    assert standard_errors_off(1.03 * values, softmax_kernel(q, k)) > 4.5


@pytest.mark.parametrize("m", [1, 16])
def test_variance_with_independent_rows(m):
    """(exp|q + k|² − 1) exp(q·k)²/m (arXiv 2106.12566, Lemma 2 and Eq. 14)."""
    q, k = pairs(8, 0.4)
    square, kernel = square_of_sums(q, k), softmax_kernel(q, k)
    values = estimates(positive, draws(iid, 80_000 // m, m), q, k).var(dim=0)
    ratio = values / (torch.expm1(square) * kernel**2 / m)
    assert 0.8 < float(ratio.min()) < float(ratio.max()) < 1.25
    # Power: exp(|q + k|²) without the one, or half of |q + k|², is another number.
    for wrong in (torch.exp(square) * kernel**2 / m, torch.expm1(square / 2) * kernel**2 / m):
        other = values / wrong
        assert not 0.8 < float(other.min()) < float(other.max()) < 1.25


def test_orthogonal_rows_never_vary_more_than_independent_ones():
    """m = c, where the rows are a whole block."""
    q, k = pairs(10, 0.8)
    independent, orthogonal_rows = (
        estimates(positive, draws(draw, 4000, WIDTH), q, k).var(dim=0) for draw in (iid, orthogonal)
    )
    assert float((orthogonal_rows / independent).mean()) < 0.95
    assert float((orthogonal_rows / independent).max()) < 1.15
    # Power: other independent rows are at one.
    again = estimates(positive, draws(iid, 4000, WIDTH, seed=12), q, k)
    assert float((again.var(dim=0) / independent).mean()) > 0.95


def test_a_row_of_the_matrix_is_gaussian():
    rows_are_gaussian(orthogonal)
    # Lengths within a block are independent of each other: those of one Gaussian matrix's own rows are not used.
    correlation = torch.corrcoef(draws(orthogonal, 1500, 4, 4).norm(dim=2).T) - torch.eye(4)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(1500)


def off_diagonal(block: torch.Tensor) -> float:
    """Largest cosine between two rows."""
    unit = torch.nn.functional.normalize(block, dim=1)
    return float((unit @ unit.T - torch.eye(len(block))).abs().max())


@pytest.mark.parametrize(("m", "c"), [(8, 4), (13, 5), (3, 6), (1, 1)])
def test_orthogonal_within_blocks_and_only_there(m, c):
    omega = orthogonal(m, c, generator())
    assert omega.shape == (m, c)
    assert max(off_diagonal(omega[start : start + c]) for start in range(0, m, c)) < 1e-10
    # Power: rows of different blocks are not, nor are independent ones.
    if m > c:
        assert off_diagonal(omega) > 1e-3
        assert off_diagonal(iid(m, c, generator())) > 1e-3


def test_haar_matrices_have_no_preferred_sign():
    """QR alone leaves the diagonal of R positive, and the first entry of Q of one sign more often."""
    random = generator()
    matrices = torch.stack([haar(3, random) for _ in range(2000)])
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand_as(matrices))
    assert float(matrices.mean(dim=0).abs().max()) < 4.5 / math.sqrt(3 * 2000)
    # E tr Q = 0 and E tr² = 1 on O(3).
    traces = matrices.diagonal(dim1=1, dim2=2).sum(1)
    assert abs(float(traces.mean())) < 4.5 / math.sqrt(2000)
    assert abs(float(traces.square().mean()) - 1) < 0.2
    plain = torch.linalg.qr(torch.randn(2000, 3, 3, generator=random, dtype=torch.float64))[0]
    assert float(plain.mean(dim=0).abs().max()) > 0.2


def test_drawn_matrices_are_saved_redrawn_in_place_and_hold_numbers_on_the_meta_device():
    matrix = DrawnMatrix(orthogonal, 9, WIDTH, generator())
    first = matrix().clone()
    assert torch.equal(DrawnMatrix(orthogonal, 9, WIDTH, generator())(), first)
    with torch.device("meta"):
        assert torch.equal(DrawnMatrix(orthogonal, 9, WIDTH, generator())(), first)
    held = matrix.state_dict()["omega"]
    matrix.redraw(generator(8))
    # In place: an optimiser or a graph that holds the buffer sees the new one.
    assert matrix().data_ptr() == held.data_ptr()
    assert torch.equal(matrix(), DrawnMatrix(orthogonal, 9, WIDTH, generator(8))())
    assert not torch.equal(matrix(), first)
    matrix = matrix.double()
    matrix.redraw(generator(8))
    # All the digits of double precision.
    assert not torch.equal(matrix().float().double(), matrix())


def test_redraw_finds_every_kernel_of_a_model():
    model = torch.nn.ModuleList([kernel_of(9, seed=seed) for seed in range(2)])
    before = [kernel.weights().clone() for kernel in model]
    redraw(model, generator(5))
    assert not any(torch.equal(kernel.weights(), old) for kernel, old in zip(model, before, strict=True))


@pytest.mark.parametrize("draw", [orthogonal, iid])
def test_many_features_come_near_softmax_attention(draw):
    """And neither the Gaussian kernel, nor exp(|x|) for exp(|x|²/2), nor a maximum off every key does."""
    q, k, v = tokens(n=8, scale=0.3)
    matrix = DrawnMatrix(draw, 100_000, WIDTH, generator(1)).double()

    def error(change) -> float:
        def features(query, key, omega, mask):
            found = positive(query, key, omega, mask)
            return tuple(Features(change(x, f.exponent)) for f, x in zip(found, (query, key), strict=True))

        out = kernelised_attention(RandomFeatureKernel(features, matrix), q, k, v, None)
        return float((out - torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v).square().mean().sqrt())

    def square(x):
        return x.square().sum(-1, keepdim=True)

    right = error(lambda x, exponent: exponent)
    assert right < 0.004
    assert error(lambda x, exponent: exponent - square(x) / 2) > 5 * right
    assert error(lambda x, exponent: exponent - square(x).sqrt() + square(x) / 2) > 5 * right
    assert error(lambda x, exponent: exponent - exponent.amax(dim=-1, keepdim=True)) > 5 * right


def test_what_is_taken_off_the_exponents_cancels_and_is_large_enough():
    query, key = kernel_of()(*tokens(scale=0.7)[:2])

    def cancels(phi_q: torch.Tensor, phi_k: torch.Tensor) -> bool:
        """Whether every row of φ_Q φ_Kᵀ is that of the features themselves but for a factor."""
        ratio = phi_q @ phi_k.transpose(-1, -2) / (query.values() @ key.values().transpose(-1, -2))
        return torch.allclose(ratio, ratio[..., :1], rtol=1e-9, atol=0)

    phi_q, _ = found = stable_features(query, key, None)
    assert cancels(*found)
    # Power: a maximum per key, and one per feature that the queries are not told of, do not.
    assert not cancels(phi_q, key.values(key.exponent.amax(dim=-1, keepdim=True)))
    own = query.values(query.exponent.amax(dim=-1, keepdim=True))
    assert not cancels(own, key.values(key.exponent.amax(dim=-2, keepdim=True)))
    # However long tokens are, nothing exceeds one, and padding, even longer, is zero.
    q, k, _ = tokens(scale=40.0)
    mask = torch.ones(2, 1, 6, 1, dtype=torch.bool)
    mask[1, 0, 4:] = False
    phi_q, phi_k = stable_features(*kernel_of()(q, torch.where(mask, k, 1e3 * k), mask), mask)
    assert float(phi_q.max()) <= 1.0
    assert float(phi_k.max()) <= 1.0
    assert not bool(phi_k[1, :, 4:].any())
    assert bool(phi_k[1, :, :4].any())


def test_features_without_a_shift_overflow():
    """Power of the check of huge queries."""
    q, k, v = (t.float() for t in tokens(scale=1.0))
    phi_q, phi_k = (feature.values() for feature in kernel_of().float()(100 * q, k))
    assert not bool(torch.isfinite(phi_q @ (phi_k.transpose(-1, -2) @ v) / (phi_q @ phi_k.sum(2)[..., None])).all())


def test_single_precision_keeps_its_accuracy_with_long_queries():
    """Against the logarithms of all pairs in double precision, for |q| near 60 and 16 wide heads."""
    kernel = kernel_of(m=32, c=16)
    q, k, v = torch.randn(3, 2, 2, 20, 16, generator=generator(50), dtype=torch.float64)
    q, k = 15 * q, 0.5 * k
    log_q, log_k = (feature.exponent for feature in kernel(q, k))
    weights = torch.logsumexp(log_q[..., :, None, :] + log_k[..., None, :, :], dim=-1)
    found = kernelised_attention(kernel.float(), *(t.float() for t in (q, k, v)), None).double()
    wanted = torch.softmax(weights, dim=-1) @ v
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3


def test_a_structure_without_tokens_is_zero():
    mask = torch.ones(2, 1, 6, 1, dtype=torch.bool)
    mask[1] = False
    inputs = [t.requires_grad_() for t in tokens()]
    out = kernelised_attention(kernel_of(), *inputs, mask)
    assert not bool(out[1].any())
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(out.sum(), inputs))


def test_a_normaliser_of_nothing_is_zero_with_a_finite_gradient():
    numerator = torch.tensor([[1.0], [2.0], [0.0]], requires_grad=True)
    normaliser = torch.tensor([[4.0], [1e-30], [0.0]], requires_grad=True)
    out = normalised(numerator, normaliser)
    assert out.flatten().tolist() == [0.25, 0.0, 0.0]
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(out.sum(), [numerator, normaliser]))


def test_a_bounded_normaliser_is_raised_to_the_floor():
    found = normalised(torch.ones(3, 1), torch.tensor([[0.5], [0.001], [-3.0]]), torch.ones(3, 1))
    torch.testing.assert_close(found, torch.tensor([[2.0], [1 / FLOOR], [1 / FLOOR]]))
