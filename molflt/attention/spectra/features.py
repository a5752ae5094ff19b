"""Random features of an RPE function: a product of two vectors whose inner product is f̂(x − y)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.spectra.spectrum import Spectrum
from molflt.errors import InputError


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
    return wave_features(positions_q, positions_k, xi, spectrum.coefficients(xi))


def wave_features(
    positions_q: Tensor, positions_k: Tensor, xi: Tensor, coefficients: Tensor
) -> tuple[Tensor, Tensor]:
    """√|a_k| [cos 2πξ_k·x, sin 2πξ_k·x] on either side, sign(a_k) on the key side only.

    Args:
        positions_q: (n, ℓ) Å.
        positions_k: (m, ℓ) Å.
        xi: (r, ℓ) 1/Å.
        coefficients: a, (r,), of any sign.

    Returns:
        (n, 2r) and (m, 2r), in the dtype of the coefficients.
    """
    # A square root has no slope at zero; a coefficient of zero stays one through its sign.
    root = coefficients.abs().clamp(min=torch.finfo(coefficients.dtype).tiny).sqrt()
    query = root.repeat(2) * _waves(positions_q, xi).to(coefficients.dtype)
    key = (coefficients.sign() * root).repeat(2) * _waves(positions_k, xi).to(coefficients.dtype)
    return query, key


def _waves(positions: Tensor, xi: Tensor) -> Tensor:
    """(n, 2r) float64: a frequency from a heavy tail makes phases of many turns, which need the digits."""
    phase = 2 * math.pi * positions.to(torch.float64) @ xi.to(torch.float64).transpose(0, 1)
    return torch.cat([phase.cos(), phase.sin()], dim=1)
