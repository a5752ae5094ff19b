"""The closed form of f on all pairs, summed over images when periodic: the reference for every other method."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.far.costs import Work
from molflt.attention.far.images import expected_images, squared_norm, sum_over_images
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.geometry import Geometry

IMAGE_TOLERANCE = 1e-14
"""The value of the widest Gaussian at which the image sum ends. A reference has a strict tolerance of its own."""


class ExactMethod(FrequencyMethod):
    """f(Δ_ij) = Σ_t w_t n_t exp(−|Δ_ij|²/2σ_t²), in O(N²) times the number of images."""

    name = "exact"

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`."""
        if not any(geometry.is_periodic(b) for b in structures):
            chosen = list(structures)
            values = basis.on_pairs(_squared_distances(geometry.padded_positions[chosen], geometry.dtype))
            if not all(geometry.sizes[b] == geometry.n_max for b in chosen):
                values = torch.where(geometry.pair_mask[chosen], values, 0.0)
            # Contraction wants the members first, and finds them so in memory.
            return values.movedim(0, -1)
        radius = self.image_radius(basis)
        return geometry.pad_blocks(
            [
                sum_over_images(geometry, b, radius, lambda delta: basis.values(squared_norm(delta)).to(delta.dtype))
                for b in structures
            ],
        )

    def image_radius(self, basis: GaussianBasis) -> float:
        """Å beyond which no image contributes more than IMAGE_TOLERANCE."""
        return basis.widest * math.sqrt(2 * math.log(1 / IMAGE_TOLERANCE))

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work:
        """See :class:`FrequencyMethod`. One exponential for every pair, image and member."""
        n_pairs = geometry.sizes[b] ** 2
        if not geometry.is_periodic(b):
            return Work(exact_calls=1, pair_members=n_pairs * len(basis), pair_waves=n_pairs * basis.n_waves)
        radius = self.image_radius(basis)
        near = n_pairs * expected_images(geometry, b, radius)
        diameter = math.sqrt(float(squared_norm(geometry.atoms_of(b).detach()).max()))
        return Work(
            image_calls=1,
            image_candidates=n_pairs * expected_images(geometry, b, radius + diameter),
            image_members=near * len(basis),
            image_waves=near * basis.n_waves,
        )


def _squared_distances(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """|r_i − r_j|² from (n_structures, n_max, 3) float64, in ``dtype``: (n_structures, n_max, n_max) Å²."""
    total: Tensor | None = None
    # Axis by axis, for a sum over three neighbouring numbers is slow.
    for r in positions.unbind(dim=-1):
        delta = (r[:, :, None] - r[:, None, :]).to(dtype)
        total = delta.square() if total is None else total + delta.square()
    assert total is not None
    return total
