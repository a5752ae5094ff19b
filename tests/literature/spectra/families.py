"""One of every spectrum, in any dimension, and the differences Δ at which f is compared."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from molflt.literature.spectra.bochner import GaussianKernel, LaplaceKernel, MaternKernel
from molflt.literature.spectra.gaussian_mixture import GaussianMixture
from molflt.literature.spectra.local_box import LocalBox
from molflt.literature.spectra.spectrum import Spectrum


def mixture(dim: int) -> GaussianMixture:
    means = [[0.0] * dim, [0.3, -0.1, 0.2][:dim], [-0.05, 0.4, 0.1][:dim]]
    return GaussianMixture([0.8, -0.5, 0.6], [1.0, 2.0, 1.4], means).double()


def mixture_learnt(dim: int) -> Spectrum:
    """With a proposal that has moved away from the spectrum: wider, and its centres elsewhere."""
    spectrum = mixture(dim)
    with torch.no_grad():
        spectrum.proposal.centres.mul_(0.5).add_(0.05)
        spectrum.proposal.log_scales.add_(torch.tensor([0.3, -0.3, 0.1], dtype=torch.float64))
    return spectrum


def box(*powers: int) -> Callable[[int], Spectrum]:
    """The powers in turn over the axes, with different radii."""
    return lambda dim: LocalBox([1.3, 0.9, 1.1][:dim], [powers[j % len(powers)] for j in range(dim)]).double()


FAMILIES: dict[str, Callable[[int], Spectrum]] = {
    "mixture": mixture,
    "mixture_learnt": mixture_learnt,
    "gaussian": lambda dim: GaussianKernel(dim, 1.7).double(),
    "laplace": lambda dim: LaplaceKernel(dim, 1.7).double(),
    "matern32": lambda dim: MaternKernel(dim, 1.7, 1.5).double(),
    "matern52": lambda dim: MaternKernel(dim, 1.7, 2.5).double(),
    "box2": box(2),
    "box3": box(3),
    "box6": box(6),
    "box243": box(2, 4, 3),
}


def differences(dim: int) -> Tensor:
    """(12, dim) Å: zero, near ones, and some beyond the support of every box."""
    generator = torch.Generator().manual_seed(5)
    directions = torch.randn(12, dim, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([0.0, 0.1, 0.3, 0.5, 0.8, 1.1, 1.5, 2.0, 2.6, 3.3, 4.1, 12.0], dtype=torch.float64)
    return directions / directions.norm(dim=1, keepdim=True) * lengths[:, None]
