"""The closed form of f on all pairs, summed over images when periodic: the reference for every other method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.far.costs import Work
from molflt.attention.far.images import expected_images, squared_norm, sum_over_images
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.method import STRIP, FrequencyMethod, PairsOperator, strip_share
from molflt.attention.geometry import Geometry


class ExactMethod(FrequencyMethod):
    """f(Δ_ij) = Σ_t w_t n_t exp(−|Δ_ij|²/2σ_t²), in O(N²) times the number of images."""

    name = "exact"

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`."""
        if not any(geometry.is_periodic(b) for b in structures):
            chosen = list(structures)
            positions = geometry.padded_positions[chosen]
            values = basis.on_pairs(squared_distances(positions, positions, geometry.dtype))
            if not all(geometry.sizes[b] == geometry.n_max for b in chosen):
                values = torch.where(geometry.pair_mask[chosen], values, 0.0)
            # Contraction wants the members first, and finds them so in memory.
            return values.movedim(0, -1)
        radius = basis.reach
        return geometry.pad_blocks(
            [
                sum_over_images(geometry, b, radius, lambda delta: basis.values(squared_norm(delta)).to(delta.dtype))
                for b in structures
            ],
        )

    def pairs_operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> PairsOperator:
        """See :class:`FrequencyMethod`."""
        if geometry.is_periodic(b):
            return super().pairs_operator(geometry, b, basis)
        r, dtype = geometry.atoms_of(b), geometry.dtype
        starts = range(0, len(r), STRIP)
        return PairsOperator([basis.on_pairs(squared_distances(r[a : a + STRIP], r[a:], dtype)) for a in starts])

    def pairs_operator_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work | None:
        """See :class:`FrequencyMethod`."""
        whole = self.pair_work(geometry, b, basis)
        return whole if geometry.is_periodic(b) else whole.times(strip_share(geometry.sizes[b]))

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work:
        """See :class:`FrequencyMethod`. One exponential for every pair, image and member."""
        n_pairs = geometry.sizes[b] ** 2
        if not geometry.is_periodic(b):
            return Work(exact_calls=1, pair_members=n_pairs * len(basis), pair_waves=n_pairs * basis.n_waves)
        radius = basis.reach
        near = n_pairs * expected_images(geometry, b, radius)
        return Work(
            image_calls=1,
            image_candidates=n_pairs * expected_images(geometry, b, radius + geometry.radii[b]),
            image_members=near * len(basis),
            image_waves=near * basis.n_waves,
        )


def squared_distances(receivers: Tensor, senders: Tensor, dtype: torch.dtype) -> Tensor:
    """|r_i − r_j|² of (..., n, 3) and (..., m, 3) float64, in ``dtype``: (..., n, m) Å²."""
    total: Tensor | None = None
    # Axis by axis, for a sum over three neighbouring numbers is slow.
    for a, b in zip(receivers.unbind(dim=-1), senders.unbind(dim=-1), strict=True):
        delta = (a[..., :, None] - b[..., None, :]).to(dtype)
        total = delta.square() if total is None else total + delta.square()
    assert total is not None
    return total
