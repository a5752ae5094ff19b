"""Linear features for a sinc: the addition theorem of spherical waves (DESIGN §3, item 4).

    sin(κ|x−y|)/(κ|x−y|) = 4π Σ_lm j_l(κ|x|) Y_lm(x̂) j_l(κ|y|) Y_lm(ŷ)          (DLMF 10.60.2 with 14.30.9)

x and y count from the centroid. Cutting the sum at some l keeps rotation and translation exact, because the sum
over m of one l is invariant by itself. Written as (κ^l j_l(z)/z^l) · (|x|^l Y_lm(x̂)), each factor is smooth at x = 0:
the second is a polynomial, and no direction has to be formed.
"""

from __future__ import annotations

import math

import sphericart.torch
import torch
from torch import Tensor

from molflt.attention.frequencies.features import PositionFeatures
from molflt.attention.frequencies.images import squared_norm
from molflt.attention.spherical_bessel import bessel_over_power

MAX_DEGREE = 96
"""Powers of distances in Å stay within float64 up to here; no linear order pays beyond."""


def spherical_features(positions: Tensor, kappa: Tensor, degrees: list[int]) -> Tensor:
    """√(4π) j_l(κ_k|x_i|) Y_lm(x̂_i) for every node k and l ≤ degrees[k], computed in float64.

    Args:
        positions: (n, 3) Å from the centroid.
        kappa: (r,) 1/Å, positive.
        degrees: highest l of each node, at most MAX_DEGREE.

    Returns:
        (n, Σ_k (degrees[k] + 1)²), nodes one after the other, float64.
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
    """Σ_k a_k sinc(κ_k|Δ_ij|), each node cut at its degree.

    Args:
        positions: (n, 3) Å from the centroid.
        kappa: (r,) 1/Å.
        coefficients: a, (r, n_weights).
        degrees: highest l of each node.
        dtype: of the result.
    """
    counts = torch.tensor([(degree + 1) ** 2 for degree in degrees], device=coefficients.device)
    features = spherical_features(positions, kappa, degrees).to(dtype)
    return PositionFeatures(features, coefficients.to(dtype).repeat_interleave(counts, dim=0))


def degrees_of_features(l_max: int) -> Tensor:
    """((l_max + 1)²,) int64: the l of every (l, m), in the order of the harmonics."""
    degrees = torch.arange(l_max + 1)
    return degrees.repeat_interleave(2 * degrees + 1)


def degree_for(argument: Tensor, tolerance: float) -> Tensor:
    """L beyond which Σ (2l+1) j_l(z)² P_l is below ``tolerance``, as a real number, increasing and smooth in z.

    The form z + C d^{2/3} z^{1/3} with d digits is the excess bandwidth formula of the fast multipole method (Chew
    et al., Fast and Efficient Algorithms in Computational Electromagnetics, 2001, §3.3); the summand for small z is
    ours, and the tests compare the whole with the sum.

    Args:
        argument: z = κR (...), float64.
        tolerance: absolute, for a function that is 1 at zero.
    """
    digits = math.log10(10 / tolerance)
    return argument + 0.35 * digits + 0.8 * digits ** (2 / 3) * (argument + 1e-3) ** (1 / 3)
