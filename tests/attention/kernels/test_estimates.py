"""Estimates of exp(q·k): their mean over many draws, and the A that makes their variance least."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from molflt.attention.kernels.spectraformer import (
    COMPONENT_FUNCTIONS,
    optimal_a,
)
from tests.attention.kernels.checks import (
    draws,
    estimates,
    softmax_kernel,
    standard_errors_off,
    tokens,
)
from tests.attention.kernels.grid import LAWS, published_a

M = 8


def log_second_moment(a: float, square: float, c: int) -> float:
    """log of E X² exp(|q|² + |k|²) for one row, X = D² exp(2A|ω|² + B ω·z − (|q|² + |k|²)/2) and z = q + k.

    E exp(α|ω|² + β·ω) = (1 − 2α)^{−c/2} exp(|β|²/(2 − 4α)) with α = 4A and β = 2Bz; D⁴ = (1 − 4A)^c.
    """
    return c * math.log(1 - 4 * a) - c / 2 * math.log(1 - 8 * a) + 2 * (1 - 4 * a) * square / (1 - 8 * a)


@pytest.mark.parametrize("component", COMPONENT_FUNCTIONS)
def test_unbiased(component):
    q, k, _ = tokens(batch=1, n=4, scale=0.35)
    for matrix in ("iid", "orf", "qmc", "fastfood"):
        values = estimates(COMPONENT_FUNCTIONS[component], draws(LAWS[matrix], 1500, M), q, k)
        assert standard_errors_off(values, softmax_kernel(q, k)) < 4.5
        # Power: three per cent more are found out.
        assert standard_errors_off(1.03 * values, softmax_kernel(q, k)) > 4.5


@pytest.mark.parametrize("square", [1e-3, 0.3, 2.0, 15.0, 400.0])
def test_optimal_a_minimises_the_second_moment(square):
    for c in (1, 5, 64):
        found = float(optimal_a(torch.tensor(square, dtype=torch.float64), c))
        bounds = (min(-10.0, 4 * found), 0.12)
        best = minimize_scalar(
            lambda a, c=c: log_second_moment(a, square, c), bounds=bounds, options={"xatol": 1e-11}
        )
        assert found == pytest.approx(best.x, abs=1e-5 * (1 + abs(best.x)))
        assert found < 0
        assert found == pytest.approx(published_a(square, c), rel=1e-6, abs=1e-9)
        # Never worse than A = 0, the positive features; and twice A is worse than A.
        assert log_second_moment(found, square, c) < log_second_moment(0.0, square, c)
        assert log_second_moment(found, square, c) < log_second_moment(2 * found, square, c)


def test_optimal_a_at_its_ends():
    """Zero, with a finite gradient, where q = −k; and no overflow in single precision."""
    zero = torch.zeros(1, requires_grad=True)
    (slope,) = torch.autograd.grad(optimal_a(zero, 4), zero)
    assert float(optimal_a(zero, 4).detach()) == 0
    assert -math.inf < float(slope) < 0
    assert bool(torch.isfinite(optimal_a(torch.tensor(1e12), 64)))
    # A = −S/2c + O(S²). Eq. 35 as printed loses it to cancellation.
    small = torch.tensor(1e-12, dtype=torch.float64)
    assert float(optimal_a(small, 4)) == pytest.approx(-1e-12 / 8, rel=2e-3)
    assert published_a(1e-12, 4) != pytest.approx(-1e-12 / 8, rel=1e-1)
