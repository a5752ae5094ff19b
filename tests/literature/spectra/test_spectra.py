"""Every spectrum against its closed form f: by integration, and by the mean over draws."""

import math

import numpy as np
import pytest
import torch

from tests.literature.spectra.families import FAMILIES, differences

N_DRAWS = 100_000

KERNELS = ("gaussian", "laplace", "matern32", "matern52")


def integral_1d(spectrum, delta, xi_max=2e4, period=60.0):
    """∫ g e^{2πiΔξ} dξ by the trapezoid rule; f has ended within the period, so only the end at ξ_max errs."""
    found = torch.zeros_like(delta[:, 0])
    for nodes in (torch.arange(1, int(xi_max * period), dtype=torch.float64) / period).split(200_000):
        found += torch.cos(2 * math.pi * delta * nodes) @ spectrum.transform(nodes[:, None])
    return (2 * found + spectrum.transform(delta.new_zeros(1))) / period


@pytest.mark.parametrize("name", FAMILIES)
def test_transform_is_the_fourier_transform_of_f_in_one_dimension(name):
    spectrum, delta = FAMILIES[name](1), differences(1)
    # The tail of g beyond ξ_max: like 1/ξ² for these two, negligible for the others.
    slow = name in ("laplace", "box2", "box243")
    with torch.no_grad():
        integral = integral_1d(spectrum, delta, 2e4 if slow else 2e3)
        error = (integral - spectrum.value(delta)).abs().max().item()
        without_two_pi = (integral - spectrum.value(2 * math.pi * delta)).abs().max().item()
    assert error < (1e-5 if slow else 1e-8)
    assert without_two_pi > 0.1


@pytest.mark.parametrize("name", KERNELS)
def test_transform_is_the_fourier_transform_of_f_in_three_dimensions(name):
    """f(Δ) = ∫₀^∞ 4πξ² g(ξ) sin(2πξΔ)/(2πξΔ) dξ for a radial g."""
    spectrum = FAMILIES[name](3)
    distance = torch.tensor([0.2, 0.7, 1.9, 4.0], dtype=torch.float64)
    delta = torch.stack([distance, 0 * distance, 0 * distance], dim=1)
    xi = torch.arange(1, 60_000, dtype=torch.float64) / 60.0
    nodes = torch.stack([xi, 0 * xi, 0 * xi], dim=1)
    with torch.no_grad():
        kernel = torch.from_numpy(np.sinc(2 * np.outer(distance.numpy(), xi.numpy())))
        integral = kernel @ (4 * math.pi * xi**2 * spectrum.transform(nodes)) / 60.0
        error = (integral - spectrum.value(delta)).abs().max().item()
        without_two_pi = (integral - spectrum.value(2 * math.pi * delta)).abs().max().item()
    assert error < (1e-5 if name == "laplace" else 1e-8)
    assert without_two_pi > 0.1


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_unbiased_over_draws(name, dim):
    """Each draw alone estimates f; the mean is within four standard errors (FLT Theorem 4.1)."""
    spectrum, delta = FAMILIES[name](dim), differences(dim)
    with torch.no_grad():
        xi = spectrum.sample(N_DRAWS, torch.Generator().manual_seed(1))
        terms = N_DRAWS * spectrum.coefficients(xi) * torch.cos(2 * math.pi * delta @ xi.T)
        mean, error = terms.mean(dim=1), terms.std(dim=1) / math.sqrt(N_DRAWS)
        # At Δ = 0 the terms of a kernel are all one.
        error = error.clamp(min=1e-9)
        deviation = ((mean - spectrum.value(delta)) / error).abs().max().item()
        without_two_pi = ((mean - spectrum.value(2 * math.pi * delta)) / error).abs().max().item()
    assert error.max().item() < 0.02
    assert deviation < 4.0
    assert without_two_pi > 100.0


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_f_is_even_and_peaks_where_it_says(name, dim):
    spectrum, delta = FAMILIES[name](dim), differences(dim)
    with torch.no_grad():
        torch.testing.assert_close(spectrum.value(delta), spectrum.value(-delta), rtol=1e-13, atol=1e-15)
        at_zero = spectrum.value(torch.zeros(dim, dtype=torch.float64)).item()
    assert at_zero == pytest.approx(0.9 if name.startswith("mixture") else 1.0, rel=1e-6)
