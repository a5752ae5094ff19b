"""The closed form of f on all pairs, summed over images when periodic: the reference for every other method."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.far.images import (
    expected_images,
    squared_norm,
    sum_over_images,
)
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.method import EXP_COST, FrequencyMethod
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
            values = basis.values(squared_norm(geometry.pair_displacements[chosen]))
            return torch.where(geometry.pair_mask[chosen][..., None], values, 0.0)
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

    def pair_cost(self, geometry: Geometry, b: int, basis: GaussianBasis) -> float:
        """See :class:`FrequencyMethod`. One exponential for every pair, image and basis function."""
        n_images = expected_images(geometry, b, self.image_radius(basis))
        return EXP_COST * geometry.sizes[b] ** 2 * n_images * len(basis)
