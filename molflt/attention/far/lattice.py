"""Poisson summation over the reciprocal lattice (DESIGN §3, item 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from molflt.attention.far.costs import LayerSizes, Work
from molflt.attention.far.images import padded_cell, padded_cells
from molflt.attention.far.members import TAPER, GaussianBasis
from molflt.attention.far.method import FrequencyMethod, PositionFeatures, features_work
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import taper
from molflt.errors import InputError


class LatticeMethod(FrequencyMethod):
    """Σ_n f(Δ + n·A) = (1/V) Σ_{ξ∈Λ*} g(ξ) cos(2πξ·Δ), ξ = 0 included.

    The sum runs over all |ξ| up to a cutoff with a smooth taper, and takes one of each pair ±ξ. It does not change
    when an atom is wrapped or another basis of the lattice is chosen, because the set of ξ depends on neither. A
    non-periodic axis gets an artificial cell vector orthogonal to the periodic ones, so long that the images it
    makes contribute less than ε.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    name = "lattice"

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`.

        All structures are summed at once; those with fewer vectors are filled up with vectors of weight zero. A
        Gaussian of twice the width needs an eighth of the vectors, so each group of Gaussians takes only its own.
        """
        waves, weights, counts = self.waves(geometry, structures, basis)
        groups = []
        for first in range(0, len(basis), _GROUP):
            count = max(counts[first : first + _GROUP])
            part = waves[:, :, :count]
            weighted = part[:, None] * weights[:, first : first + _GROUP, None, :count]
            product = weighted.flatten(1, 2) @ part.transpose(1, 2)
            groups.append(product.unflatten(1, weighted.shape[1:3]))
        mask = geometry.pair_mask[list(structures)]
        return torch.where(mask[..., None], torch.cat(groups, dim=1).permute(0, 2, 3, 1), 0.0)

    def waves(
        self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Plane waves at the atoms, the longest waves first.

        Returns:
            cos 2πξ_k·r_i and sin 2πξ_k·r_i in turn, (len(structures), n_max, 2K); the weight of each for each basis
            function, (len(structures), n_basis, 2K); and how many of the 2K each basis function needs.
        """
        cell = padded_cells(geometry, structures, basis, self.tolerance / 10)
        integers, exists = self.reciprocal_integers(cell.detach(), basis)
        xi = integers @ torch.linalg.inv(cell).transpose(1, 2)
        zero = ~exists
        zero[:, 0] = True
        # A norm has no derivative at the zero vector.
        length = torch.where(zero, 0.0, torch.where(zero[..., None], 1.0, xi).norm(dim=-1))
        turns = geometry.padded_positions[list(structures)] @ xi.transpose(1, 2)
        # Whole turns are taken off in double precision, so that the rest has all its digits in any dtype.
        phase = 2 * math.pi * (turns - turns.detach().round()).to(geometry.dtype)
        waves = torch.stack([phase.cos(), phase.sin()], dim=-1).flatten(2)

        cutoffs = basis.cutoffs(self.tolerance)
        multiplicity = exists * torch.where(zero, 1.0, 2.0)
        share = multiplicity / torch.linalg.det(cell).abs()[:, None]
        weights = share[..., None] * taper(length[..., None], cutoffs, TAPER * cutoffs) * basis.spectra(length)
        needed = (length.detach()[..., None] < TAPER * cutoffs.detach()) & exists[..., None]
        counts = (2 * needed.sum(dim=1).amax(dim=0)).tolist()
        weights = weights.transpose(1, 2).repeat_interleave(2, dim=2)
        return waves, weights.to(geometry.dtype), counts

    def reciprocal_integers(self, cell: Tensor, basis: GaussianBasis) -> tuple[Tensor, Tensor]:
        """Coefficients of the reciprocal vectors within the taper's end, the zero vector first, then by length.

        Args:
            cell: (n, 3, 3) Å.
            basis: the Gaussians.

        Returns:
            (n, K, 3) float64, one of each pair ±ξ, and (n, K) bool, false for those that only fill up.
        """
        longest = TAPER * basis.band_limit(self.tolerance)
        found = [_half_lattice(one, longest) for one in cell.cpu().numpy()]
        integers = np.zeros((len(found), max(map(len, found)), 3))
        exists = np.zeros(integers.shape[:2], dtype=bool)
        for b, rows in enumerate(found):
            integers[b, : len(rows)] = rows
            exists[b, : len(rows)] = True
        return torch.from_numpy(integers).to(cell.device), torch.from_numpy(exists).to(cell.device)

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> PositionFeatures:
        """See :class:`FrequencyMethod`: 2K features for K reciprocal vectors, whose number grows as the volume."""
        waves, weights, _ = self.waves(geometry, [b], basis)
        return PositionFeatures(waves[0, : geometry.sizes[b]], weights[0].transpose(0, 1))

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work:
        """See :class:`FrequencyMethod`."""
        n, needed = geometry.sizes[b], self._expected_vectors(geometry, b, basis)
        products = sum(float(few.max()) * len(few) for few in np.split(needed, range(_GROUP, len(needed), _GROUP)))
        return Work(
            lattice_calls=1,
            wave_phases=2 * n * float(needed.max()),
            wave_spectra=len(basis) * float(needed.max()),
            wave_products=4 * n * n * products,
        )

    def operator_work(self, geometry: Geometry, b: int, basis: GaussianBasis, sizes: LayerSizes) -> Work:
        """See :class:`FrequencyMethod`."""
        n_vectors = float(self._expected_vectors(geometry, b, basis).max())
        made = Work(lattice_calls=1, wave_spectra=len(basis) * n_vectors)
        return made + features_work(geometry.sizes[b], 2 * n_vectors, len(basis), sizes)

    def _expected_vectors(self, geometry: Geometry, b: int, basis: GaussianBasis) -> np.ndarray:
        """(n_basis,): how many reciprocal vectors, one of each pair ±ξ, each Gaussian needs, judged by volume."""
        volume = geometry.measures[b]
        if not all(geometry.pbc[b]):
            volume = abs(float(torch.linalg.det(padded_cell(geometry.on_host, b, basis, self.tolerance / 10))))
        longest = TAPER * basis.ends(self.tolerance)
        return np.asarray(2 / 3 * math.pi * longest**3 * volume + 1)


def _half_lattice(cell: np.ndarray, longest: float) -> np.ndarray:
    """(K, 3) integers n with |n·A⁻ᵀ| ≤ longest, by length: zero, then one of each pair ±n.

    Raises:
        InputError: they would not fit into the memory of a usual machine.
    """
    reach = np.floor(longest * np.linalg.norm(cell, axis=1) + 1e-9).astype(int)
    if (n_tried := float(np.prod(2.0 * reach + 1))) > _MOST_TRIED:
        raise InputError(
            f"a cell of {abs(np.linalg.det(cell)):.3g} Å³ has about {n_tried:.1e} lattice waves; use "
            "frequencies=auto, or look for atoms that are far from all others"
        )
    axes = [np.arange(0, reach[0] + 1), np.arange(-reach[1], reach[1] + 1), np.arange(-reach[2], reach[2] + 1)]
    n = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    first, second, third = n.T
    n = n[(first > 0) | ((first == 0) & ((second > 0) | ((second == 0) & (third >= 0))))]
    length = np.linalg.norm(n @ np.linalg.inv(cell).T, axis=1)
    order = np.argsort(length, kind="stable")
    return n[order[length[order] <= longest]]


_MOST_TRIED = 1 << 24
"""Wave vectors that may be looked at; each takes some hundred bytes. A cell with a million atoms has half of that."""
_GROUP = 4
"""How many basis functions are contracted at once: more make larger products, fewer need fewer vectors."""
