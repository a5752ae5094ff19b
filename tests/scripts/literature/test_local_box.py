"""The local RPE of the paper: B-splines in exact arithmetic, powers, and what random frequencies make of them."""

import math
from fractions import Fraction

import pytest
import torch
from scipy import stats

from scripts.literature.local_box import LocalBox, cardinal_bspline

BOXES = {"box2": (2,), "box3": (3,), "box6": (6,), "box243": (2, 4, 3)}
any_box = pytest.mark.parametrize("powers", BOXES.values(), ids=BOXES)


def box(powers, dim):
    """The powers in turn over the axes, with different radii."""
    return LocalBox([1.3, 0.9, 1.1][:dim], [powers[j % len(powers)] for j in range(dim)])


def differences(dim):
    """(12, dim): zero, near ones, and some beyond the support of every box."""
    directions = torch.randn(12, dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    lengths = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.8, 1.1, 1.5, 2.0, 2.6, 3.3, 4.1, 12.0], dtype=torch.float64)
    return directions / directions.norm(dim=1, keepdim=True) * lengths[:, None]


def exact(x, order):
    """The sum of truncated powers in rational numbers, where it cannot cancel."""
    total = Fraction(0)
    for i in range(order + 1):
        base = Fraction(x) + Fraction(order, 2) - i
        if base > 0:
            total += Fraction((-1) ** i * math.comb(order, i)) * base ** (order - 1)
    return float(total / math.factorial(order - 1))


@pytest.mark.parametrize("order", range(1, 7))
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


@any_box
def test_transform_is_the_fourier_transform_of_f(powers):
    """By the trapezoid rule in one dimension; the tail of g beyond ξ_max falls like 1/ξ² for hats."""
    spectrum, delta, period = box(powers, 1), differences(1), 60.0
    xi_max, bound = (5e3, 5e-5) if powers[0] == 2 else (1e3, 1e-8)
    integral = torch.zeros_like(delta[:, 0])
    for nodes in (torch.arange(1, int(xi_max * period), dtype=torch.float64) / period).split(200_000):
        integral += torch.cos(2 * math.pi * delta * nodes) @ spectrum.transform(nodes[:, None])
    integral = (2 * integral + spectrum.transform(delta.new_zeros(1))) / period
    assert float((integral - spectrum.value(delta)).abs().max()) < bound
    # Power: without the 2π it is another function.
    assert float((integral - spectrum.value(2 * math.pi * delta)).abs().max()) > 0.1


@any_box
@pytest.mark.parametrize("dim", [1, 3])
def test_unbiased_over_draws(powers, dim):
    """Each draw alone estimates f; the mean is within four standard errors (FLT Theorem 4.1)."""
    spectrum, delta, n_draws = box(powers, dim), differences(dim), 100_000
    xi = spectrum.sample(n_draws, torch.Generator().manual_seed(1))
    terms = n_draws * spectrum.coefficients(xi) * torch.cos(2 * math.pi * delta @ xi.T)
    mean, error = terms.mean(dim=1), terms.std(dim=1) / math.sqrt(n_draws)
    assert float(error.max()) < 0.02
    assert float(((mean - spectrum.value(delta)) / error).abs().max()) < 4.0
    assert float(((mean - spectrum.value(2 * math.pi * delta)) / error).abs().max()) > 100.0


def test_product_of_features_is_the_sum_of_cosines():
    spectrum = box((2, 4, 3), 3)
    xi = spectrum.sample(48, torch.Generator().manual_seed(0))
    x, y = (3 * torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (7, 9))
    query, key = spectrum.features(x, y, xi)
    expected = torch.cos(2 * math.pi * (x[:, None, :] - y[None, :, :]) @ xi.T) @ spectrum.coefficients(xi)
    torch.testing.assert_close(query @ key.T, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("power", [2, 3, 4, 5, 6])
def test_tail_of_the_proposal_falls_no_faster_than_g(power):
    """Σ a_k is then of finite variance; with the tails of a Gaussian of the same scale it is not."""
    spectrum = box((power,), 1)
    scale = spectrum.scales.item()
    xi = torch.logspace(-2, 4, 200_001, dtype=torch.float64)[:, None]
    ratio = spectrum.transform(xi).abs() / spectrum.log_prob(xi).exp()
    assert ratio.max().item() < 1.5
    # The tail counts: it does not fall to zero either, which a heavier one would do.
    assert ratio[xi[:, 0] > 1e3].max().item() > 0.05
    window = xi[(xi[:, 0] > 8 * scale) & (xi[:, 0] < 9 * scale)]
    gaussian = torch.from_numpy(stats.norm.pdf(window[:, 0].numpy(), scale=scale))
    assert (spectrum.transform(window).abs() / gaussian).max().item() > 1e6


def test_power_one_is_the_indicator_and_powers_end_at_k_radii():
    x = torch.tensor([[0.0], [1.19], [1.21], [-1.19], [-1.21]], dtype=torch.float64)
    assert LocalBox([1.2], [1]).value(x).tolist() == [1.0, 1.0, 0.0, 1.0, 0.0]
    for power in range(2, 7):
        end = torch.tensor([1.2 * power], dtype=torch.float64)
        assert LocalBox([1.2], [power]).value(0.99 * end) > 0
        assert LocalBox([1.2], [power]).value(1.01 * end) == 0


def test_what_is_impossible_is_refused():
    with pytest.raises(ValueError, match=r"cannot be sampled.*powers of 2 or more"):
        LocalBox([1.0, 1.0], [2, 1]).sample(8, torch.Generator())
    for radii, powers in (([1.0], [0]), ([1.0], [7]), ([0.0], [2]), ([1.0], [2, 2])):
        with pytest.raises(ValueError, match="for every axis"):
            LocalBox(radii, powers)
