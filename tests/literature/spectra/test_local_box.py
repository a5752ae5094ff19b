"""The local RPE of the paper: B-splines in exact arithmetic, and powers."""

import math
from fractions import Fraction

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.spectra.local_box import LocalBox, cardinal_bspline

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
        with pytest.raises(InputError, match=r"cannot be sampled.*powers of 2 or more"):
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


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LocalBox([1.0], [0]), "between 1 and 6"),
        (lambda: LocalBox([1.0], [7]), "between 1 and 6"),
        (lambda: LocalBox([0.0], [2]), "above zero"),
        (lambda: LocalBox([1.0], [2, 2]), "every axis"),
    ],
)
def test_what_is_impossible_is_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
