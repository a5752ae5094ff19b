"""What a user can get wrong when building a spectrum, and parameters that stay positive."""

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.spectra.bochner import GaussianKernel, LaplaceKernel, MaternKernel
from molflt.literature.spectra.gaussian_mixture import GaussianMixture
from tests.literature.spectra.families import FAMILIES


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianKernel(0, 1.0), "at least 1"),
        (lambda: LaplaceKernel(3, -1.0), "above zero"),
        (lambda: LaplaceKernel(3, float("nan")), "above zero"),
        (lambda: MaternKernel(3, 1.0, 2.0), "choose 0.5, 1.5 or 2.5"),
        (lambda: GaussianMixture([1.0], [1.0, 2.0], [[0.0]]), "one of each"),
        (lambda: GaussianMixture([1.0, 1.0], [1.0, 2.0], [[0.0], [0.0, 1.0]]), "same number of components"),
        (lambda: GaussianMixture([1.0], [0.0], [[0.0]]), "above zero"),
        (lambda: GaussianMixture([], [], []), "above zero"),
    ],
)
def test_impossible_spectra_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize("name", FAMILIES)
def test_positive_whatever_it_learns(name):
    spectrum = FAMILIES[name](2)
    with torch.no_grad():
        for parameter in spectrum.parameters():
            parameter.copy_(-3.0 * torch.ones_like(parameter))
        for quantity in ("length", "widths", "radii", "scale", "scales", "guard"):
            if hasattr(spectrum, quantity):
                assert bool((getattr(spectrum, quantity) > 0).all())
        xi = spectrum.sample(64, torch.Generator().manual_seed(0))
        assert bool(spectrum.coefficients(xi).isfinite().all())
