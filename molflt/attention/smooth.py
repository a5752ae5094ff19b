"""Functions without a kink: smooth replacements for cutoffs and for a maximum, and the Gaussian."""

from __future__ import annotations

import torch
from torch import Tensor


def envelope(distances: Tensor, cutoff: float) -> Tensor:
    """Polynomial that is 1 at zero and has value, slope and curvature zero at ``cutoff`` (and beyond).

    The form of DimeNet (Gasteiger et al. 2020, arXiv 2003.03123, Eq. 8) with p = 6, written without the 1/d.

    Args:
        distances: any shape, Å.
        cutoff: Å.
    """
    p = 6.0
    x = (distances / cutoff).clamp(max=1.0)
    # At x = 1 the terms are 1 − 28 + 48 − 21, which is zero without rounding.
    return 1 - (p + 1) * (p + 2) / 2 * x**p + p * (p + 2) * x ** (p + 1) - p * (p + 1) / 2 * x ** (p + 2)


def taper(x: Tensor, start: float | Tensor, end: float | Tensor) -> Tensor:
    """1 below ``start``, 0 above ``end``, a quintic with two continuous derivatives in between.

    Whole shells of terms enter or leave a sum as a geometry changes; with this weight they do so at zero.
    """
    t = ((x - start) / (end - start)).clamp(0.0, 1.0)
    return 1 - t**3 * (10 - 15 * t + 6 * t * t)


def smooth_max(lengths: Tensor) -> Tensor:
    """An upper bound of the largest of (n,) lengths in Å, with derivatives of any order where two are equal.

    Log-sum-exp; above the maximum by ln(n)/4 Å at most.
    """
    return torch.logsumexp(_SHARPNESS * lengths, dim=0) / _SHARPNESS


_SHARPNESS = 4.0
"""1/Å."""


def gaussian(exponent: Tensor) -> Tensor:
    """exp(−exponent), ended at e⁻⁶⁰: the tails beyond would be denormal numbers, which slow a CPU a hundredfold."""
    return torch.exp(-exponent.clamp(max=GAUSSIAN_END))


GAUSSIAN_END = 60.0
"""Exponent at which Gaussians end."""
