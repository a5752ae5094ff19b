"""The sampled estimator: unbiased, invariant where it says so, and exactly as noisy as theory allows."""

import math

import numpy as np
import pytest
import torch

from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.far.sampled import SampledMethod
from tests.attention.structures import STRUCTURES, geometry_of, rotated


def sampled(rpe: GaussianRPE, seed: int, **options) -> SampledMethod:
    settings = {
        "n_frequencies": 64,
        "directions": "averaged",
        "radii": "random",
        "proposal": "mixture",
        "spectrum": "gaussian",
        "periodic_radius": 8.0,
    } | options
    return SampledMethod(rpe, seed=seed, **settings).double()


def wide_rpe() -> GaussianRPE:
    return GaussianRPE(3, 1.5, 4.0).double()


@pytest.mark.parametrize("directions", ["averaged", "random"])
@pytest.mark.parametrize("proposal", ["mixture", "own"])
def test_unbiased_over_draws(directions, proposal):
    """Mean over many draws within four standard errors of the closed form (FLT Theorem 4.1).

    For the paper's own density the variance is infinite unless every scale covers the spectrum: here it does.
    """
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    exact = ExactMethod().pair_basis(geometry, rpe())
    draws = []
    with torch.no_grad():
        for seed in range(300):
            method = sampled(rpe, seed, directions=directions, proposal=proposal)
            if proposal == "own":
                method.raw_scales.fill_(20.0)
            draws.append(method.pair_basis(geometry, rpe()))
    values = torch.stack(draws)
    standard_error = values.std(dim=0) / math.sqrt(len(draws))
    worst = ((values.mean(dim=0) - exact).abs() / standard_error.clamp(min=1e-12)).max()
    assert float(worst) < 4.5


def test_guard_bounds_the_importance_weights():
    """g/(r p) stays bounded with the mixture wherever a sample falls; with its own density it does not."""
    rpe, worst = wide_rpe(), {}
    for proposal in ("mixture", "own"):
        method = sampled(rpe, 0, proposal=proposal, n_frequencies=8)
        method.raw_scales.data.fill_(-20.0)
        method.epsilon.mul_(4.0)
        worst[proposal] = method.coefficients(rpe()).max().item()
    # p ≥ (1/r) N(ξ; 0, guard² I) and g falls faster than it for every width the RPE can take
    bound = (rpe().spectra(torch.zeros(1)) * (2 * math.pi * method.guard**2) ** 1.5).max().item()
    assert worst["mixture"] <= bound * (1 + 1e-9)
    assert worst["own"] > 10 * bound


def test_averaging_directions_reduces_the_variance():
    """Rao-Blackwell: the same draws of the radii, directions integrated out."""
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    with torch.no_grad():
        spread = {
            directions: torch.stack(
                [sampled(rpe, s, directions=directions).pair_basis(geometry, rpe()) for s in range(150)]
            ).var(dim=0)
            for directions in ("averaged", "random")
        }
    away = ~torch.eye(geometry.sizes[0], dtype=torch.bool)
    ratio = spread["averaged"][0][away] / spread["random"][0][away]
    assert ratio.max().item() < 1.2
    assert ratio.mean().item() < 0.6


@pytest.mark.parametrize("name", ["molecule", "slab", "slab_open", "triclinic"])
def test_averaged_directions_are_exactly_invariant_and_random_ones_are_not(name):
    rpe, atoms = wide_rpe(), STRUCTURES[name]()
    change = {}
    for directions in ("averaged", "random"):
        method = sampled(rpe, 0, directions=directions, n_frequencies=16)
        before = method.pair_basis(geometry_of([atoms]), rpe())
        after = method.pair_basis(geometry_of([rotated(atoms, 5)]), rpe())
        change[directions] = ((before - after).norm() / before.norm()).item()
    assert change["averaged"] < 1e-12
    assert change["random"] > 1e-2


@pytest.mark.parametrize("directions", ["averaged", "random"])
@pytest.mark.parametrize("name", ["slab", "triclinic", "tiny_cell"])
def test_periodic_estimator_does_not_see_which_image_was_written_down(name, directions):
    rpe, atoms = wide_rpe(), STRUCTURES[name]()
    method = sampled(rpe, 0, directions=directions)
    before = method.pair_basis(geometry_of([atoms]), rpe())
    moved = atoms.copy()
    moved.positions += np.random.default_rng(1).integers(-2, 3, size=(len(atoms), 3)) @ np.asarray(atoms.cell)
    other = moved.copy()
    other.set_cell(np.array([[1, 1, 0], [0, 1, 2], [1, 1, 1]]) @ np.asarray(atoms.cell), scale_atoms=False)
    for changed in (moved, other):
        after = method.pair_basis(geometry_of([changed]), rpe())
        assert ((before - after).abs().max() / before.abs().max()).item() < 1e-12


def test_stratified_radii_are_the_quantiles_of_chi_three():
    scipy_stats = pytest.importorskip("scipy.stats")
    method = sampled(wide_rpe(), 0, radii="stratified", n_frequencies=10)
    radii = np.sort(method.epsilon.norm(dim=1).numpy())
    np.testing.assert_allclose(radii, scipy_stats.chi.ppf((np.arange(10) + 0.5) / 10, df=3), rtol=1e-5)


def test_free_spectrum_has_one_weight_per_frequency():
    rpe, geometry = wide_rpe(), geometry_of([STRUCTURES["molecule"]()])
    method = sampled(rpe, 0, spectrum="free", n_frequencies=12)
    assert method.n_weights(rpe.n_basis) == 12
    basis = method.pair_basis(geometry, rpe())[0]
    kappa = 2 * math.pi * method.frequencies().norm(dim=1)
    distance = geometry.pair_displacements[0].norm(dim=-1)
    expected = torch.from_numpy(np.sinc((kappa * distance[..., None] / math.pi).detach().numpy()))
    torch.testing.assert_close(basis, expected)


def test_scales_are_positive_bounded_and_learn():
    rpe = wide_rpe()
    method = sampled(rpe, 0)
    assert bool((method.scales > 0).all())
    assert method.scales.max().item() <= method.scale_high
    basis = method.pair_basis(geometry_of([STRUCTURES["molecule"]()]), rpe())
    basis.square().sum().backward()
    assert bool((method.raw_scales.grad != 0).all())
