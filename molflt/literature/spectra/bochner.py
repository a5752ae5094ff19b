"""Shift-invariant kernels drawn from their own spectral density (FLT §4.3; Rahimi & Recht 2007).

By Bochner's theorem a positive definite f with f(0) = 1 has a g that is a probability density. Frequencies drawn from
it all have the weight a_k = 1/r, and no term of an estimate of f(Δ) is larger. Student's t is the density of Matérn
kernels, and serves as a proposal with tails of a chosen power.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.smooth import safe_norm, squared_norm
from molflt.errors import InputError
from molflt.literature.spectra.spectrum import Spectrum, check_dimension, log_parameter, normal_noise


class BochnerKernel(Spectrum):
    """A kernel with one length λ and f(0) = 1, whose g = p has the scale 1/(2πλ).

    Args:
        dim: ℓ.
        length: λ, Å, at the start.

    Raises:
        InputError: ``dim`` or ``length`` is not positive.
    """

    def __init__(self, dim: int, length: float) -> None:
        super().__init__()
        check_dimension(dim)
        self.dim = dim
        self.log_length = log_parameter([length], "length")

    @property
    def length(self) -> Tensor:
        """λ, (1,) Å."""
        return self.log_length.exp()

    @property
    def scale(self) -> Tensor:
        """1/(2πλ), (1,) 1/Å; the 2π is that of e^{2πi Δ·ξ}."""
        return 1 / (2 * math.pi * self.length)

    def transform(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`: the density itself."""
        return self.log_prob(xi).exp()

    def coefficients(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`: exactly 1/r."""
        return xi.new_full((xi.shape[0],), 1 / xi.shape[0])


class GaussianKernel(BochnerKernel):
    """f(Δ) = exp(−|Δ|²/2λ²), whose g is N(0, I/(2πλ)²). Arguments as :class:`BochnerKernel`."""

    def value(self, displacements: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        return torch.exp(-squared_norm(displacements) / (2 * self.length**2))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """See :class:`Spectrum`."""
        return self.scale * normal_noise((n, self.dim), generator, self.log_length)

    def log_prob(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        return -squared_norm(xi) / (2 * self.scale**2) - self.dim * torch.log(math.sqrt(2 * math.pi) * self.scale)


class MaternKernel(BochnerKernel):
    """Matérn kernel: a polynomial of √(2ν)|Δ|/λ times its falling exponential.

    Rasmussen & Williams, Gaussian Processes for Machine Learning (2006), Eq. 4.14 with 4.16 and 4.17 for f. Their
    Eq. 4.15, S(ξ) ∝ (2ν/λ² + 4π²|ξ|²)^{−(ν + ℓ/2)}, in the same convention for the transform, is Student's t in R^ℓ
    with 2ν degrees of freedom and the scale 1/(2πλ), and that is how it is drawn and normalised here.

    At Δ = 0 the first derivative of f comes out as zero, as symmetry demands; the second must not be used.

    Args:
        dim: ℓ.
        length: λ, Å, at the start.
        nu: ν, one of 1/2, 3/2 and 5/2: f has 0, 1 or 2 continuous derivatives at Δ = 0.

    Raises:
        InputError: ``dim`` or ``length`` is not positive, or there is no closed form for ``nu``.
    """

    def __init__(self, dim: int, length: float, nu: float) -> None:
        super().__init__(dim, length)
        if nu not in (0.5, 1.5, 2.5):
            raise InputError(f"no closed form for nu = {nu}; choose 0.5, 1.5 or 2.5")
        self.nu = nu
        self.degrees = round(2 * nu)

    def value(self, displacements: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        x = math.sqrt(2 * self.nu) * safe_norm(displacements) / self.length
        polynomial = {1: torch.ones_like(x), 3: 1 + x, 5: 1 + x + x**2 / 3}[self.degrees]
        return polynomial * torch.exp(-x)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """See :class:`Spectrum`."""
        return self.scale * student_noise(n, self.dim, self.degrees, generator, self.log_length)

    def log_prob(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        log_density = student_log_density(squared_norm(xi) / self.scale**2, self.degrees, self.dim)
        return log_density - self.dim * torch.log(self.scale)


class LaplaceKernel(MaternKernel):
    """f(Δ) = exp(−|Δ|/λ), the Matérn kernel of ν = 1/2: g is Cauchy's density in R^ℓ.

    Arguments as :class:`BochnerKernel`.
    """

    def __init__(self, dim: int, length: float) -> None:
        super().__init__(dim, length, nu=0.5)


def student_noise(n: int, dim: int, degrees: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """(n, dim) draws of unit scale: z/√(χ²/d) with z ~ N(0, I) in R^dim and χ² a sum of d = ``degrees`` squares.

    They have the dtype and device of ``like``.
    """
    normal = normal_noise((n, dim + degrees), generator, like)
    chi_squared = (normal[:, dim:] ** 2).sum(dim=1, keepdim=True)
    return normal[:, :dim] / (chi_squared / degrees).sqrt()


def student_log_density(squared: Tensor, degrees: int, dim: int) -> Tensor:
    """Logarithm of Γ((d+ℓ)/2)/(Γ(d/2) (πd)^{ℓ/2}) · (1 + x²/d)^{−(d+ℓ)/2}, d the degrees of freedom, of unit scale.

    ``squared`` is x² (...), the squared distance from the centre over the squared scale.
    """
    half = (degrees + dim) / 2
    norm = math.lgamma(half) - math.lgamma(degrees / 2) - dim / 2 * math.log(math.pi * degrees)
    return norm - half * torch.log1p(squared / degrees)
