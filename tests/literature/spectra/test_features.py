"""Random features: a product that is the sum of cosines, in both precisions, differentiable."""

import math

import pytest
import torch

from molflt.literature.spectra.spectrum import features, wave_features
from molflt.literature.undamped import plane_waves
from tests.literature.spectra.families import FAMILIES


def positions(n: int, dim: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_product_of_features_is_the_sum_of_cosines(name):
    for dim in (1, 2, 3):
        spectrum, x, y = FAMILIES[name](dim), positions(7, dim, 1), positions(9, dim, 2)
        xi = spectrum.sample(48, torch.Generator().manual_seed(0))
        query, key = features(spectrum, x, y, xi)
        assert (query.shape, key.shape) == ((7, 96), (9, 96))
        expected = torch.cos(2 * math.pi * (x[:, None, :] - y[None, :, :]) @ xi.T) @ spectrum.coefficients(xi)
        torch.testing.assert_close(query @ key.T, expected, rtol=0, atol=1e-12)
        shift = torch.tensor([5.3, -7.1, 2.9], dtype=torch.float64)[:dim]
        shifted_query, shifted_key = features(spectrum, x + shift, y + shift, xi)
        assert (shifted_query @ shifted_key.T - query @ key.T).abs().max().item() < 1e-12
        # Power: the features themselves do change, and only one side shifted changes the product.
        assert (shifted_query - query).abs().max().item() > 1e-2
        assert (shifted_query @ key.T - query @ key.T).abs().max().item() > 1e-2


def test_sign_stands_on_the_key_side_only():
    x, xi = positions(4, 3, 3), positions(5, 3, 4)
    waves, a = plane_waves(x, xi), torch.tensor([0.3, -0.7, 0.0, 1.1, -0.2], dtype=torch.float64)
    query, key = wave_features(waves, a)
    plain_query, plain_key = wave_features(waves, a.abs())
    assert torch.equal(query, plain_query)
    assert torch.equal(key, plain_key * a.sign().repeat(2))
    # With the sign lost, or on both sides, it is another function.
    expected = torch.cos(2 * math.pi * (x[:, None, :] - x[None, :, :]) @ xi.T) @ a
    torch.testing.assert_close(query @ key.T, expected, rtol=0, atol=1e-13)
    assert (plain_query @ plain_key.T - expected).abs().max().item() > 0.1


def test_a_coefficient_of_zero_has_a_finite_slope():
    waves = plane_waves(positions(4, 2, 5), positions(3, 2, 4))
    for dtype in (torch.float32, torch.float64):
        for softening in (0.0, 1e-7):
            a = torch.tensor([0.0, 0.5, -0.5], dtype=dtype, requires_grad=True)
            query, key = wave_features(waves, a, softening)
            (slope,) = torch.autograd.grad((query @ key.T).sum() + query.sum(), a)
            assert bool(slope.isfinite().all())


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_single_precision_follows_double(name):
    """The same draw in both; a frequency far out in a heavy tail has the digits it needs for its phase."""
    for dim in (1, 2, 3):
        double, single = FAMILIES[name](dim), FAMILIES[name](dim).float()
        x = positions(6, dim, 6)
        xi = single.sample(512, torch.Generator().manual_seed(0))
        expected = double.sample(512, torch.Generator().manual_seed(0))
        torch.testing.assert_close(xi.double(), expected, rtol=3e-5, atol=1e-7)
        rounded, product = (
            query @ key.T for query, key in (features(single, x, x, xi), features(double, x, x, xi.double()))
        )
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded.double(), product, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_learns_from_the_estimate_and_from_f(name):
    """Through draw, weight and features at once; the derivative of the estimate against a finite difference."""
    spectrum, x = FAMILIES[name](2), positions(3, 2, 7)
    parameters = list(spectrum.parameters())

    def estimate() -> torch.Tensor:
        query, key = features(spectrum, x, x, spectrum.sample(16, torch.Generator().manual_seed(1)))
        return (query @ key.T).square().sum()

    slopes = torch.autograd.grad(estimate() + spectrum.value(x).square().sum(), parameters)
    assert all(bool((slope != 0).any()) for slope in slopes)
    along = torch.autograd.grad(estimate(), parameters, allow_unused=True)
    expected = sum(float(slope.sum()) for slope in along if slope is not None)
    with torch.no_grad():
        sides = []
        for step in (1e-6, -2e-6):
            for parameter in parameters:
                parameter += step
            sides.append(float(estimate()))
    assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_finite_where_norms_and_sines_vanish(name):
    for dtype in (torch.float32, torch.float64):
        spectrum = FAMILIES[name](3).to(dtype)
        far = [[0.0, 0.0, 0.0], [1e-6, 0.0, 0.0], [1.3, 0.9, 1.1], [2.6, 1.8, 2.2], [40.0, -30.0, 1e4]]
        point = torch.tensor(far, dtype=dtype, requires_grad=True)
        for function in (spectrum.value, spectrum.transform):
            used = [point, *spectrum.parameters()]
            slope, *others = torch.autograd.grad(function(point).sum(), used, allow_unused=True)
            assert bool(slope.isfinite().all())
            assert slope[0].abs().max().item() < 1e-7
            assert all(bool(other.isfinite().all()) for other in others if other is not None)
