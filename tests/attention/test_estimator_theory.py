"""What theory says of the estimator: no bias, the bound of the variance, how errors fall (FLT appendix A)."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from hypothesis import given, settings
from hypothesis import strategies as st

from molflt.attention.config import AttentionConfig
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.members import GaussianBasis, GaussianRPE
from molflt.attention.far.quadrature import QuadratureMethod
from molflt.attention.far.sampled import SampledMethod
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
    assert float(((values.mean(dim=0) - exact).abs() / error.clamp(min=1e-12)).max().detach()) < 4


def test_a_density_that_forgets_the_means_is_biased():
    """Power of the test above."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0] @ WEIGHTS
    values = masks(64, 400, geometry, rpe, forget_means_in_the_density, directions="random", means=True)
    error = values.std(dim=0) / math.sqrt(len(values))
    assert float(((values.mean(dim=0) - exact).abs() / error.clamp(min=1e-12)).max().detach()) > 10


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


def test_the_published_density_falls_more_slowly():
    """Power: the variance of each frequency's own density is infinite, and even the median error falls slower."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["benzene"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0] @ WEIGHTS
    counts = [16, 64, 256]
    errors = [
        float((masks(r, 40, geometry, rpe, directions="random", proposal="own") - exact).norm(dim=(1, 2)).median())
        for r in counts
    ]
    assert np.polyfit(np.log(counts), np.log(errors), 1)[0] > -0.35


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
    bound = (c**2 - exact**2) / r
    assert bool((variance <= bound).all())
    # Power: the same frequencies with their own densities break it.
    own = masks(r, 300, geometry, rpe, directions=directions, proposal="own").var(dim=0)
    assert bool((own > 4 * bound).any())


def test_a_single_narrow_density_has_no_bound():
    """Power: with a narrow proposal's own density |g|/p exceeds the mixture's c a thousandfold within g's width."""
    rpe = wide_rpe()
    method = sampled(rpe, 0, n_frequencies=32)
    c, xi, s = importance_bound(rpe, method), float(method.guard), float(method.scale_low)
    own = (2 * math.pi * s**2) ** -1.5 * math.exp(-(xi**2) / (2 * s**2))
    g = float((rpe().spectra(torch.tensor(xi, dtype=torch.float64)) @ WEIGHTS).abs())
    assert g / own > 1e3 * c


def grows_like_the_logarithm(errors: list[float]) -> bool:
    """Whether ε² of Eq. 18, ε² = (4c²/r) log(4L²/δ), rises by equal steps where L rises by equal factors."""
    steps = np.diff(np.square(errors))
    return bool((steps > 0).all() and steps.max() < 2 * steps.min())


def test_frequencies_needed_grow_with_the_logarithm_of_the_atoms():
    """Theorem 4.2: the largest error over all pairs, for atoms so far apart that the pairs hardly share errors."""
    rpe, generator, errors = wide_rpe(), np.random.default_rng(0), []
    for n in (5, 20, 80, 320):
        geometry = geometry_of([Atoms(f"He{n}", generator.normal(0, 30.0, size=(n, 3)))])
        exact = ExactMethod().pair_basis(geometry, rpe())[0].detach() @ WEIGHTS
        worst = (masks(64, 20, geometry, rpe, directions="random") - exact).abs().amax(dim=(1, 2))
        errors.append(float(worst.median()))
    assert grows_like_the_logarithm(errors)


@pytest.mark.parametrize("proposal", ["mixture", "own"])
def test_largest_error_of_independent_pairs(proposal):
    """The union bound of Theorem 4.2 with a draw for each pair; power: unbounded |g|/p grows like a power instead."""
    rpe, delta = wide_rpe(), torch.tensor([2.5, 0.0, 0.0], dtype=torch.float64)
    errors = []
    with torch.no_grad():
        exact = float(rpe().values(delta.square().sum()) @ WEIGHTS)
        for seed in range(1024):
            method = sampled(rpe, seed, n_frequencies=16, directions="random", proposal=proposal)
            a = method.coefficients(rpe()) @ WEIGHTS
            errors.append(abs(float(torch.cos(2 * math.pi * method.frequencies() @ delta) @ a) - exact))
    worst = [float(np.median(np.reshape(errors, (-1, n)).max(axis=1))) for n in (4, 16, 64, 256)]
    assert grows_like_the_logarithm(worst) == (proposal == "mixture")


def one_frequency(method: SampledMethod, basis: GaussianBasis, weights: list[float], distance: float) -> torch.Tensor:
    """(2, r) terms a_k cos(2πξ_k·Δ) and a_k sinc(2π|ξ_k||Δ|) of f̂, whose variances the sums inherit."""
    with torch.no_grad():
        xi = method.frequencies()
        a = method.coefficients(basis) @ torch.tensor(weights, dtype=torch.float64)
        return torch.stack(
            [a * torch.cos(2 * math.pi * xi[:, 0] * distance), a * torch.sinc(2 * xi.norm(dim=1) * distance)]
        )


@given(
    weights=st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda w: max(map(abs, w)) > 0.1),
    distance=st.floats(0.5, 8.0),
)
@settings(max_examples=15, deadline=None)
def test_averaging_directions_never_adds_variance(weights, distance):
    """Rao-Blackwell, on random spectra."""
    rpe = wide_rpe()
    random, averaged = one_frequency(sampled(rpe, 0, n_frequencies=1000), rpe(), weights, distance)
    assert float(averaged.var()) <= float(random.var()) * 1.1


def test_averaging_directions_takes_variance_away():
    """Power: exchanged, the two would be told apart."""
    rpe = wide_rpe()
    random, averaged = one_frequency(sampled(rpe, 0, n_frequencies=1000), rpe(), [0.8, -0.5, 0.6], 2.0)
    assert float(averaged.var()) < float(random.var()) / 4


def test_quadrature_converges_exponentially():
    """The logarithm of the error falls at least linearly with the number of nodes, down to 1e-10."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["benzene"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())[0].detach() @ WEIGHTS
    diameter, distance = 2 * geometry.positions.norm(dim=1).max(), geometry.pair_displacements[0].norm(dim=-1)
    counts, errors, coarse = [], [], []
    for tolerance in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
        method = QuadratureMethod(tolerance)
        xi, node_weights = method.nodes(rpe(), diameter, tolerance)
        counts.append(len(xi))
        errors.append(float((method.pair_basis(geometry, rpe())[0].detach() @ WEIGHTS - exact).abs().max()))
        every_other = torch.sinc(2 * xi[1::2] * distance[..., None]) @ (2 * node_weights[1::2] @ WEIGHTS)
        coarse.append(float((every_other - exact).abs().max().detach()))
    assert errors[-1] < 1e-10
    assert counts[-1] < 6 * counts[0]
    assert (np.diff(np.log(errors)) / np.diff(counts) < -0.2).all()
    # Power: nodes that reach as far but are twice as far apart do not converge.
    assert not (np.diff(np.log(coarse)) / np.diff(counts) < -0.2).all()
    assert coarse[-1] > 1e-6
