"""FLT on sequences and grids: its masks against spectra and closed forms, its attention against dense formulas."""

import math

import pytest
import torch

from scripts.literature.sequence.fourier_rpe import GaussianMixtureRpe, LocalRpe
from scripts.literature.sequence.positioned_kernels import ConcatenatedKernel, token_positions
from scripts.literature.sequence.prefix_sums import sequence_attention
from tests.attention.kernels.checks import standard_errors_off
from tests.scripts.literature.sequence.oracles import (
    HEAD_DIM,
    KERNELS,
    N_HEADS,
    assert_differs,
    assert_same,
    dense,
    generator,
    kernel_of,
    kernel_weights,
    places,
    tokens,
)

FAMILIES = [GaussianMixtureRpe, LocalRpe]
N_FREQUENCIES = 4
either_family = pytest.mark.parametrize("family", FAMILIES)
either_shape = pytest.mark.parametrize("shape", [(7,), (2, 3)])
either_way = pytest.mark.parametrize("causal", [False, True])


def rpe_of(family, dim, seed=0, n_frequencies=N_FREQUENCIES, unit=5.0):
    """The same parameters for every seed, other frequencies; T = 3."""
    rpe = family(N_HEADS, 3, n_frequencies, generator(seed), dim=dim, unit=unit).double()
    rpe.xi = torch.randn(n_frequencies, dim, generator=generator(seed), dtype=torch.float64)
    for i, parameter in enumerate(rpe.parameters()):
        drawn = torch.randn(parameter.shape, generator=generator(100 + i), dtype=torch.float64)
        parameter.data = 0.5 * drawn - (0.7 if parameter is getattr(rpe, "log_widths", None) else 0.0)
    return rpe


def spectrum(rpe, head, xi):
    """g of a head at one frequency, by the paper's formulas."""
    weights = rpe.weights[head].tolist()
    if isinstance(rpe, GaussianMixtureRpe):
        terms = zip(weights, rpe.means[head].tolist(), rpe.log_widths[head].exp().tolist(), strict=True)
        return sum(w * math.exp(-(math.dist(xi, mu) ** 2) / (2 * s**2)) for w, mu, s in terms)
    return sum(
        w * math.prod(math.sin(2 * math.pi * r * x) / (math.pi * x) for r, x in zip(radii, xi, strict=True))
        for w, radii in zip(weights, rpe.log_radii[head].exp().tolist(), strict=True)
    )


def closed_form(rpe, displacements):
    """f of every head, by the paper's formulas: (..., ℓ) in tokens → (heads, ...)."""
    x = displacements[..., None, None, :] / rpe.unit
    if isinstance(rpe, LocalRpe):
        terms = (x.abs() <= rpe.log_radii.exp()).all(dim=-1)
    else:
        variance = torch.exp(2 * rpe.log_widths)
        envelope = torch.exp(-2 * math.pi**2 * variance * x.square().sum(dim=-1))
        phase = 2 * math.pi * (x * rpe.means).sum(dim=-1)
        terms = (2 * math.pi * variance) ** (rpe.dim / 2) * envelope * phase.cos()
    return (rpe.weights * terms).sum(dim=-1).movedim(-1, 0)


def estimate(rpe, shape):
    """Σ_k g(ξ_k)/(r p(ξ_k)) cos(2πξ_k·(x_i − x_j)), term by term."""
    n = math.prod(shape)
    matrix = torch.zeros(N_HEADS, n, n, dtype=torch.float64)
    for xi in rpe.xi.tolist():
        p = math.prod(math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in xi)
        for i, here in enumerate(places(shape)):
            for j, there in enumerate(places(shape)):
                phase = 2 * math.pi * sum(x * (a - b) / rpe.unit for x, a, b in zip(xi, here, there, strict=True))
                for head in range(N_HEADS):
                    matrix[head, i, j] += spectrum(rpe, head, xi) / (len(rpe.xi) * p) * math.cos(phase)
    return matrix


def positions_of(shape):
    return token_positions(math.prod(shape), None if len(shape) == 1 else shape, torch.device("cpu"))


@either_family
@either_shape
def test_products_of_position_features_are_the_sum_of_cosines(family, shape):
    """Exactly, with signs of either kind; with the sign on both sides or on none it is another matrix."""
    assert positions_of(shape).tolist() == [list(place) for place in places(shape)]
    rpe = rpe_of(family, len(shape))
    query, key = rpe(positions_of(shape))
    wanted = estimate(rpe, shape)
    torch.testing.assert_close((query @ key.transpose(-1, -2)).detach(), wanted, rtol=1e-10, atol=1e-10)
    a = rpe.coefficients()
    assert (a < 0).any()
    assert (a > 0).any()
    both = query * a.sign().repeat(1, 2)[:, None, :] @ key.transpose(-1, -2)
    assert_differs(both, wanted)
    assert_differs(query @ query.transpose(-1, -2), wanted)


