"""Cardinal B-splines against exact rational arithmetic."""

import math
from fractions import Fraction

import pytest
import torch

from molflt.literature.spectra.local_box import cardinal_bspline

ORDERS = range(1, 7)


def exact(x: float, order: int) -> float:
    """The sum of truncated powers in rational numbers, where it cannot cancel."""
    total = Fraction(0)
    for i in range(order + 1):
        base = Fraction(x) + Fraction(order, 2) - i
        if base > 0:
            total += Fraction((-1) ** i * math.comb(order, i)) * base ** (order - 1)
    return float(total / math.factorial(order - 1))


def truncated_powers(x: torch.Tensor, order: int) -> torch.Tensor:
    """The same in floating point: the textbook form."""
    terms = [
        (-1) ** i * math.comb(order, i) * (x + order / 2 - i).clamp(min=0) ** (order - 1) for i in range(order + 1)
    ]
    return sum(terms) / math.factorial(order - 1)


@pytest.mark.parametrize("order", ORDERS)
def test_values_to_the_last_digits_up_to_the_end_of_the_support(order):
    inside = torch.linspace(-order / 2 + 0.013, order / 2 - 0.013, 101, dtype=torch.float64)
    x = torch.cat([inside, torch.tensor([order / 2 - 2.0**-8, 2.0**-8 - order / 2], dtype=torch.float64)])
    expected = torch.tensor([exact(float(v), order) for v in x], dtype=torch.float64)
    torch.testing.assert_close(cardinal_bspline(x, order), expected, rtol=1e-12, atol=0)
    if order >= 4:
        naive = (truncated_powers(x, order) - expected).abs() / expected
        assert naive.max().item() > 1e-10
    beyond = torch.tensor([order / 2 + 1e-9, -order / 2 - 1e-9, 1e5], dtype=torch.float64)
    assert not cardinal_bspline(beyond, order).any()


@pytest.mark.parametrize("order", range(2, 7))
def test_it_is_the_convolution_of_the_one_before_with_the_indicator(order):
    """M_k(x) = ∫_{x−½}^{x+½} M_{k−1}, so that M_k'(x) = M_{k−1}(x + ½) − M_{k−1}(x − ½)."""
    x = torch.linspace(-order / 2 - 0.31, order / 2 + 0.37, 77, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(cardinal_bspline(x, order).sum(), x)
    before = cardinal_bspline(x + 0.5, order - 1) - cardinal_bspline(x - 0.5, order - 1)
    torch.testing.assert_close(slope, before, rtol=0, atol=1e-13)
    fine = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000 - 0.5
    centres = torch.tensor([-0.8, 0.0, 0.37], dtype=torch.float64)
    integral = cardinal_bspline(centres[:, None] + fine, order - 1).mean(dim=1)
    torch.testing.assert_close(cardinal_bspline(centres, order), integral, rtol=0, atol=1e-4)


@pytest.mark.parametrize("order", ORDERS)
def test_shifts_sum_to_one_also_at_the_knots(order):
    x = torch.tensor([0.0, 0.5, 0.2, 1 / 3], dtype=torch.float64)
    shifts = torch.arange(-4, 5, dtype=torch.float64)
    total = cardinal_bspline(x[:, None] + shifts, order).sum(dim=1)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-14, atol=0)


@pytest.mark.parametrize("order", range(2, 7))
def test_derivatives_at_zero_and_at_knots_are_finite_and_even(order):
    """At x = 0, a knot of every even order, the slope is zero; the curvature is the neighbours' mean."""
    knots = torch.arange(order + 1, dtype=torch.float64) - order / 2
    x = torch.cat([torch.zeros(1, dtype=torch.float64), knots]).requires_grad_()
    (slope,) = torch.autograd.grad(cardinal_bspline(x, order).sum(), x, create_graph=True)
    assert slope[0].item() == 0.0
    torch.testing.assert_close(slope[1:], -slope[1:].flip(0), rtol=0, atol=1e-14)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert bool(curvature.isfinite().all())
    if order >= 3:
        step = 1e-4
        sides = torch.tensor([step, -step, 0.0], dtype=torch.float64)
        values = cardinal_bspline(sides, order)
        assert curvature[0].item() == pytest.approx(
            (values[0] + values[1] - 2 * values[2]).item() / step**2, abs=1e-3
        )
