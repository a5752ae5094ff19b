"""The interface of all spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from molflt.errors import InputError


class Spectrum(nn.Module):
    """A function f: R^ℓ → R, its Fourier transform g, and a density p to draw frequencies from.

        f(Δ) = ∫ g(ξ) e^{2πi Δ·ξ} dξ ≈ Σ_k a_k cos(2πξ_k·Δ),   a_k = g(ξ_k)/(r p(ξ_k)),   ξ_k ~ p        (FLT Eq. 2)

    Every g here is real and even, so f is real and even, and no sine enters. All four functions are differentiable
    in the parameters, which are positive by construction where they must be.

    Attributes:
        dim: ℓ.
    """

    dim: int

    def value(self, displacements: Tensor) -> Tensor:
        """The closed form of f: Δ (..., ℓ) Å → (...)."""
        raise NotImplementedError

    def transform(self, xi: Tensor) -> Tensor:
        """The spectrum g: ξ (..., ℓ) 1/Å → (...) Å^ℓ."""
        raise NotImplementedError

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, ℓ) 1/Å, independent draws from p, differentiable in the parameters.

        A draw is noise moved and scaled by the parameters: the generator in the same state gives the same noise, and
        the frequencies follow the parameters smoothly.
        """
        raise NotImplementedError

    def log_prob(self, xi: Tensor) -> Tensor:
        """Logarithm of p, normalised over R^ℓ: ξ (..., ℓ) 1/Å → (...)."""
        raise NotImplementedError

    def coefficients(self, xi: Tensor) -> Tensor:
        """a_k of the drawn frequencies: (r, ℓ) 1/Å → (r,).

        In float64 inside: far out in a heavy tail the product of three densities is below the least float32.
        """
        wide = xi.to(torch.float64)
        return (self.transform(wide) / (xi.shape[0] * self.log_prob(wide).exp())).to(xi.dtype)


def log_parameter(values: Sequence[float], name: str) -> nn.Parameter:
    """The logarithm of positive numbers as a parameter: whatever it learns, its exponential is positive.

    Args:
        values: the start.
        name: what the message calls them.

    Raises:
        InputError: a number is not positive and finite, or there are none.
    """
    if not values or not all(math.isfinite(x) and x > 0 for x in values):
        raise InputError(f"{name} must be positive and finite, got {list(values)}; give lengths in Å above zero")
    return nn.Parameter(torch.tensor([math.log(x) for x in values]))


def normal_noise(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """N(0, I) of a shape, drawn in float64 so that both precisions see the same draw, in the dtype of ``like``."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    return noise.to(like)


def check_dimension(dim: int) -> None:
    """A dimension is a positive whole number.

    Raises:
        InputError: it is not.
    """
    if dim < 1:
        raise InputError(f"the dimension of positions must be at least 1, got {dim}")
