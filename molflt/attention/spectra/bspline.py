"""Cardinal B-splines: repeated convolutions of the indicator of an interval."""

from __future__ import annotations

import torch
from torch import Tensor


def cardinal_bspline(x: Tensor, order: int) -> Tensor:
    """M_k(x), the k-fold convolution of the indicator of [−½, ½]: polynomials of degree k − 1, zero beyond ±k/2.

    By the recurrence of Cox and de Boor (de Boor, A Practical Guide to Splines, 1978, ch. X), which adds terms of one
    sign only; the sum of truncated powers would cancel. An indicator is ½ at its ends: that is the value to which its
    Fourier integral converges, and it makes derivatives at a kink the mean of those from either side.

    Args:
        x: any shape.
        order: k, at least 1.

    Returns:
        The shape of ``x``, with derivatives of all orders (zero from order k on).
    """
    knots = torch.arange(order + 1, dtype=x.dtype, device=x.device) - order / 2
    from_knots = x[..., None] - knots
    # Differences of one array: a rounding error at a knot cannot count a point twice or not at all.
    spline = -from_knots.sign().diff(dim=-1) / 2
    for m in range(2, order + 1):
        rising = from_knots[..., : order + 1 - m] * spline[..., :-1]
        falling = -from_knots[..., m:] * spline[..., 1:]
        spline = (rising + falling) / (m - 1)
    return spline.squeeze(-1)
