"""What theory says of the estimator: no bias, the bound of the variance, how errors fall (FLT appendix A)."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from hypothesis import given, settings
from hypothesis import strategies as st

from molflt.attention.config import AttentionConfig
from molflt.attention.frequencies.exact import ExactMethod
from molflt.attention.frequencies.quadrature import QuadratureMethod
from molflt.attention.frequencies.sampled import SampledMethod
from molflt.attention.rpe import GaussianRPE
from tests.attention.structures import STRUCTURES, geometry_of
from tests.attention.test_sampled import sampled, wide_rpe

WEIGHTS = torch.tensor([0.8, -0.5, 0.6], dtype=torch.float64)


def masks(n_frequencies: int, n_draws: int, geometry, rpe: GaussianRPE, change=None, **options) -> torch.Tensor:
    """(n_draws, n, n) estimated masks."""
    found = []
    with torch.no_grad():
        for seed in range(n_draws):
            method = sampled(rpe, seed, n_frequencies=n_frequencies, **options)
            if change is not None:
                change(method, seed)
            found.append(method.pair_basis(geometry, rpe())[0] @ WEIGHTS)
    return torch.stack(found)


def move_means(method: SampledMethod, seed: int) -> None:
    generator = torch.Generator().manual_seed(99)
    shift = torch.randn(method.free_means.shape, generator=generator, dtype=torch.float64)
    method.free_means.copy_(0.5 * method.scales[:-1, None] * shift)


def forget_means_in_the_density(method: SampledMethod, seed: int) -> None:
    move_means(method, seed)
    moved = method.frequencies()
    method.epsilon.copy_(moved / method.scales[:, None])
    method.free_means.zero_()


@pytest.mark.parametrize("proposal", ["mixture", "own"])
def test_learnable_means_keep_it_unbiased(proposal):
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0] @ WEIGHTS

    def change(method: SampledMethod, seed: int) -> None:
        if proposal == "own":
            method.raw_scales.fill_(20.0)
        move_means(method, seed)

    options = {"directions": "random", "proposal": proposal, "means": True}
    values = masks(64, 400, geometry, rpe, change, **options)
    error = values.std(dim=0) / math.sqrt(len(values))
    assert float(((values.mean(dim=0) - exact).abs() / error.clamp(min=1e-12)).max()) < 4.5


def test_a_density_that_forgets_the_means_is_biased():
    """Power of the test above."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0] @ WEIGHTS
    values = masks(64, 400, geometry, rpe, forget_means_in_the_density, directions="random", means=True)
    error = values.std(dim=0) / math.sqrt(len(values))
    assert float(((values.mean(dim=0) - exact).abs() / error.clamp(min=1e-12)).max()) > 10


def test_means_have_gradients_and_averaged_directions_have_none():
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    method = sampled(rpe, 0, directions="random", means=True)
    method.pair_basis(geometry, rpe()).sum().backward()
    assert float(method.free_means.grad.abs().max()) > 0
    with pytest.raises(ValueError, match="directions=random"):
        AttentionConfig(frequencies="sampled", means=True)
    with pytest.raises(ValueError, match="frequencies=sampled"):
        AttentionConfig(means=True)


@pytest.mark.parametrize("directions", ["random", "averaged"])
def test_errors_fall_as_the_root_of_the_number_of_frequencies(directions):
    """Independent radii with the balance heuristic: finite variance, slope −1/2."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["benzene"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0] @ WEIGHTS
    counts = [16, 64, 256, 1024]
    errors = [
        float((masks(r, 40, geometry, rpe, directions=directions) - exact).square().mean().sqrt()) for r in counts
    ]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4


def importance_bound(rpe: GaussianRPE, method: SampledMethod) -> float:
    """c = sup |g|/p for the mixture of the method's proposals, on a fine grid of |ξ|."""
    xi = torch.linspace(0, 12 * float(method.guard), 20_000, dtype=torch.float64)
    variance = method.scales.detach() ** 2
    density = ((2 * math.pi * variance) ** -1.5 * torch.exp(-(xi[:, None] ** 2) / (2 * variance))).mean(dim=1)
    g = (rpe().spectra(xi) @ WEIGHTS).abs().detach()
    return float((g / density)[density > 1e-200].max())