@pytest.mark.parametrize("shape", [(8,), (3, 3)])
def test_gaussian_mixture_is_unbiased(shape):
    """For f in closed form (Theorem 4.1), and not for one a few per cent off or in another unit."""
    rpe, x = rpe_of(GaussianMixtureRpe, len(shape)), positions_of(shape)
    assert float(rpe.log_widths.detach().max()) < math.log(2) / 2, "the variance must be finite"
    draws = []
    with torch.no_grad():
        for seed in range(400):
            rpe.xi = torch.randn(64, rpe.dim, generator=generator(1000 + seed), dtype=torch.float64)
            query, key = rpe(x)
            draws.append(query @ key.transpose(-1, -2))
        values, displacements = torch.stack(draws), x[:, None, :] - x[None, :, :]
        wanted = closed_form(rpe, displacements)
        assert standard_errors_off(values, wanted) < 4.5
        assert standard_errors_off(values, 1.1 * wanted) > 4.5
        assert standard_errors_off(values, closed_form(rpe, 1.3 * displacements)) > 4.5


@pytest.mark.parametrize(
    ("family", "dim", "xi_max", "step", "tolerance"),
    [(GaussianMixtureRpe, 1, 14, 0.1, 1e-9), (GaussianMixtureRpe, 2, 14, 0.1, 1e-9), (LocalRpe, 1, 400, 0.01, 5e-3)],
)
def test_closed_form_is_the_transform_of_the_spectrum(family, dim, xi_max, step, tolerance):
    """By the trapezoid rule; roughly for the indicator, whose integral converges like 1/ξ_max."""
    rpe = rpe_of(family, dim)
    xi = torch.cartesian_prod(*[torch.arange(-xi_max, xi_max, step, dtype=torch.float64)] * dim).reshape(-1, dim)
    for offset in (0.0, 0.7, 3.1, 6.0):
        displacement = torch.full((dim,), offset, dtype=torch.float64)
        cosines = torch.cos(2 * math.pi * xi @ displacement / rpe.unit)
        integral = (rpe.transform(xi) * cosines).sum(dim=-1) * step**dim
        torch.testing.assert_close(integral, closed_form(rpe, displacement), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KERNELS)
@either_way
@either_shape
def test_concatenation_equals_dense_formula(name, causal, shape):
    """Features of [√|a| waves, q] and [±√|a| waves, k] written out here, then the sum over all pairs."""
    rpe, content = rpe_of(GaussianMixtureRpe, len(shape)), kernel_of(name, HEAD_DIM + 2 * N_FREQUENCIES)
    q, k, v = tokens(math.prod(shape))
    kernel = ConcatenatedKernel(content, rpe, None if len(shape) == 1 else shape)
    found = sequence_attention(kernel, q, k, v, causal)
    phase = 2 * math.pi * positions_of(shape) / rpe.unit @ rpe.xi.T
    a = rpe.coefficients().repeat(1, 2)[:, None, :]
    waves = (torch.cat([phase.cos(), phase.sin()], dim=-1) * a.abs().sqrt()).expand(2, -1, -1, -1)

    def formula(waves_k, causal):
        weights, bound = kernel_weights(content, torch.cat([waves, q], dim=-1), torch.cat([waves_k, k], dim=-1))
        return dense(weights, v, causal, None if content.positive else bound)

    assert_same(found, formula(waves * a.sign(), causal), (q, k, v, *rpe.parameters()), 1e-9)
    assert_differs(found, formula(waves * a.sign(), not causal))
    assert_differs(found, formula(waves, causal))


@either_family
def test_the_start_and_gradients_where_a_coefficient_is_zero(family):
    """Heads start with masks of their own and signs of either kind."""
    a = family(4, 3, 32, generator()).coefficients()
    assert a.shape == (4, 32)
    assert not torch.allclose(a[0], a[1])
    assert (a != 0).all()
    rpe = rpe_of(family, 1)
    rpe.weights.data.zero_()
    query, key = rpe(positions_of((5,)))
    assert torch.equal(query @ key.transpose(-1, -2), torch.zeros(N_HEADS, 5, 5, dtype=torch.float64))
    grads = torch.autograd.grad((query + key).sum(), list(rpe.parameters()))
    assert all(torch.isfinite(g).all() for g in grads)


def test_default_unit_resolves_the_sequence_and_that_of_the_paper_does_not():
    """No drawn wave is shorter than two tokens with the default, six in ten are with tokens one unit apart."""
    rpe = LocalRpe(1, 1, 10_000, generator())
    assert float(rpe.xi.abs().max()) / rpe.unit < 0.5
    assert float((rpe.xi.abs() > 0.5).double().mean()) == pytest.approx(0.617, abs=0.02)
