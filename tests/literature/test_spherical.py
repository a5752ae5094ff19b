"""Spherical waves: Bessel functions against SciPy, and the addition theorem they are for."""

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import spherical_jn

from molflt.attention.smooth import sinc_of_square
from molflt.literature.spherical import bessel_over_power, degree_for, spherical_features
from tests.attention.structures import random_rotation

ARGUMENTS = [0.0, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 1.5, math.pi, 4.493409457909064, 10.0, 33.3, 100.0, 300.0, 1000.0]


@pytest.mark.parametrize("l_max", [0, 1, 3, 20, 64, 96])
def test_bessel_functions_are_scipys(l_max):
    """Zeros of j_0 and j_1, z = 0 and large z included, alone and together."""
    z = np.array(ARGUMENTS)
    found = bessel_over_power(torch.from_numpy(z**2), l_max).numpy() * z[:, None] ** np.arange(l_max + 1)
    expected = spherical_jn(np.arange(l_max + 1)[None], z[:, None])
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-15)
    # An argument's neighbours decide where the recurrence starts, which must not show.
    alone = np.stack([bessel_over_power(torch.tensor(x * x, dtype=torch.float64), l_max).numpy() for x in ARGUMENTS])
    np.testing.assert_allclose(alone * z[:, None] ** np.arange(l_max + 1), found, rtol=0, atol=5e-15)


def test_bessel_functions_at_zero_are_inverse_double_factorials():
    u = bessel_over_power(torch.zeros(1, dtype=torch.float64), 12)[0]
    expected = [1 / math.prod(range(1, 2 * degree + 2, 2)) for degree in range(13)]
    np.testing.assert_allclose(u.numpy(), expected, rtol=1e-14)


