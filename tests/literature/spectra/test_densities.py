"""The densities frequencies are drawn from: normalised as scipy has them, drawn as they say, never too thin."""

import math

import numpy as np
import pytest
import torch

from tests.literature.spectra.families import FAMILIES, box

stats = pytest.importorskip("scipy.stats")

DEGREES = {"laplace": 1, "matern32": 3, "matern52": 5}


def points(dim: int) -> torch.Tensor:
    return torch.randn(40, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", [*DEGREES, "gaussian"])
def test_density_of_a_kernel(name, dim):
    spectrum, xi = FAMILIES[name](dim), points(dim)
    shape = np.eye(dim) * spectrum.scale.item() ** 2
    known = stats.multivariate_t(shape=shape, df=DEGREES[name]) if name in DEGREES else stats.multivariate_normal
    expected = known.logpdf(xi.numpy(), **({} if name in DEGREES else {"cov": shape}))
    np.testing.assert_allclose(spectrum.log_prob(xi).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", [*DEGREES, "gaussian"])
def test_draws_of_a_kernel_follow_its_density(name, dim):
    """|ξ|²/(ℓ s²) has Fisher's distribution; for a Gaussian it is a scaled χ²."""
    spectrum = FAMILIES[name](dim)
    with torch.no_grad():
        xi = spectrum.sample(20_000, torch.Generator().manual_seed(3)) / spectrum.scale
    squared = (xi**2).sum(dim=1).numpy()
    distribution = stats.f(dim, DEGREES[name]) if name in DEGREES else stats.chi2(dim, scale=1 / dim)
    assert stats.kstest(squared / dim, distribution.cdf).pvalue > 1e-3
    assert stats.kstest(squared / dim * 1.1, distribution.cdf).pvalue < 1e-3
    assert np.abs((xi > 0).double().mean(dim=0).numpy() - 0.5).max() < 0.02


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_density_of_the_mixture(dim):
    """Half at either sign of every centre, and the guard, all with equal shares."""
    spectrum, xi = FAMILIES["mixture"](dim), points(dim)
    with torch.no_grad():
        spectrum.proposal.centres += 0.1
        spectrum.proposal.log_scales -= 0.2
        density = np.zeros(len(xi))
        for centre, scale in zip(spectrum.proposal.centres.numpy(), spectrum.proposal.scales.numpy(), strict=True):
            for sign in (1, -1):
                density += stats.multivariate_normal.pdf(xi.numpy(), sign * centre, np.eye(dim) * scale**2) / 2
        density += stats.multivariate_normal.pdf(xi.numpy(), np.zeros(dim), np.eye(dim) * spectrum.guard.item() ** 2)
        np.testing.assert_allclose(spectrum.log_prob(xi).exp().numpy(), density / 4, rtol=1e-12)


@pytest.mark.parametrize("name", ["mixture_learnt", "box2", "box3", "box6"])
def test_draws_follow_the_density_in_one_dimension(name):
    """Either sign included, which cosines cannot see. The distribution function by integrating the density."""
    spectrum = FAMILIES[name](1)
    if name == "mixture_learnt":
        spectrum.proposal.centres.data.mul_(4.0)
    end = {"box2": 2000.0, "box3": 60.0}.get(name, 10.0)
    grid = torch.linspace(-end, end, 1_000_001, dtype=torch.float64)
    with torch.no_grad():
        density = spectrum.log_prob(grid[:, None]).exp().numpy()
        xi = spectrum.sample(20_000, torch.Generator().manual_seed(6))[:, 0].numpy()
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)]) * (2 * end / 1_000_000)
    assert below[-1] == pytest.approx(1.0, abs=1e-3)
    assert stats.kstest(xi, lambda x: np.interp(x, grid.numpy(), below)).pvalue > 1e-3
    assert stats.kstest(1.15 * xi + 0.01, lambda x: np.interp(x, grid.numpy(), below)).pvalue < 1e-3


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_density_of_the_box(dim):
    spectrum, xi = FAMILIES["box243"](dim), points(dim)
    expected = sum(
        stats.t.logpdf(xi[:, j].numpy(), df=(1, 3, 2)[j], scale=spectrum.scales[j].item()) for j in range(dim)
    )
    np.testing.assert_allclose(spectrum.log_prob(xi).detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("log_scale", [-8.0, 0.0, 5.0])
def test_guard_bounds_the_weights_of_the_mixture_whatever_the_proposal_learns(dim, log_scale):
    spectrum = FAMILIES["mixture"](dim)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        spectrum.proposal.log_scales.fill_(log_scale)
        spectrum.proposal.centres.mul_(7.0)
        near = spectrum.means[:, None, :] * torch.linspace(-4, 4, 401, dtype=torch.float64)[:, None]
        xi = torch.cat([near.flatten(0, 1), 0.3 * torch.randn(2000, dim, generator=generator, dtype=torch.float64)])
        ratio = spectrum.transform(xi).abs() / spectrum.log_prob(xi).exp()
        sides = (2 * math.pi * spectrum.widths * spectrum.guard) ** dim
        bound = (4 * math.exp(0.5) * (spectrum.weights.abs() * sides).sum()).item()
        assert ratio.max().item() <= bound
        # A guard as wide as the widest lobe does not cover a lobe away from zero.
        thin = (1 / (2 * math.pi * spectrum.widths)).max()
        unguarded = spectrum.transform(xi).abs() / spectrum.proposal.log_prob(xi, thin / 3).exp()
        if log_scale < 0:
            assert unguarded.max().item() > 10 * bound


@pytest.mark.parametrize("power", [2, 3, 4, 5, 6])
def test_tail_of_the_box_proposal_falls_no_faster_than_g(power):
    """Σ a_k is then of finite variance; with the tails of a Gaussian of the same scale it is not."""
    spectrum = box(power)(1)
    scale = spectrum.scales.item()
    xi = torch.logspace(-2, 4, 200_001, dtype=torch.float64)[:, None]
    with torch.no_grad():
        ratio = spectrum.transform(xi).abs() / spectrum.log_prob(xi).exp()
        assert ratio.max().item() < 1.5
        # the tail counts: it does not fall to zero either, which a heavier one would do
        assert ratio[xi[:, 0] > 1e3].max().item() > 0.05
        window = xi[(xi[:, 0] > 8 * scale) & (xi[:, 0] < 9 * scale)]
        gaussian = torch.from_numpy(stats.norm.pdf(window[:, 0].numpy(), scale=scale))
        assert (spectrum.transform(window).abs() / gaussian).max().item() > 1e6
