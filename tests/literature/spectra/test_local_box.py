"""The local RPE of the paper: B-splines in exact arithmetic, powers, and the series for the indicator."""

import math
from fractions import Fraction

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.spectra.local_box import LocalBox, cardinal_bspline, fourier_series
from molflt.literature.spectra.spectrum import wave_features
from molflt.literature.undamped import plane_waves

ORDERS = range(1, 7)


def exact(x: float, order: int) -> float:
    """The sum of truncated powers in rational numbers, where it cannot cancel."""
    total = Fraction(0)
    for i in range(order + 1):
        base = Fraction(x) + Fraction(order, 2) - i
        if base > 0:
            total += Fraction((-1) ** i * math.comb(order, i)) * base ** (order - 1)
    return float(total / math.factorial(order - 1))


@pytest.mark.parametrize("order", ORDERS)
def test_splines_to_the_last_digits_up_to_the_end_of_the_support(order):
    inside = torch.linspace(-order / 2 + 0.013, order / 2 - 0.013, 101, dtype=torch.float64)
    x = torch.cat([inside, torch.tensor([order / 2 - 2.0**-8, 2.0**-8 - order / 2], dtype=torch.float64)])
    expected = torch.tensor([exact(float(v), order) for v in x], dtype=torch.float64)
    torch.testing.assert_close(cardinal_bspline(x, order), expected, rtol=1e-12, atol=0)
    beyond = torch.tensor([order / 2 + 1e-9, -order / 2 - 1e-9, 1e5], dtype=torch.float64)
    assert not cardinal_bspline(beyond, order).any()
    # Shifts sum to one, also at the knots.
    shifts = torch.tensor([[0.0], [0.5], [0.2], [1 / 3]], dtype=torch.float64) + torch.arange(-4, 5)
    total = cardinal_bspline(shifts, order).sum(dim=1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-14, atol=0)


