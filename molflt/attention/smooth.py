"""Smooth replacements for cutoffs, norms and a maximum, sin(z)/z of z², and reciprocal vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.jit import is_scripting  # type: ignore[attr-defined]


def envelope(distances: Tensor, cutoff: float) -> Tensor:
    """Polynomial that is 1 at zero and smoothly reaches 0 at ``cutoff``, and stays there.

    Value, slope and curvature are zero at the cutoff. The form is that of DimeNet (Gasteiger et al. 2020, arXiv
    2003.03123, Eq. 8) with p = 6, written without the 1/d.

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
    """Smooth upper bound over n of lengths (..., n, c) in Å, with derivatives of any order.

    It is a log-sum-exp, above the maximum by at most ln(n)/4 Å.
    """
    return torch.logsumexp(_SHARPNESS * lengths, dim=-2) / _SHARPNESS


_SHARPNESS = 4.0
"""1/Å."""


def safe_norm(displacements: Tensor) -> Tensor:
    """|Δ| with a derivative of zero instead of NaN at Δ = 0."""
    squared = (displacements * displacements).sum(dim=-1)
    nonzero = squared > 0
    return torch.where(nonzero, torch.where(nonzero, squared, torch.ones_like(squared)).sqrt(), 0.0)


GAUSSIAN_END = 60.0
"""Exponent at which Gaussians end: the tails beyond would be denormal numbers, which slow a CPU a hundredfold."""


def shortened(x: Tensor, floor: float, groups: Tensor | None = None) -> Tensor:
    """x/√(floor + |x|²) of (..., c), twice differentiable; a unit vector for tiny ``floor``.

    Args:
        x: (..., c), or (..., m, c) if there are groups.
        floor: positive.
        groups: (m, m), symmetric; Σ_l groups_kl |x_l|² replaces |x_k|²: vectors of one group share one length.
    """
    if is_scripting():
        return x * (_dot(x, x, groups) + floor).rsqrt()
    found: Tensor = _Shortened.apply(x, floor, groups)
    return found


NOTHING = 1e-24
"""Square that vanishes beside any other and prevents divisions by zero."""


class _Shortened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: float, groups: Tensor | None) -> Tensor:
        scale = (_dot(x, x, groups) + floor).rsqrt()
        found = x * scale
        ctx.save_for_backward(x, found, scale, groups)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _SlopeShortened.apply(gradients[0], *ctx.saved_tensors), None, None


class _SlopeShortened(torch.autograd.Function):
    """J g = r (g − y (y·g)), where y = r x."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, found: Tensor, scale: Tensor, groups: Tensor | None) -> Tensor:
        share = _dot(found, gradient, groups)
        slope = torch.addcmul(gradient, found, share, value=-1) * scale
        ctx.save_for_backward(gradient, found, scale, groups, share, slope)
        return slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *to_slopes: Tensor) -> tuple[Tensor | None, ...]:
        (along,) = to_slopes
        gradient, found, scale, groups, share, slope = ctx.saved_tensors
        own = _dot(found, along, groups)
        to_gradient = torch.addcmul(along, found, own, value=-1) * scale
        rest = torch.addcmul(_dot(along, gradient, groups), own, share, value=-1) * scale
        to_x = torch.addcmul(torch.addcmul(found * rest, to_gradient, share), slope, own)
        return to_gradient, to_x * -scale, None, None, None


def _dot(one: Tensor, other: Tensor, groups: Tensor | None) -> Tensor:
    found = (one * other).sum(dim=-1)
    return (found if groups is None else found @ groups)[..., None]


def sinc_of_square(squared: Tensor) -> Tensor:
    """sin(z)/z of z² (...), elementwise, twice differentiable.

    ``torch.sinc`` has no second derivative at zero.
    """
    found: Tensor = _Sinc.apply(squared, 0)
    return found


class _Sinc(torch.autograd.Function):
    """u_l of z²."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, degree: int) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.degree = degree
        return sinc_family(squared, degree)[degree]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (squared,) = ctx.saved_tensors
        return -0.5 * grads[0] * _Sinc.apply(squared, ctx.degree + 1), None


def sinc_family(squared: Tensor, degree: int) -> tuple[Tensor, ...]:
    """u_0 of z² (...) or, if ``degree`` is above zero, u_0, u_1 and u_2.

    u_l = j_l(z)/z^l, so that du_l/dz² = −u_{l+1}/2.
    """
    z = squared.sqrt().clamp_(min=1e-15)
    # torch.sinc takes one number at a time on a CPU.
    u_0 = z.sin().div_(z)
    if degree == 0:
        return (u_0,)
    # The upward recurrence loses digits at small z, where the power series is used (DLMF 10.53.1).
    upwards = (u_0 - z.cos_()).mul_(3).div_(squared).sub_(u_0).div_(squared)
    one = squared.new_ones(())
    series = one
    for k in range(_TERMS.get(squared.dtype, 7), 0, -1):
        series = torch.addcmul(one, squared, series, value=-1 / (2 * k * (2 * k + 5)))
    u_2 = torch.where(squared < 1, series / 15, upwards)
    return u_0, torch.addcmul(u_0, squared, u_2) / 3, u_2


_TERMS = {torch.float32: 4, torch.float64: 7}
"""Terms of the series, for z² up to one."""


def reciprocal_vectors(cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return b_i with a_i·b_j = δ_ij, and the volume a_1·(a_2 × a_3), negative for a left-handed cell.

    Products replace the libraries' decompositions, which a CUDA graph cannot always capture.

    Args:
        cell: (..., 3, 3), rows are lattice vectors a_i.

    Returns:
        (..., 3, 3), rows are b_i, the transpose of the inverse; and (...).
    """
    across = torch.linalg.cross(cell.roll(-1, -2), cell.roll(-2, -2))
    volume = torch.linalg.vecdot(cell, across)[..., :1, None]
    return across / volume, volume[..., 0, 0]
