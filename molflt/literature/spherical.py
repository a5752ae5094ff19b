"""Linear features for a sinc: the addition theorem of spherical waves (DESIGN §3, item 4)."""

from __future__ import annotations

import math
from typing import Any

import sphericart.torch
import torch
from torch import Tensor

from molflt.attention.far.images import squared_norm
from molflt.attention.far.method import PositionFeatures

MAX_DEGREE = 96
"""Up to this degree powers of distances in Å stay within float64; beyond it no linear order pays."""


def spherical_features(positions: Tensor, kappa: Tensor, degrees: list[int]) -> Tensor:
    """√(4π) j_l(κ_k|x_i|) Y_lm(x̂_i) for every node k and every l ≤ degrees[k], computed in float64.

    Args:
        positions: (n, 3) Å from the centroid.
        kappa: (r,) 1/Å, positive.
        degrees: the highest l of each node, at most MAX_DEGREE.

    Returns:
        (n, Σ_k (degrees[k] + 1)²) float64, node after node.
    """
    x = positions.to(torch.float64)
    kappa = kappa.to(torch.float64)
    l_max = max(degrees)
    solid = sphericart.torch.SolidHarmonics(l_max).compute(x.contiguous())
    radial = bessel_over_power(squared_norm(x)[:, None] * kappa**2, l_max)
    powers = kappa[:, None] ** torch.arange(l_max + 1, dtype=torch.float64, device=x.device)
    radial = math.sqrt(4 * math.pi) * radial * powers
    degree_of = degrees_of_features(l_max).to(x.device)
    # All m of one l share a radial factor.
    parts = [
        radial[:, k].index_select(1, degree_of[: (degree + 1) ** 2]) * solid[:, : (degree + 1) ** 2]
        for k, degree in enumerate(degrees)
    ]
    return torch.cat(parts, dim=1)


def spherical_operator(
    positions: Tensor, kappa: Tensor, coefficients: Tensor, degrees: list[int], dtype: torch.dtype
) -> PositionFeatures:
    """Σ_k a_k sinc(κ_k|Δ_ij|) with the expansion of each node ended at its degree.

    Args:
        positions: (n, 3) Å from the centroid.
        kappa: (r,) 1/Å.
        coefficients: a, (r, n_weights).
        degrees: the highest l of each node.
        dtype: of the result.
    """
    counts = torch.tensor([(degree + 1) ** 2 for degree in degrees], device=coefficients.device)
    features = spherical_features(positions, kappa, degrees).to(dtype)
    return PositionFeatures(features, coefficients.to(dtype).repeat_interleave(counts, dim=0))


def degrees_of_features(l_max: int) -> Tensor:
    """((l_max + 1)²,) int64: the l of every (l, m) in the order of the harmonics."""
    degrees = torch.arange(l_max + 1)
    return degrees.repeat_interleave(2 * degrees + 1)


def degree_for(argument: Tensor, tolerance: float) -> Tensor:
    """The L beyond which Σ (2l+1) j_l(z)² P_l is below ``tolerance``: a real number, increasing and smooth in z.

    The form z + C d^{2/3} z^{1/3} with d digits is the excess bandwidth formula of the fast multipole method (Chew
    et al., Fast and Efficient Algorithms in Computational Electromagnetics, 2001, §3.3). The summand for small z is
    ours; the tests compare the whole with the sum.

    Args:
        argument: z = κR (...), float64.
        tolerance: absolute, for a function that is 1 at zero.
    """
    digits = math.log10(10 / tolerance)
    return argument + 0.35 * digits + 0.8 * digits ** (2 / 3) * (argument + 1e-3) ** (1 / 3)


_LARGEST = 1e120
"""Where a running recurrence is scaled down, far enough from the end of float64 for one more step."""


def bessel_over_power(squared: Tensor, l_max: int) -> Tensor:
    """u_l(z²) = j_l(z)/z^l for l = 0 … l_max, with derivatives of any order.

    j_l(z)/z^l is an even entire function of z, so nothing is singular at z = 0, and the family is closed under
    differentiation: du_l/d(z²) = −u_{l+1}/2 (DLMF 10.51.3). It is computed in float64 whatever the dtype.

    Args:
        squared: z² (...), not negative.
        l_max: the highest degree.

    Returns:
        (..., l_max + 1), in the dtype of ``squared``.
    """
    found: Tensor = _BesselOverPower.apply(squared.to(torch.float64), l_max)
    return found.to(squared.dtype)


class _BesselOverPower(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, squared: Tensor, l_max: int) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.l_max = l_max
        return _recur(squared, l_max)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (squared,) = ctx.saved_tensors
        slope = -0.5 * _BesselOverPower.apply(squared, ctx.l_max + 1)[..., 1:]
        return (grads[0] * slope).sum(dim=-1), None


def _recur(squared: Tensor, l_max: int) -> Tensor:
    """Miller's algorithm: u_{l−1} = (2l+1) u_l − z² u_{l+1} downwards, started above both l_max and z.

    The result is normalised by whichever of u_0 and u_1, both known in closed form, is not near a zero.
    """
    z = squared.sqrt()
    largest = float(z.max()) if z.numel() else 0.0
    # Above z the minimal solution takes over within a few multiples of z^{1/3}.
    start = max(l_max, math.ceil(largest)) + math.ceil(6 * max(largest, 1.0) ** (1 / 3)) + 16
    above, here = torch.zeros_like(z), torch.full_like(z, 1e-120)
    kept: list[Tensor] = []
    for degree in range(start, 0, -1):
        below = (2 * degree + 1) * here - squared * above
        above, here = here, below
        big = here.abs() > _LARGEST
        if bool(big.any()):
            scale = torch.where(big, torch.full_like(z, 1 / _LARGEST), 1.0)
            above, here = above * scale, here * scale
            kept = [k * scale for k in kept]
        if degree - 1 <= l_max:
            kept.append(here)
    kept.reverse()
    # After the loop, `here` is u_0 and `above` is u_1, both up to one common factor.
    factor = torch.where(_zeroth(z).abs() >= (z * _first(z)).abs(), _zeroth(z) / here, _first(z) / above)
    return torch.stack(kept, dim=-1) * factor[..., None]


def _zeroth(z: Tensor) -> Tensor:
    """j_0(z) = sin(z)/z."""
    return torch.sinc(z / math.pi)


def _first(z: Tensor) -> Tensor:
    """j_1(z)/z = (sin z/z − cos z)/z², used only where j_0 is the smaller, that is, beyond z ≈ 1.5."""
    return (_zeroth(z) - z.cos()) / torch.where(z > 1, z * z, 1.0)
