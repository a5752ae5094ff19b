"""The radial Fourier integral by the trapezoid rule, directions averaged (DESIGN §3, items 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.envelope import taper
from molflt.attention.frequencies.images import (
    expected_images,
    pad_blocks,
    safe_norm,
    sum_over_images,
    wrapped_pair_displacements,
)
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianBasis

TAPER = 1.08
"""The spectrum is kept whole up to ξ_c and tapered to zero at TAPER·ξ_c, so that nodes enter at zero weight."""


def cutoff_factor(tolerance: float) -> float:
    """C with exp(−c²/2) = tolerance/10: where a Gaussian and its transform count as ended.

    The factor of ten covers that it is the integral of the tail, not its first value, that is left out.
    """
    return math.sqrt(2 * math.log(10 / tolerance))


def sinc(x: Tensor) -> Tensor:
    """sin(x)/x, 1 at zero, with correct gradients there (``torch.sinc`` takes πx)."""
    return torch.sinc(x / math.pi)


class QuadratureMethod(FrequencyMethod):
    """f(Δ) = ∫₀^∞ 4πξ² g(ξ) sin(2πξΔ)/(2πξΔ) dξ ≈ Σ_k δ 4πξ_k² g(ξ_k) sinc(2πξ_kΔ), ξ_k = kδ.

    Converges exponentially: ξ_max = c/(2πσ_min), δ = 1/(D + cσ_max) with D the largest distance. δ is a
    differentiable function of the geometry and nodes enter at zero weight, so the energy is smooth.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`. Periodic structures are summed over images: correct, and slow."""
        return pad_blocks(geometry, [self._block(geometry, b, basis) for b in structures])

    def _block(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Tensor:
        """(n, n, n_basis) of structure ``b`` alone."""
        radius = basis.widest * cutoff_factor(self.tolerance)
        # The errors of the images of a pair add up.
        tolerance = self.tolerance / expected_images(geometry, b, radius)
        if geometry.is_periodic(b):
            radius = basis.widest * cutoff_factor(tolerance)
            diameter = torch.as_tensor(TAPER * radius, dtype=torch.float64, device=geometry.positions.device)
        else:
            diameter = safe_norm(wrapped_pair_displacements(geometry, b)).max()
        xi, weights = self.nodes(basis, diameter, tolerance)
        kappa = (2 * math.pi * xi).to(geometry.dtype)

        def on_displacements(delta: Tensor) -> Tensor:
            distance = safe_norm(delta)
            values = sinc(kappa * distance[..., None]) @ weights.to(geometry.dtype)
            if not geometry.is_periodic(b):
                return values
            # Beyond the radius f has ended but its quadrature, which is periodic, has not.
            return values * taper(distance, radius, TAPER * radius)[..., None]

        return sum_over_images(geometry, b, TAPER * radius, on_displacements)

    def nodes(self, basis: GaussianBasis, diameter: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Nodes ξ_k (r,) 1/Å and the weight of each for each basis function (r, n_basis); float64.

        Args:
            basis: the Gaussians.
            diameter: scalar, Å: the largest distance at which f will be asked for.
            tolerance: of each value.
        """
        widths = basis.widths.to(torch.float64)
        xi_cut = cutoff_factor(tolerance) / (2 * math.pi * widths.min())
        # The rule repeats f with period L = 1/δ, and the radial form weighs the repeated tail by up to 2L²/σ².
        spacing = 1 / (diameter + cutoff_factor(tolerance / 10) * widths.max())
        r = math.ceil(float((TAPER * xi_cut / spacing).detach()))
        xi = spacing * torch.arange(1, r + 1, dtype=torch.float64, device=spacing.device)
        radial = spacing * 4 * math.pi * xi**2 * taper(xi, xi_cut, TAPER * xi_cut)
        return xi, radial[:, None] * basis.spectra(xi)