@pytest.mark.parametrize("directions", ["random", "averaged"])
def test_variance_bound(directions):
    """Theorem A.3, Eq. 11: Var ≤ (c² − f²)/r. Draws from every proposal in turn only help."""
    rpe, geometry, r = wide_rpe(), geometry_of([STRUCTURES["molecule"]()]), 32
    exact = ExactMethod().pair_basis(geometry, rpe())[0] @ WEIGHTS
    c = importance_bound(rpe, sampled(rpe, 0, n_frequencies=r))
    variance = masks(r, 300, geometry, rpe, directions=directions).var(dim=0)
    assert bool((variance <= (c**2 - exact**2) / r).all())


def test_a_single_narrow_density_has_no_bound():
    """Power: with a narrow proposal's own density |g|/p exceeds the mixture's c a thousandfold within g's width."""
    rpe = wide_rpe()
    method = sampled(rpe, 0, n_frequencies=32)
    c, xi, s = importance_bound(rpe, method), float(method.guard), float(method.scale_low)
    own = (2 * math.pi * s**2) ** -1.5 * math.exp(-(xi**2) / (2 * s**2))
    g = float((rpe().spectra(torch.tensor(xi, dtype=torch.float64)) @ WEIGHTS).abs())
    assert g / own > 1e3 * c


def test_frequencies_needed_grow_with_the_logarithm_of_the_atoms():
    """Theorem 4.2: the largest error over all pairs, at fixed r, grows like √log N, not like a power of N."""
    rpe, r = wide_rpe(), 64
    generator = np.random.default_rng(0)
    points = generator.normal(0, 3.0, size=(160, 3))
    errors = []
    for n in (10, 40, 160):
        geometry = geometry_of([Atoms(f"He{n}", points[:n])])
        exact = ExactMethod().pair_basis(geometry, rpe())[0].detach() @ WEIGHTS
        worst = (masks(r, 40, geometry, rpe, directions="random") - exact).abs().amax(dim=(1, 2))
        errors.append(float(worst.median()))
    # √log(N²/δ) from 10 to 160 atoms grows by 1.35 at δ = 1/2; √N by 4.
    assert errors[0] < errors[2] < 2.0 * errors[0]


@given(
    weights=st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda w: max(map(abs, w)) > 0.1),
    distance=st.floats(0.5, 8.0),
)
@settings(max_examples=15, deadline=None)
def test_averaging_directions_never_adds_variance(weights, distance):
    """Rao-Blackwell, on random spectra: 2,000 draws of one frequency for every scale."""
    rpe = wide_rpe()
    method = sampled(rpe, 0, n_frequencies=2)
    w = torch.tensor(weights, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        epsilon = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
        xi = float(method.guard) * epsilon
        density = (2 * math.pi * method.guard**2) ** -1.5 * torch.exp(-epsilon.square().sum(1) / 2)
        a = rpe().spectra(xi.norm(dim=1)) @ w / density
        random = a * torch.cos(2 * math.pi * xi[:, 0] * distance)
        averaged = a * torch.sinc(2 * xi.norm(dim=1) * distance)
    assert float(averaged.var()) <= float(random.var()) * 1.1


def test_quadrature_converges_exponentially():
    """The logarithm of the error falls at least linearly with the number of nodes, down to 1e-10."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["benzene"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0].detach() @ WEIGHTS
    counts, errors = [], []
    for tolerance in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
        method = QuadratureMethod(tolerance)
        counts.append(len(method.nodes(rpe(), 2 * geometry.positions.norm(dim=1).max(), tolerance)[0]))
        found = method.pair_basis(geometry, rpe())[0].detach() @ WEIGHTS
        errors.append(float((found - exact).abs().max()))
    assert errors[-1] < 1e-10
    assert counts[-1] < 6 * counts[0]
    slopes = np.diff(np.log(errors)) / np.diff(counts)
    assert (slopes < -0.2).all()
