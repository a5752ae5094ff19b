"""Far field over waves: Poisson summation over the reciprocal lattice (DESIGN §3, item 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from molflt.attention.far.members import TAPER, GaussianBasis
from molflt.attention.far.ways import Group
from molflt.attention.smooth import reciprocal_vectors, smooth_max, taper


@dataclass
class OnWaves:
    """f̂_h(Δ_ij) = Σ_k φ_ik c_kh φ_jk of a group of structures.

    It is a :class:`~molflt.attention.far.field.FarField`.

    Attributes:
        features: φ, (n_structures, n_max, n_features), arbitrary where there is no atom.
        coefficients: (n_structures or 1, n_weights, n_features), from the weights of a head to its c.
    """

    features: Tensor
    coefficients: Tensor

    def matrix(self, weights: Tensor) -> Tensor:
        """See :class:`FarField`."""
        scaled = self.features[None] * self._of_heads(weights)[:, :, None]
        return scaled @ self.features.transpose(1, 2)

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarField`: Q'(K'ᵀV), O(n · n_features)."""
        _, _, n_heads, n_channels = values.shape
        summed = (self.features.transpose(1, 2) @ values.flatten(2)).unflatten(2, (n_heads, n_channels))
        scaled = summed * self._of_heads(weights).permute(1, 2, 0)[..., None]
        return (self.features @ scaled.flatten(2)).unflatten(2, (n_heads, n_channels))

    def _of_heads(self, weights: Tensor) -> Tensor:
        """(n_weights, n_heads) → (n_heads, n_structures, n_features)."""
        return (weights.transpose(0, 1) @ self.coefficients).transpose(0, 1)


def on_waves(
    groups: Sequence[tuple[Group, Tensor, Tensor]],
    basis: GaussianBasis,
    tolerance: float,
    longest: float,
    padding: float,
) -> list[OnWaves]:
    """Σ_n f(Δ + n·A) = (1/V) Σ_{ξ∈Λ*} g(ξ) cos(2πξ·Δ), ξ = 0 included.

    The sum runs over all |ξ| up to a cutoff with a smooth taper, and takes one of each pair ±ξ. It does not change
    when an atom is wrapped or another basis of the lattice is chosen, because the set of ξ depends on neither. A
    non-periodic axis gets an artificial cell vector orthogonal to the periodic ones, so long that the images it
    makes contribute less than ε.

    Args:
        groups: structures that are summed over waves; their positions, (n_structures, n_max, 3) Å, float64, zero
            where there is no atom; and cells, (n_structures, 3, 3) Å, float64.
        basis: of f.
        tolerance: ε.
        longest: cutoff of the groups' waves, 1/Å.
        padding: Å by which artificial cell vectors are longer than a structure.
    """
    dtype = basis.widths.dtype
    features, lengths, shares = [], [], []
    for group, positions, cell in groups:
        assert group.integers is not None
        assert group.multiplicity is not None
        if group.directions is not None:
            cell = padded(positions, group.there, group.directions, cell, padding)
        reciprocal, volume = reciprocal_vectors(cell)
        xi = group.integers @ reciprocal
        turns = positions @ xi.transpose(1, 2)
        # Whole turns are removed in double precision, so that the rest keeps all its digits in any dtype.
        phase = ((2 * math.pi) * (turns - turns.detach().round())).to(dtype)
        features.append(torch.cat([phase.cos(), phase.sin()], dim=2))
        lengths.append((xi * xi).sum(dim=2).flatten())
        shares.append((group.multiplicity / volume.abs()[:, None]).flatten())
    # A norm has no derivative at the zero vector.
    length = torch.cat(lengths).clamp(min=1e-30).sqrt()
    cutoffs = basis.cutoffs(tolerance)[:, None].clamp(max=longest / TAPER)
    ended = taper(length, cutoffs, TAPER * cutoffs) * torch.cat(shares)
    weights = (ended * basis.spectra(length[None], members_first=True)).to(dtype)
    found = []
    for waves, part in zip(features, weights.split([len(p) for p in lengths], dim=1), strict=True):
        # The same for cosine and sine.
        each = part.unflatten(1, (len(waves), 1, -1)).expand(-1, -1, 2, -1).flatten(2)
        found.append(OnWaves(waves, each.transpose(0, 1)))
    return found


def padded(
    positions: Tensor, there: Tensor | None, directions: Tensor, cell: Tensor, padding: float | Tensor
) -> Tensor:
    """Cells with artificial vectors along open directions, smooth functions of the positions.

    Args:
        positions: (n_structures, n_max, 3) Å.
        there: (n_structures, n_max) bool, which places hold an atom; None: all.
        directions: (n_structures, 3, 3) unit vectors, zero for axes along which structures repeat.
        cell: (n_structures, 3, 3) Å.
        padding: Å by which the vectors are longer than a structure; several, (n, 1), of one structure.
    """
    heights = positions @ directions.transpose(1, 2)
    nowhere = None if there is None else ~there[..., None]
    above, below = (
        smooth_max(h if nowhere is None else h.masked_fill(nowhere, -math.inf)) for h in (heights, -heights)
    )
    is_open = (directions != 0).any(dim=2, keepdim=True)
    return torch.where(is_open, (above + below + padding)[..., None] * directions, cell)
