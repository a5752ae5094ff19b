"""The sampled estimator: unbiased, of bounded weights, and periodic where structures are (FLT appendix A)."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi

from molflt.attention.far.members import GaussianRPE
from molflt.attention.far.undamped import UndampedMethod, plane_waves, wave_features
from molflt.attention.far.waves import OnWaves
from molflt.attention.layout import Plan
from tests.attention.far.oracles import basis_on_pairs, geometry_for, in_another_cell, written_in_another_image
from tests.attention.layers import Layer, check_batch_mates_change_nothing
from tests.attention.structures import STRUCTURES, geometry_of

WEIGHTS = torch.tensor([0.8, -0.5, 0.6], dtype=torch.float64)


def sampled(rpe, seed, **options):
    chosen = {
        "n_frequencies": 64,
        "directions": "averaged",
        "radii": "random",
        "proposal": "mixture",
        "spectrum": "gaussian",
        "periodic_radius": 8.0,
    } | options
    return UndampedMethod(rpe, seed=seed, **chosen).double()


def estimated(method, atoms, rpe):
    """(n, n, n_weights): the estimate of every basis function on all pairs."""
    with torch.no_grad():
        plan = Plan(6.0, far=method.plan(rpe(), dense=False))
    geometry = geometry_of([atoms], plan=plan)
    (field,) = method.fields(geometry, rpe())
    each = torch.eye(method.n_weights(rpe.n_basis), dtype=torch.float64)
    return field.matrix(each)[:, 0].movedim(0, -1)


def wide_rpe():
    return GaussianRPE(3, 1.5, 4.0).double()


def masks(n_frequencies, n_draws, atoms, change=None, **options):
    """(n_draws, n, n) estimated masks."""
    rpe, found = wide_rpe(), []
    with torch.no_grad():
        for seed in range(n_draws):
            method = sampled(rpe, seed, n_frequencies=n_frequencies, **options)
            if change is not None:
                change(method)
            found.append(estimated(method, atoms, rpe) @ WEIGHTS)
    return torch.stack(found)


def exact_mask(atoms):
    rpe = wide_rpe()
    return (basis_on_pairs(geometry_for([atoms], rpe, "exact"), rpe, "exact") @ WEIGHTS).detach()


def wide_scales(method):
    """The variance of a frequency's own density is infinite unless every scale covers the spectrum: here it does."""
    method.raw_scales.fill_(20.0)


def move_means(method):
    generator = torch.Generator().manual_seed(99)
    shift = torch.randn(method.free_means.shape, generator=generator, dtype=torch.float64)
    method.free_means.copy_(0.5 * method.scales[:-1, None] * shift)


def wide_scales_and_means(method):
    wide_scales(method)
    move_means(method)


MEANS = {"directions": "random", "means": True}


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"directions": "averaged"}, None),
        ({"directions": "random"}, None),
        ({"directions": "averaged", "proposal": "own"}, wide_scales),
        ({"directions": "random", "proposal": "own"}, wide_scales),
        (MEANS, move_means),
        ({**MEANS, "proposal": "own"}, wide_scales_and_means),
    ],
)
def test_unbiased_over_draws(options, change):
    """Mean over many draws within some standard errors of the closed form (FLT Theorem 4.1)."""
    atoms = STRUCTURES["molecule"]()
    values = masks(64, 300, atoms, change, **options)
    error = (values.std(dim=0) / math.sqrt(len(values))).clamp(min=1e-12)
    assert float(((values.mean(dim=0) - exact_mask(atoms)).abs() / error).max()) < 4.5


def test_guard_bounds_the_importance_weights():
    """g/(r p) stays bounded with the mixture wherever a sample falls; with its own density it does not."""
    rpe, worst = wide_rpe(), {}
    for proposal in ("mixture", "own"):
        method = sampled(rpe, 0, proposal=proposal, n_frequencies=8)
        method.raw_scales.data.fill_(-20.0)
        method.epsilon.mul_(4.0)
        worst[proposal] = method.coefficients(rpe()).max().item()
    # p ≥ (1/r) N(ξ; 0, guard² I), and g falls faster than it for every width the RPE can take.
    bound = (rpe().spectra(torch.zeros(1)) * (2 * math.pi * method.guard**2) ** 1.5).max().item()
    assert worst["mixture"] <= bound * (1 + 1e-9)
    assert worst["own"] > 10 * bound


