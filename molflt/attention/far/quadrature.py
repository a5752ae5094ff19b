"""The radial Fourier integral by the trapezoid rule, directions averaged (DESIGN §3, items 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.far.costs import Work
from molflt.attention.far.images import expected_images, safe_norm, squared_norm, sum_over_images
from molflt.attention.far.members import TAPER, GaussianBasis, cutoff_factor
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import sinc_of_square, smooth_max, taper


class QuadratureMethod(FrequencyMethod):
    """f(Δ) = ∫₀^∞ 4πξ² g(ξ) sin(2πξΔ)/(2πξΔ) dξ ≈ Σ_k δ 4πξ_k² g(ξ_k) sinc(2πξ_kΔ), ξ_k = kδ.

    The rule converges exponentially, with ξ_max = c/(2πσ_min), δ = 1/(D + cσ_max) and D the largest distance. The
    energy is smooth, because δ is a differentiable function of the geometry and nodes enter with a weight of zero.
    It works on pairs only: it is there to check the other methods by.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    name = "quadrature"

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`. Periodic structures are summed over images, which is correct but slow."""
        return geometry.pad_blocks([self._block(geometry, b, basis) for b in structures])

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work:
        """See :class:`FrequencyMethod`."""
        n_nodes = self._n_nodes(_extent(geometry, b, basis, self.tolerance), basis)
        n_images = expected_images(geometry, b, basis.widest * cutoff_factor(self.tolerance))
        on_nodes = geometry.sizes[b] ** 2 * n_images * n_nodes
        return Work(pair_waves=on_nodes, pair_mixed=on_nodes * len(basis))

    def _n_nodes(self, extent: float, basis: GaussianBasis) -> int:
        xi_max = TAPER * basis.band_limit(self.tolerance)
        return math.ceil(xi_max * (2 * extent + cutoff_factor(self.tolerance / 10) * basis.widest))

    def _block(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Tensor:
        """(n, n, n_basis) of structure ``b`` alone."""
        radius = basis.widest * cutoff_factor(self.tolerance)
        # The errors of the images of a pair add up.
        tolerance = self.tolerance / expected_images(geometry, b, radius)
        if geometry.is_periodic(b):
            radius = basis.widest * cutoff_factor(tolerance)
            diameter = torch.as_tensor(TAPER * radius, dtype=torch.float64, device=geometry.positions.device)
        else:
            diameter = 2 * smooth_max(safe_norm(geometry.atoms_of(b)))
        xi, weights = self.nodes(basis, diameter, tolerance)
        kappa = (2 * math.pi * xi).to(geometry.dtype)

        def on_displacements(delta: Tensor) -> Tensor:
            squared = squared_norm(delta)
            values = sinc_of_square(kappa**2 * squared[..., None]) @ weights.to(geometry.dtype)
            if not geometry.is_periodic(b):
                return values
            # Beyond the radius f has ended, but its quadrature, which is periodic, has not.
            return values * taper(safe_norm(delta), radius, TAPER * radius)[..., None]

        return sum_over_images(geometry, b, TAPER * radius, on_displacements)

    def nodes(self, basis: GaussianBasis, diameter: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Nodes ξ_k (r,) 1/Å and their weights for each basis function (r, n_basis), in float64.

        Args:
            basis: the Gaussians.
            diameter: () Å, the largest distance at which f will be asked for.
            tolerance: of each value.
        """
        widths = basis.widths.to(torch.float64)
        xi_cut = basis.cutoffs(tolerance).max()
        # The rule repeats f with the period L = 1/δ, and the radial form weighs the repeated tail by up to 2L²/σ².
        spacing = 1 / (diameter + cutoff_factor(tolerance / 10) * widths.max())
        r = math.ceil(float((TAPER * xi_cut / spacing).detach()))
        xi = spacing * torch.arange(1, r + 1, dtype=torch.float64, device=spacing.device)
        radial = spacing * 4 * math.pi * xi**2 * taper(xi, xi_cut, TAPER * xi_cut)
        return xi, radial[:, None] * basis.spectra(xi)


def _extent(geometry: Geometry, b: int, basis: GaussianBasis, tolerance: float) -> float:
    """An upper bound in Å of half of the largest distance at which f will be asked for."""
    if geometry.is_periodic(b):
        return TAPER * basis.widest * cutoff_factor(tolerance) / 2
    return float(smooth_max(geometry.atoms_of(b).detach().norm(dim=1)))
