"""The closed form of f on all pairs; summed over images when periodic. The reference for every other method."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.frequencies.images import (
    expected_images,
    pairs_from_structures,
    squared_norm,
    sum_over_images,
)
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianRPE

IMAGE_TOLERANCE = 1e-14
"""What the widest Gaussian may still be at the edge of the image sum. The oracle has its own, strict, tolerance."""


class ExactMethod(FrequencyMethod):
    """f(Δ_ij) = Σ_t w_t n_t exp(−|Δ_ij|²/2σ_t²). O(N²), times the number of images."""

    def pair_basis(self, geometry: Geometry, rpe: GaussianRPE) -> Tensor:
        """See :class:`FrequencyMethod`."""
        if not any(geometry.is_periodic(b) for b in range(geometry.n_structures)):
            basis = rpe.values(squared_norm(geometry.pair_displacements))
            return torch.where(geometry.pair_mask[..., None], basis, 0.0)
        return pairs_from_structures(geometry, [self.block(geometry, b, rpe) for b in range(geometry.n_structures)])

    def block(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> Tensor:
        """(n, n, n_basis) of structure ``b`` alone."""
        return sum_over_images(
            geometry,
            b,
            self.image_radius(rpe),
            lambda delta: rpe.values(squared_norm(delta)).to(geometry.dtype),
        )

    def image_radius(self, rpe: GaussianRPE) -> float:
        """Å beyond which no image contributes more than IMAGE_TOLERANCE."""
        return float(rpe.widths.detach().max()) * math.sqrt(2 * math.log(1 / IMAGE_TOLERANCE))

    def cost(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> float:
        """Multiply-adds for structure ``b``, counted as terms times basis functions."""
        n = geometry.sizes[b]
        n_images = expected_images(geometry, b, self.image_radius(rpe))
        return _EXP_COST * n * n * n_images * rpe.n_basis


_EXP_COST = 8.0
"""Multiply-adds an exponential is worth, measured on CPUs; only the choice of method depends on it."""
