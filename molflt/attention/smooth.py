"""Functions without a kink: smooth replacements for cutoffs and for a maximum, and the Gaussian."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def envelope(distances: Tensor, cutoff: float) -> Tensor:
    """Polynomial that is 1 at zero and has value, slope and curvature zero at ``cutoff`` (and beyond).

    The form of DimeNet (Gasteiger et al. 2020, arXiv 2003.03123, Eq. 8) with p = 6, written without the 1/d.

    Args:
        distances: any shape, Å.
        cutoff: Å.
    """
    x = (distances / cutoff).clamp(max=1.0)
    # At x = 1 this is 1 + (48 − 21 − 28), which is zero without rounding.
    return 1 + x**6 * (x * (48 - 21 * x) - 28)


def taper(x: Tensor, start: float | Tensor, end: float | Tensor) -> Tensor:
    """1 below ``start``, 0 above ``end``, a quintic with two continuous derivatives in between.

    Whole shells of terms enter or leave a sum as a geometry changes; with this weight they do so at zero.
    """
    t = ((x - start) / (end - start)).clamp(0.0, 1.0)
    return 1 - t**3 * (10 - t * (15 - 6 * t))


def smooth_max(lengths: Tensor) -> Tensor:
    """An upper bound of the largest of (..., n, c) lengths in Å over n, with derivatives of any order.

    Log-sum-exp; above the maximum by ln(n)/4 Å at most.
    """
    return torch.logsumexp(_SHARPNESS * lengths, dim=-2) / _SHARPNESS


_SHARPNESS = 4.0
"""1/Å."""


def safe_norm(displacements: Tensor) -> Tensor:
    """|Δ| with a derivative of zero instead of NaN at Δ = 0."""
    squared = (displacements * displacements).sum(dim=-1)
    nonzero = squared > 0
    return torch.where(nonzero, torch.where(nonzero, squared, torch.ones_like(squared)).sqrt(), 0.0)


def gaussian(exponent: Tensor) -> Tensor:
    """exp(−exponent), ended at e⁻⁶⁰: the tails beyond would be denormal numbers, which slow a CPU a hundredfold."""
    return torch.exp(-exponent.clamp(max=GAUSSIAN_END))


GAUSSIAN_END = 60.0
"""Exponent at which Gaussians end."""


def sinc_of_square(squared: Tensor) -> Tensor:
    """sin(z)/z of z² (...), elementwise, with derivatives of any order; ``torch.sinc`` has no second one at zero.

    The derivatives are the u_l again. As only the first few are ever asked for, closed forms serve, in any dtype.
    """
    found: Tensor = _ClosedForm.apply(squared, 0)
    return found


class _ClosedForm(torch.autograd.Function):
    """u_l of z² for one small l."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, degree: int) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.degree = degree
        if degree == 0:
            return torch.sinc(squared.sqrt() / math.pi)
        # Upwards the recurrence loses z^{-2} of its digits at every step, so that small z take the power series.
        large = squared > 2.0 + degree**2
        return torch.where(large, _upwards(torch.where(large, squared, 1.0), degree), _series(squared, degree))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (squared,) = ctx.saved_tensors
        return -0.5 * grads[0] * _ClosedForm.apply(squared, ctx.degree + 1), None


def _upwards(squared: Tensor, degree: int) -> Tensor:
    z = squared.sqrt()
    below = torch.sinc(z / math.pi)
    here = (below - z.cos()) / squared
    for k in range(1, degree):
        below, here = here, ((2 * k + 1) * here - below) / squared
    return here


def _series(squared: Tensor, degree: int) -> Tensor:
    """Σ_k (−z²/2)^k / (k! (2l+2k+1)!!) (DLMF 10.53.1), by Horner's rule, for z² up to about 2 + l²."""
    n_terms = 11 + 2 * degree
    one = squared.new_ones(())
    total = one
    for k in range(n_terms, 0, -1):
        total = torch.addcmul(one, squared, total, value=-1 / (2 * k * (2 * degree + 2 * k + 1)))
    return total / math.prod(range(1, 2 * degree + 2, 2))
