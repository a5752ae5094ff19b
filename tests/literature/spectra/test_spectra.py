"""Every spectrum against its closed form f and its densities against SciPy's; never too thin a proposal."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from molflt.errors import InputError
from molflt.literature.spectra.bochner import GaussianKernel, LaplaceKernel, MaternKernel
from molflt.literature.spectra.gaussian_mixture import GaussianMixture
from molflt.literature.spectra.spectrum import features
from tests.literature.spectra.families import FAMILIES, box, differences

DEGREES = {"laplace": 1, "matern32": 3, "matern52": 5}
KERNELS = ("gaussian", *DEGREES)
any_dimension = pytest.mark.parametrize("dim", [1, 3])


def points(dim: int) -> torch.Tensor:
    return torch.randn(40, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def integral_1d(spectrum, delta, xi_max, period=60.0):
    """∫ g e^{2πiΔξ} dξ by the trapezoid rule; f has ended within the period, so only the end at ξ_max errs."""
    found = torch.zeros_like(delta[:, 0])
    for nodes in (torch.arange(1, int(xi_max * period), dtype=torch.float64) / period).split(200_000):
        found += torch.cos(2 * math.pi * delta * nodes) @ spectrum.transform(nodes[:, None])
    return (2 * found + spectrum.transform(delta.new_zeros(1))) / period


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_transform_is_the_fourier_transform_of_f_in_one_dimension(name):
    spectrum, delta = FAMILIES[name](1), differences(1)
    # The tail of g beyond ξ_max: like 1/ξ² for these, negligible for the others.
    slow = name in ("laplace", "box2", "box243")
    integral = integral_1d(spectrum, delta, 5e3 if slow else 1e3)
    bound = 5e-5 if slow else 1e-8
    assert float((integral - spectrum.value(delta)).abs().max()) < bound
    # Power: without the 2π it is another function.
    assert float((integral - spectrum.value(2 * math.pi * delta)).abs().max()) > 0.1


@torch.no_grad()
@any_dimension
@pytest.mark.parametrize("name", FAMILIES)
def test_unbiased_over_draws_even_and_of_the_value_it_says_at_zero(name, dim):
    """Each draw alone estimates f; the mean is within four standard errors (FLT Theorem 4.1)."""
    spectrum, delta, n_draws = FAMILIES[name](dim), differences(dim), 100_000
    xi = spectrum.sample(n_draws, torch.Generator().manual_seed(1))
    terms = n_draws * spectrum.coefficients(xi) * torch.cos(2 * math.pi * delta @ xi.T)
    # At Δ = 0 the terms of a kernel are all one.
    mean, error = terms.mean(dim=1), (terms.std(dim=1) / math.sqrt(n_draws)).clamp(min=1e-9)
    assert float(error.max()) < 0.02
    assert float(((mean - spectrum.value(delta)) / error).abs().max()) < 4.0
    assert float(((mean - spectrum.value(2 * math.pi * delta)) / error).abs().max()) > 100.0
    torch.testing.assert_close(spectrum.value(delta), spectrum.value(-delta), rtol=1e-13, atol=1e-15)
    at_zero = spectrum.value(torch.zeros(dim, dtype=torch.float64)).item()
    assert at_zero == pytest.approx(0.9 if name.startswith("mixture") else 1.0, rel=1e-6)


@torch.no_grad()
@any_dimension
@pytest.mark.parametrize("name", KERNELS)
def test_density_of_a_kernel_and_its_draws(name, dim):
    """|ξ|²/(ℓ s²) has Fisher's distribution; for a Gaussian it is a scaled χ²."""
    spectrum, xi = FAMILIES[name](dim), points(dim)
    shape = np.eye(dim) * spectrum.scale.item() ** 2
    if name == "gaussian":
        expected, law = stats.multivariate_normal.logpdf(xi.numpy(), cov=shape), stats.chi2(dim, scale=1 / dim)
    else:
        degrees = DEGREES[name]
        expected = stats.multivariate_t(shape=shape, df=degrees).logpdf(xi.numpy())
        law = stats.f(dim, degrees)
    np.testing.assert_allclose(spectrum.log_prob(xi).numpy(), expected, rtol=1e-12)
    drawn = spectrum.sample(20_000, torch.Generator().manual_seed(3)) / spectrum.scale
    squared = (drawn**2).sum(dim=1).numpy()
    assert stats.kstest(squared / dim, law.cdf).pvalue > 1e-3
    assert stats.kstest(squared / dim * 1.1, law.cdf).pvalue < 1e-3
    assert np.abs((drawn > 0).double().mean(dim=0).numpy() - 0.5).max() < 0.02


