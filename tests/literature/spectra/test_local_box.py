"""The local RPE of the paper: support, powers, the series for the indicator, and what is refused."""

import math

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.spectra.local_box import LocalBox, fourier_series
from molflt.literature.spectra.spectrum import wave_features


def series_at(spectrum: LocalBox, delta: torch.Tensor, reach: float, xi_max: float) -> torch.Tensor:
    with torch.no_grad():
        xi, a = fourier_series(spectrum, reach, xi_max)
        return torch.cos(2 * math.pi * delta @ xi.T) @ a


def test_power_one_is_the_indicator_and_powers_end_at_k_radii():
    x = torch.tensor([[0.0], [1.19], [1.21], [-1.19], [-1.21]])
    assert LocalBox([1.2], [1]).value(x).tolist() == [1.0, 1.0, 0.0, 1.0, 0.0]
    for power in range(2, 7):
        spectrum = LocalBox([1.2], [power]).double()
        end = spectrum.radii.item() * power
        inside, outside = (spectrum.value(torch.tensor([end * f], dtype=torch.float64)).item() for f in (0.99, 1.01))
        assert inside > 0
        assert outside == 0


def test_axes_multiply():
    spectrum = LocalBox([1.0, 0.5, 2.0], [2, 3, 1])
    delta, xi = torch.tensor([0.7, -0.4, 1.1]), torch.tensor([0.3, -0.9, 0.2])
    axes = [LocalBox([v], [k]) for v, k in ((1.0, 2), (0.5, 3), (2.0, 1))]
    assert spectrum.value(delta).item() == pytest.approx(
        math.prod(s.value(delta[j : j + 1]).item() for j, s in enumerate(axes)), rel=1e-6
    )
    assert spectrum.transform(xi).item() == pytest.approx(
        math.prod(s.transform(xi[j : j + 1]).item() for j, s in enumerate(axes)), rel=1e-6
    )


@pytest.mark.parametrize("power", range(1, 7))
def test_transform_is_the_power_that_the_paper_writes(power):
    """C [sin(2πvξ)/(πξ)]^k, C = 1/((2v)^{k−1} M_k(0)), and finite at ξ = 0."""
    v = 1.3
    spectrum = LocalBox([v], [power]).double()
    xi = torch.tensor([0.0, 1e-9, 0.07, 0.4, -1.1, 5.3], dtype=torch.float64)[:, None]
    peak = {1: 1, 2: 1, 3: 3 / 4, 4: 2 / 3, 5: 115 / 192, 6: 11 / 20}[power]
    paper = (torch.sin(2 * math.pi * v * xi[2:, 0]) / (math.pi * xi[2:, 0])) ** power / (
        (2 * v) ** (power - 1) * peak
    )
    with torch.no_grad():
        torch.testing.assert_close(spectrum.transform(xi[2:]), paper, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(
            spectrum.transform(xi[:2]), torch.full((2,), 2 * v / peak).double(), rtol=1e-6, atol=0
        )


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
        with torch.no_grad():
            decades = [torch.linspace(a, 10 * a, 400_001, dtype=torch.float64)[:, None] for a in (1.0, 10.0, 100.0)]
            growth[power] = [torch.trapezoid(spectrum.transform(x).abs(), x[:, 0]).item() for x in decades]
    # the mean of |sin| is 2/π, so that a decade adds 2 log(10)/π²
    assert growth[1] == pytest.approx([2 * math.log(10) / math.pi**2] * 3, rel=0.01)
    assert growth[2][2] < 0.02 * growth[2][0]


def test_series_gives_the_indicator_away_from_its_jump():
    """The left-out tail is at most 1/(2π² ξ_max) (1/d₁ + 1/d₂), d the distances from the jumps at ±v; twice that for
    the images. At the jump itself: one half; beside it Gibbs' overshoot, whatever ξ_max."""
    spectrum = LocalBox([1.3], [1]).double()
    v = spectrum.radii.item()
    grid = torch.linspace(-6, 6, 2401, dtype=torch.float64)[:, None]
    distances = torch.stack([(grid[:, 0] - v).abs(), (grid[:, 0] + v).abs()])
    away = distances.amin(dim=0) > 0.1
    worst = {}
    for xi_max in (10.0, 100.0):
        error = (series_at(spectrum, grid, 6.0, xi_max) - spectrum.value(grid)).abs()
        bound = (1 / distances).sum(dim=0) / (math.pi**2 * xi_max)
        assert bool((error <= bound)[away].all())
        worst[xi_max] = error[away].max().item()
        near = v - torch.linspace(0, 3 / xi_max, 601, dtype=torch.float64)[:, None]
        assert series_at(spectrum, near, 6.0, xi_max).max().item() == pytest.approx(1.0895, abs=5e-3)
        assert series_at(spectrum, torch.tensor([[v]], dtype=torch.float64), 6.0, xi_max).item() == pytest.approx(
            0.5, abs=0.02
        )
    assert worst[100.0] < 0.2 * worst[10.0] < 0.02
    wrong = (series_at(spectrum, grid / (2 * math.pi), 6.0, 100.0) - spectrum.value(grid)).abs()
    assert wrong[away].max().item() > 0.9


@pytest.mark.parametrize(("powers", "xi_max", "tolerance"), [((2, 3), 12.0, 5e-3), ((4, 4, 3), 2.0, 1e-3)])
def test_series_in_more_dimensions_and_through_features(powers, xi_max, tolerance):
    spectrum = LocalBox([1.3, 0.9, 1.1][: len(powers)], powers).double()
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.rand(6, len(powers), generator=generator, dtype=torch.float64)
    with torch.no_grad():
        xi, a = fourier_series(spectrum, 2.0, xi_max)
        query, key = wave_features(x, x, xi, a)
        expected = spectrum.value(x[:, None, :] - x[None, :, :])
        assert (query @ key.T - expected).abs().max().item() < tolerance
        assert expected.std().item() > 30 * tolerance
        # one of ξ and −ξ only
        assert len({tuple(row) for row in torch.cat([xi, -xi]).tolist()}) == 2 * len(xi) - 1


def test_series_learns_its_radius():
    spectrum = LocalBox([1.3], [2]).double()
    xi, a = fourier_series(spectrum, 4.0, 200.0)
    value = torch.cos(2 * math.pi * xi[:, 0] * 1.7) @ a
    (slope,) = torch.autograd.grad(value, spectrum.log_radii)
    (expected,) = torch.autograd.grad(spectrum.value(torch.tensor([1.7], dtype=torch.float64)), spectrum.log_radii)
    assert slope.item() == pytest.approx(expected.item(), rel=5e-3)


@pytest.mark.parametrize(
    ("radii", "powers", "message"),
    [
        ([1.0], [0], "between 1 and 6"),
        ([1.0], [7], "between 1 and 6"),
        ([0.0], [2], "above zero"),
        ([1.0], [2, 2], "every axis"),
    ],
)
def test_impossible_boxes_are_refused(radii, powers, message):
    with pytest.raises(InputError, match=message):
        LocalBox(radii, powers)


def test_series_refuses_an_empty_range():
    with pytest.raises(InputError, match="must be positive"):
        fourier_series(LocalBox([1.0], [1]), 0.0, 3.0)