@pytest.mark.parametrize("directions", ["averaged", "random"])
@pytest.mark.parametrize("name", ["slab", "triclinic", "tiny_cell"])
def test_periodic_estimator_does_not_see_which_image_was_written_down(name, directions):
    rpe, atoms = wide_rpe(), STRUCTURES[name]()
    method = sampled(rpe, 0, directions=directions)
    before = estimated(method, atoms, rpe)
    moved = written_in_another_image(atoms, seed=1)
    for changed in (moved, in_another_cell(moved)):
        after = estimated(method, changed, rpe)
        assert ((before - after).abs().max() / before.abs().max()).item() < 1e-12


def test_stratified_radii_are_the_quantiles_of_chi_three():
    method = sampled(wide_rpe(), 0, radii="stratified", n_frequencies=10)
    radii = np.sort(method.epsilon.norm(dim=1).numpy())
    np.testing.assert_allclose(radii, chi.ppf((np.arange(10) + 0.5) / 10, df=3), rtol=1e-6)
    with torch.device("meta"):
        assert torch.equal(sampled(wide_rpe(), 0, radii="stratified", n_frequencies=10).epsilon, method.epsilon)


def test_free_spectrum_has_one_weight_per_frequency():
    rpe, atoms = wide_rpe(), STRUCTURES["molecule"]()
    method = sampled(rpe, 0, spectrum="free", n_frequencies=12)
    assert method.n_weights(rpe.n_basis) == 12
    basis = estimated(method, atoms, rpe)
    kappa = 2 * math.pi * method.frequencies().norm(dim=1)
    distance = torch.from_numpy(atoms.get_all_distances())
    expected = torch.from_numpy(np.sinc((kappa * distance[..., None] / math.pi).detach().numpy()))
    torch.testing.assert_close(basis, expected)


def test_scales_are_positive_and_bounded_and_they_and_the_means_learn():
    rpe = wide_rpe()
    method = sampled(rpe, 0, **MEANS)
    assert bool((method.scales > 0).all())
    assert method.scales.max().item() <= method.scale_high
    estimated(method, STRUCTURES["molecule"](), rpe).square().sum().backward()
    assert bool((method.raw_scales.grad != 0).all())
    assert float(method.free_means.grad.abs().max()) > 0


LINEAR = {"random": {"directions": "random"}, "free": {"directions": "random", "spectrum": "free"}}


@pytest.mark.parametrize("keys", LINEAR.values(), ids=LINEAR)
def test_features_are_the_estimator_on_pairs(keys):
    rpe = wide_rpe()
    method = sampled(rpe, 0, **keys)
    plan = Plan(6.0, far=method.plan(rpe(), dense=False))
    geometry = geometry_of([STRUCTURES["benzene"](), STRUCTURES["molecule"]()], plan=plan)
    xi, coefficients = method.frequencies(), method.coefficients(rpe())
    delta = geometry.pad(geometry.positions)[:, :, None] - geometry.pad(geometry.positions)[:, None]
    expected = torch.cos(2 * math.pi * delta @ xi.T) @ coefficients
    (field,) = method.fields(geometry, rpe())
    assert isinstance(field, OnWaves)
    found = field.matrix(torch.eye(expected.shape[-1], dtype=torch.float64)).movedim(0, -1)
    there = geometry.pair_mask
    torch.testing.assert_close(found[there], expected[there])


@pytest.mark.parametrize("keys", [{}, *LINEAR.values()], ids=str)
def test_batch_mates_change_nothing(keys):
    check_batch_mates_change_nothing(Layer(mechanism="undamped", **keys))


def test_features_of_waves_carry_the_sign_on_the_key_side_and_a_finite_slope_at_zero():
    generator = torch.Generator().manual_seed(4)
    x, xi = torch.randn(4, 3, generator=generator).double(), torch.randn(5, 3, generator=generator).double()
    for softening in (0.0, 1e-7):
        a = torch.tensor([0.3, -0.7, 0.0, 1.1, -0.2], dtype=torch.float64, requires_grad=True)
        query, key = wave_features(plane_waves(x, xi), a, softening)
        expected = torch.cos(2 * math.pi * (x[:, None, :] - x[None, :, :]) @ xi.T) @ a
        torch.testing.assert_close(query @ key.T, expected, rtol=0, atol=1e-13 + 10 * softening)
        (slope,) = torch.autograd.grad((query @ key.T).sum() + query.sum(), a)
        assert bool(slope.isfinite().all())