def test_bessel_derivatives():
    squared = torch.tensor([1e-3, 0.5, 2.0, 20.19, 50.0, 900.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: bessel_over_power(s, 6), (squared,), eps=1e-4, atol=1e-9)
    assert torch.autograd.gradgradcheck(lambda s: bessel_over_power(s, 6), (squared,), eps=1e-4, atol=1e-8)
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(bessel_over_power(zero, 0).sum(), zero)
    assert float(slope) == pytest.approx(-1 / 6, rel=1e-14)


def test_bessel_functions_in_single_precision_are_the_rounded_ones():
    z = torch.tensor(ARGUMENTS, dtype=torch.float32)
    squared = (z * z).requires_grad_()
    found = bessel_over_power(squared, 20)
    (slope,) = torch.autograd.grad(found.sum(), squared)
    doubled = squared.detach().double().requires_grad_()
    expected = bessel_over_power(doubled, 20)
    (expected_slope,) = torch.autograd.grad(expected.sum(), doubled)
    torch.testing.assert_close(found, expected.float(), rtol=1e-6, atol=1e-37)
    torch.testing.assert_close(slope, expected_slope.float(), rtol=1e-6, atol=1e-37)


def truncated(x: torch.Tensor, kappa: float, l_max: int) -> torch.Tensor:
    features = spherical_features(x, torch.tensor([kappa], dtype=torch.float64), [l_max])
    return features @ features.transpose(0, 1)


def sinc_of_pairs(x: torch.Tensor, kappa: float) -> torch.Tensor:
    return torch.sinc(kappa * (x[:, None] - x[None]).norm(dim=-1) / math.pi)


def cloud(seed: int, n: int = 12, radius: float = 6.8) -> torch.Tensor:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x - x.mean(dim=0)
    return x * radius / x.norm(dim=1).max()


@pytest.mark.parametrize("kappa", [0.05, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-8, 1e-12])
def test_addition_theorem(kappa, tolerance):
    x = cloud(0)
    degree = math.ceil(float(degree_for(torch.tensor(kappa * 6.8, dtype=torch.float64), tolerance)))
    error = (truncated(x, kappa, degree) - sinc_of_pairs(x, kappa)).abs().max()
    assert float(error) < max(tolerance, 3e-14)


@given(z=st.floats(1e-3, 80), digits=st.floats(2, 13))
@settings(max_examples=200, deadline=None)
def test_degree_is_enough(z, digits):
    """Σ_{l > degree} (2l+1) j_l(z)², which bounds the truncation of every pair, summed to the end."""
    degree = math.ceil(float(degree_for(torch.tensor(z, dtype=torch.float64), 10.0**-digits)))
    degrees = np.arange(degree + 1, degree + 60)
    assert ((2 * degrees + 1) * spherical_jn(degrees, z) ** 2).sum() < 10.0**-digits


def test_truncation_error_falls_faster_than_exponentially():
    """R = 6.8 Å, κ = 1: 5e-3 at l = 8 and 5e-7 at l = 12 (DESIGN §3, item 4); each further degree gains more."""
    x = cloud(1)
    # Two atoms opposite each other at the rim, where the expansion is at its worst.
    x[0], x[1] = torch.tensor([0.0, 0.0, 6.8]).double(), torch.tensor([0.0, 0.0, -6.8]).double()
    exact = sinc_of_pairs(x, 1.0)
    logs = [math.log10(float((truncated(x, 1.0, degree) - exact).abs().max())) for degree in range(8, 20, 2)]
    assert -3.3 < logs[0] < -1.3
    assert logs[2] < -5.5
    steps = np.diff(logs)
    assert (np.diff(steps) < 0).all()


SYMMETRIC = {
    "atom": Atoms("He", [[0.0, 0.0, 0.0]]),
    "two atoms": Atoms("H2", [[0, 0, 0], [0, 0, 0.74]]),
    "linear": molecule("CO2"),
    "planar": molecule("C6H6"),
    "Td": molecule("CH4"),
    "C60": molecule("C60"),
    "Ih": Atoms("Au13", np.vstack([np.zeros(3), molecule("C60").positions[:12]])),
}


@pytest.mark.parametrize("name", list(SYMMETRIC))
def test_no_degeneracies(name):
    """There are no frames to choose: symmetric and degenerate structures are like any other, gradients included."""
    positions = SYMMETRIC[name].positions
    kappas = torch.tensor([0.3, 1.7], dtype=torch.float64)

    def gram(r: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(r - r.mean(axis=0)).requires_grad_()
        features = spherical_features(x, kappas, [3, 4])
        pairs = features @ features.transpose(0, 1)
        weights = torch.arange(pairs.numel(), dtype=torch.float64).view_as(pairs).cos()
        (gradient,) = torch.autograd.grad((pairs * weights).sum(), x)
        return pairs.detach(), gradient

    expected, slope = gram(positions)
    assert bool(torch.isfinite(slope).all())
    for seed in range(4):
        rotation = random_rotation(seed)
        found, turned = gram(positions @ rotation)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
        torch.testing.assert_close(turned, slope @ torch.from_numpy(rotation), rtol=1e-9, atol=1e-11)


def test_dropping_one_harmonic_breaks_the_invariance():
    """Power: whole shells of m are what makes the truncated sum invariant."""
    x = cloud(2)
    kappa = torch.tensor([1.0], dtype=torch.float64)

    def without_one(r: torch.Tensor) -> torch.Tensor:
        features = spherical_features(r, kappa, [3])[:, :-1]
        return features @ features.transpose(0, 1)

    turned = x @ torch.from_numpy(random_rotation(0))
    assert float((without_one(turned) - without_one(x)).abs().max()) > 1e-3


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 4e-15), (torch.float32, 5e-7)])
def test_closed_forms_are_the_recurrence(dtype, bound):
    """sin(z)/z and its derivatives by closed forms, z = 0 and the seam to the power series included."""
    squared = torch.linspace(0, 6, 400, dtype=torch.float64).square()
    value = squared.to(dtype).requires_grad_()
    derivative = sinc_of_square(value)
    expected = bessel_over_power(squared, 4)
    for order in range(4):
        scale = (-0.5) ** order * expected[0, order]
        assert float((derivative.double() / scale - expected[:, order] / expected[0, order]).abs().max()) < bound
        (derivative,) = torch.autograd.grad(derivative.sum(), value, create_graph=True)