@pytest.mark.parametrize("order", range(2, 7))
def test_slopes_and_curvatures_of_splines(order):
    """M_k'(x) = M_{k−1}(x + ½) − M_{k−1}(x − ½); finite and even at zero and at knots."""
    x = torch.linspace(-order / 2 - 0.31, order / 2 + 0.37, 77, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(cardinal_bspline(x, order).sum(), x)
    before = cardinal_bspline(x + 0.5, order - 1) - cardinal_bspline(x - 0.5, order - 1)
    torch.testing.assert_close(slope, before, rtol=0, atol=1e-13)
    knots = torch.arange(order + 1, dtype=torch.float64) - order / 2
    x = torch.cat([torch.zeros(1, dtype=torch.float64), knots]).requires_grad_()
    (slope,) = torch.autograd.grad(cardinal_bspline(x, order).sum(), x, create_graph=True)
    assert slope[0].item() == 0.0
    torch.testing.assert_close(slope[1:], -slope[1:].flip(0), rtol=0, atol=1e-14)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert bool(curvature.isfinite().all())
    if order >= 3:
        # The curvature at zero is the mean of those on either side.
        step = 1e-4
        low, high, middle = cardinal_bspline(torch.tensor([-step, step, 0.0], dtype=torch.float64), order).tolist()
        assert curvature[0].item() == pytest.approx((low + high - 2 * middle) / step**2, abs=1e-3)


def test_power_one_is_the_indicator_and_powers_end_at_k_radii():
    x = torch.tensor([[0.0], [1.19], [1.21], [-1.19], [-1.21]])
    assert LocalBox([1.2], [1]).value(x).tolist() == [1.0, 1.0, 0.0, 1.0, 0.0]
    for power in range(2, 7):
        spectrum = LocalBox([1.2], [power]).double()
        end = spectrum.radii.item() * power
        inside, outside = (spectrum.value(torch.tensor([end * f], dtype=torch.float64)).item() for f in (0.99, 1.01))
        assert inside > 0
        assert outside == 0


@torch.no_grad()
def test_indicator_cannot_be_sampled():
    """∫|g| grows by the same amount with every tenfold ξ_max; with power 2 it has ended."""
    for spectrum in (LocalBox([1.0], [1]), LocalBox([1.0, 1.0], [2, 1])):
        with pytest.raises(InputError, match="fourier_series"):
            spectrum.sample(8, torch.Generator())
        with pytest.raises(InputError, match="diverges"):
            spectrum.coefficients(torch.ones(1, spectrum.dim))
    growth = {}
    for power in (1, 2):
        spectrum = LocalBox([1.0], [power]).double()
        decades = [torch.linspace(a, 10 * a, 400_001, dtype=torch.float64)[:, None] for a in (1.0, 10.0, 100.0)]
        growth[power] = [torch.trapezoid(spectrum.transform(x).abs(), x[:, 0]).item() for x in decades]
    # The mean of |sin| is 2/π, so that a decade adds 2 log(10)/π².
    assert growth[1] == pytest.approx([2 * math.log(10) / math.pi**2] * 3, rel=0.01)
    assert growth[2][2] < 0.02 * growth[2][0]


@torch.no_grad()
def test_series_gives_the_indicator_away_from_its_jump():
    """The left-out tail is at most 1/(2π² ξ_max) (1/d₁ + 1/d₂), d the distances from the jumps at ±v; twice that for
    the images. At the jump itself: one half; beside it Gibbs' overshoot, whatever ξ_max."""
    spectrum = LocalBox([1.3], [1]).double()

    def series_at(delta: torch.Tensor, xi_max: float) -> torch.Tensor:
        xi, a = fourier_series(spectrum, 6.0, xi_max)
        return torch.cos(2 * math.pi * delta @ xi.T) @ a

    v = spectrum.radii.item()
    grid = torch.linspace(-6, 6, 2401, dtype=torch.float64)[:, None]
    distances = torch.stack([(grid[:, 0] - v).abs(), (grid[:, 0] + v).abs()])
    away = distances.amin(dim=0) > 0.1
    worst = {}
    for xi_max in (10.0, 100.0):
        error = (series_at(grid, xi_max) - spectrum.value(grid)).abs()
        bound = (1 / distances).sum(dim=0) / (math.pi**2 * xi_max)
        assert bool((error <= bound)[away].all())
        worst[xi_max] = error[away].max().item()
        near = v - torch.linspace(0, 3 / xi_max, 601, dtype=torch.float64)[:, None]
        assert series_at(near, xi_max).max().item() == pytest.approx(1.0895, abs=5e-3)
        assert series_at(torch.tensor([[v]], dtype=torch.float64), xi_max).item() == pytest.approx(0.5, abs=0.02)
    assert worst[100.0] < 0.2 * worst[10.0] < 0.02
    # Power: without the 2π it is another function.
    wrong = (series_at(grid / (2 * math.pi), 100.0) - spectrum.value(grid)).abs()
    assert wrong[away].max().item() > 0.9


@torch.no_grad()
@pytest.mark.parametrize(("powers", "xi_max", "tolerance"), [((2, 3), 12.0, 5e-3), ((4, 4, 3), 2.0, 1e-3)])
def test_series_in_more_dimensions_and_through_features(powers, xi_max, tolerance):
    spectrum = LocalBox([1.3, 0.9, 1.1][: len(powers)], powers).double()
    x = 2 * torch.rand(6, len(powers), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    xi, a = fourier_series(spectrum, 2.0, xi_max)
    query, key = wave_features(plane_waves(x, xi), a)
    expected = spectrum.value(x[:, None, :] - x[None, :, :])
    assert (query @ key.T - expected).abs().max().item() < tolerance
    assert expected.std().item() > 30 * tolerance
    # One of ξ and −ξ only.
    assert len({tuple(row) for row in torch.cat([xi, -xi]).tolist()}) == 2 * len(xi) - 1


def test_series_learns_its_radius():
    spectrum = LocalBox([1.3], [2]).double()
    xi, a = fourier_series(spectrum, 4.0, 200.0)
    value = torch.cos(2 * math.pi * xi[:, 0] * 1.7) @ a
    (slope,) = torch.autograd.grad(value, spectrum.log_radii)
    (expected,) = torch.autograd.grad(spectrum.value(torch.tensor([1.7], dtype=torch.float64)), spectrum.log_radii)
    assert slope.item() == pytest.approx(expected.item(), rel=5e-3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LocalBox([1.0], [0]), "between 1 and 6"),
        (lambda: LocalBox([1.0], [7]), "between 1 and 6"),
        (lambda: LocalBox([0.0], [2]), "above zero"),
        (lambda: LocalBox([1.0], [2, 2]), "every axis"),
        (lambda: fourier_series(LocalBox([1.0], [1]), 0.0, 3.0), "must be positive"),
    ],
)
def test_what_is_impossible_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
