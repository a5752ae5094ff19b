"""The interface of all spectra, and the random features whose inner product is f̂."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from molflt.errors import InputError
from molflt.literature.undamped import plane_waves


class Spectrum(nn.Module):
    """A function f: R^ℓ → R, its Fourier transform g, and a density p to draw frequencies from.

        f(Δ) = ∫ g(ξ) e^{2πi Δ·ξ} dξ ≈ Σ_k a_k cos(2πξ_k·Δ),   a_k = g(ξ_k)/(r p(ξ_k)),   ξ_k ~ p        (FLT Eq. 2)

    Every g here is real and even; so f is real and even too, and no sine enters. All four functions are
    differentiable in the parameters, which are positive by construction where they must be.

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

        A draw is noise that the parameters move and scale. A generator in the same state gives the same noise, so the
        frequencies follow the parameters smoothly.
        """
        raise NotImplementedError

    def log_prob(self, xi: Tensor) -> Tensor:
        """Logarithm of p, normalised over R^ℓ: ξ (..., ℓ) 1/Å → (...)."""
        raise NotImplementedError

    def coefficients(self, xi: Tensor) -> Tensor:
        """a_k of the drawn frequencies: (r, ℓ) 1/Å → (r,).

        They are computed in float64: far out in a heavy tail the product of three densities underflows in float32.
        """
        wide = xi.to(torch.float64)
        return (self.transform(wide) / (xi.shape[0] * self.log_prob(wide).exp())).to(xi.dtype)


def log_parameter(values: Sequence[float], name: str) -> nn.Parameter:
    """The logarithm of positive numbers as a parameter, whose exponential is positive whatever it learns.

    Raises:
        InputError: a number is not positive and finite, or there are none.
    """
    if not values or not all(math.isfinite(x) and x > 0 for x in values):
        raise InputError(f"{name} must be positive and finite, got {list(values)}; give lengths in Å above zero")
    return nn.Parameter(torch.tensor([math.log(x) for x in values]))


def normal_noise(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Draws of N(0, 1) in the dtype of ``like``; they are made in float64, so that both precisions see the same."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)
    return noise.to(like)


def check_dimension(dim: int) -> None:
    """Raise an InputError for a dimension of positions below one."""
    if dim < 1:
        raise InputError(f"the dimension of positions must be at least 1, got {dim}")


def features(spectrum: Spectrum, positions_q: Tensor, positions_k: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
    """φ_Q and φ_K with φ_Q(x)·φ_K(y) = Σ_k a_k cos(2πξ_k·(x − y)), unbiased for f(x − y) (FLT Theorem 4.1).

    Args:
        spectrum: of f.
        positions_q: (n, ℓ) Å.
        positions_k: (m, ℓ) Å.
        xi: (r, ℓ) 1/Å, from ``spectrum.sample``.

    Returns:
        (n, 2r) and (m, 2r).

    Raises:
        InputError: positions or frequencies have another dimension than the spectrum.
    """
    for name, x in (("positions", positions_q), ("positions", positions_k), ("frequencies", xi)):
        if x.shape[-1] != spectrum.dim:
            raise InputError(
                f"{name} have {x.shape[-1]} components and the spectrum is of dimension {spectrum.dim};"
                f" build the spectrum with dimension {x.shape[-1]}"
            )
    coefficients = spectrum.coefficients(xi)
    query, _ = wave_features(plane_waves(positions_q, xi), coefficients)
    _, key = wave_features(plane_waves(positions_k, xi), coefficients)
    return query, key


def wave_features(waves: Tensor, coefficients: Tensor, softening: float = 0.0) -> tuple[Tensor, Tensor]:
    """√(|a_k| + δ) [cos 2πξ_k·x, sin 2πξ_k·x] on either side, with sign(a_k) on the key side only.

    Args:
        waves: (..., 2r) from :func:`~molflt.literature.undamped.plane_waves`.
        coefficients: a, (..., r), of any sign; leading axes broadcast with those of the waves.
        softening: δ. The derivative of a root is unbounded where a coefficient changes sign. In a product of both
            sides that cancels; where each side goes through a function of its own, a small δ is needed.

    Returns:
        Two tensors (..., 2r) in the dtype of the coefficients.
    """
    a = torch.cat([coefficients, coefficients], dim=-1)
    query = waves.to(a.dtype) * (a.abs() + softening).clamp(min=torch.finfo(a.dtype).tiny).sqrt()
    return query, query * a.sign()
