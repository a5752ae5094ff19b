"""Student's t density in R^ℓ: what Matérn kernels are drawn from, and a proposal with tails of a chosen power."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.spectra.spectrum import normal_noise


def student_noise(n: int, dim: int, degrees: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """(n, dim) draws of unit scale: z/√(χ²/degrees) with z ~ N(0, I) in R^dim and χ² of ``degrees`` degrees.

    Args:
        n: number of draws.
        dim: ℓ.
        degrees: of freedom; a whole number, so that χ² is a sum of that many squares.
        generator: of the noise.
        like: gives dtype and device.
    """
    normal = normal_noise((n, dim + degrees), generator, like)
    chi_squared = (normal[:, dim:] ** 2).sum(dim=1, keepdim=True)
    return normal[:, :dim] / (chi_squared / degrees).sqrt()


def student_log_density(squared: Tensor, degrees: int, dim: int) -> Tensor:
    """Logarithm of Γ((d+ℓ)/2)/(Γ(d/2) (πd)^{ℓ/2}) · (1 + x²/d)^{−(d+ℓ)/2}, d the degrees of freedom, of unit scale.

    Args:
        squared: x² (...), the squared distance from the centre over the squared scale.
        degrees: d.
        dim: ℓ.
    """
    half = (degrees + dim) / 2
    norm = math.lgamma(half) - math.lgamma(degrees / 2) - dim / 2 * math.log(math.pi * degrees)
    return norm - half * torch.log1p(squared / degrees)