@torch.no_grad()
@any_dimension
def test_densities_of_the_mixture_and_of_the_box(dim):
    """Half at either sign of every centre, and the guard, all with equal shares; Student's t on every axis."""
    spectrum, xi = FAMILIES["mixture"](dim), points(dim)
    proposal = spectrum.proposal
    proposal.centres += 0.1
    proposal.log_scales -= 0.2
    density = stats.multivariate_normal.pdf(xi.numpy(), np.zeros(dim), np.eye(dim) * spectrum.guard.item() ** 2)
    for centre, scale in zip(proposal.centres.numpy(), proposal.scales.numpy(), strict=True):
        for sign in (1, -1):
            density += stats.multivariate_normal.pdf(xi.numpy(), sign * centre, np.eye(dim) * scale**2) / 2
    np.testing.assert_allclose(spectrum.log_prob(xi).exp().numpy(), density / 4, rtol=1e-12)
    spectrum = FAMILIES["box243"](dim)
    axes = zip(xi.T.numpy(), (1, 3, 2), spectrum.scales.tolist(), strict=False)
    expected = sum(stats.t.logpdf(x, df=degrees, scale=scale) for x, degrees, scale in axes)
    np.testing.assert_allclose(spectrum.log_prob(xi).numpy(), expected, rtol=1e-12)


@torch.no_grad()
@any_dimension
@pytest.mark.parametrize("log_scale", [-8.0, 0.0, 5.0])
def test_guard_bounds_the_weights_of_the_mixture_whatever_the_proposal_learns(dim, log_scale):
    spectrum = FAMILIES["mixture"](dim)
    generator = torch.Generator().manual_seed(4)
    spectrum.proposal.log_scales.fill_(log_scale)
    spectrum.proposal.centres.mul_(7.0)
    near = spectrum.means[:, None, :] * torch.linspace(-4, 4, 401, dtype=torch.float64)[:, None]
    xi = torch.cat([near.flatten(0, 1), 0.3 * torch.randn(2000, dim, generator=generator, dtype=torch.float64)])
    sides = (2 * math.pi * spectrum.widths * spectrum.guard) ** dim
    bound = (4 * math.exp(0.5) * (spectrum.weights.abs() * sides).sum()).item()
    assert (spectrum.transform(xi).abs() / spectrum.log_prob(xi).exp()).max().item() <= bound
    if log_scale < 0:
        # Power: a guard as wide as the widest lobe does not cover a lobe away from zero.
        thin = (1 / (2 * math.pi * spectrum.widths)).max()
        unguarded = spectrum.transform(xi).abs() / spectrum.proposal.log_prob(xi, thin / 3).exp()
        assert unguarded.max().item() > 10 * bound


@torch.no_grad()
@pytest.mark.parametrize("power", [2, 3, 4, 5, 6])
def test_tail_of_the_box_proposal_falls_no_faster_than_g(power):
    """Σ a_k is then of finite variance; with the tails of a Gaussian of the same scale it is not."""
    spectrum = box(power)(1)
    scale = spectrum.scales.item()
    xi = torch.logspace(-2, 4, 200_001, dtype=torch.float64)[:, None]
    ratio = spectrum.transform(xi).abs() / spectrum.log_prob(xi).exp()
    assert ratio.max().item() < 1.5
    # The tail counts: it does not fall to zero either, which a heavier one would do.
    assert ratio[xi[:, 0] > 1e3].max().item() > 0.05
    window = xi[(xi[:, 0] > 8 * scale) & (xi[:, 0] < 9 * scale)]
    gaussian = torch.from_numpy(stats.norm.pdf(window[:, 0].numpy(), scale=scale))
    assert (spectrum.transform(window).abs() / gaussian).max().item() > 1e6


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianKernel(0, 1.0), "at least 1"),
        (lambda: LaplaceKernel(3, -1.0), "above zero"),
        (lambda: LaplaceKernel(3, float("nan")), "above zero"),
        (lambda: MaternKernel(3, 1.0, 2.0), "choose 0.5, 1.5 or 2.5"),
        (lambda: GaussianMixture([1.0], [1.0, 2.0], [[0.0]]), "one of each"),
        (lambda: GaussianMixture([1.0, 1.0], [1.0, 2.0], [[0.0], [0.0, 1.0]]), "same number of components"),
        (lambda: GaussianMixture([1.0], [0.0], [[0.0]]), "above zero"),
        (lambda: GaussianMixture([], [], []), "above zero"),
        (
            lambda: features(GaussianKernel(1, 1.0), torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(4, 1)),
            "build the spectrum with dimension 3",
        ),
    ],
)
def test_impossible_spectra_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
