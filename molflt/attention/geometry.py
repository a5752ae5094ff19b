"""Positions of a batch, prepared once for the attention of all layers and recycles.

Atoms are stored packed, ``(n_atoms, ...)``, structure after structure. Operations on pairs of atoms are padded,
``(n_structures, n_max, ...)``. The arrangement is in the :class:`~molflt.attention.layout.Layout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from molflt.attention.layout import Entries, Layout
from molflt.attention.places import Kept
from molflt.attention.sparse import of_columns, sum_of_entries, to_entries


@dataclass
class Geometry:
    """Positions and layout of a batch of structures.

    Every structure is centred and displacements are formed in float64, and only then cast to ``dtype``, so that
    coordinates far from the origin lose no digits.

    Attributes:
        positions: (n_atoms, 3) Å, float64, centred on each structure's mean.
        centroids: (n_structures, 3) Å, float64: the means that were subtracted.
        atomic_numbers: (n_atoms,).
        cell: (n_structures, 3, 3) Å, float64, rows are lattice vectors.
        pbc: (n_structures, 3) bool, which of them are periodic.
        layout: of the batch.
        dtype: the dtype of everything computed from the geometry.
    """

    positions: Tensor
    centroids: Tensor
    atomic_numbers: Tensor
    cell: Tensor
    pbc: Tensor
    layout: Layout
    dtype: torch.dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of atoms of each structure."""
        return self.layout.sizes

    @property
    def structure(self) -> Tensor:
        """(n_atoms,) the index of the structure of each atom, ascending."""
        return self.layout.structure

    @property
    def n_structures(self) -> int:
        """Number of structures in the batch."""
        return self.layout.places.n_structures

    @property
    def n_atoms(self) -> int:
        """Number of atoms in the batch."""
        return len(self.atomic_numbers)

    @Kept
    def near_displacements(self) -> Tensor:
        """Displacements of ``layout.near``, (n_entries, 3) Å; see :meth:`displacements`."""
        return self.displacements(self.layout.near)

    def displacements(self, entries: Entries) -> Tensor:
        """Δ_ij = r_i − r_j − offset·cell of every entry, (n_entries, 3) Å, in ``dtype``.

        It is zero for an atom itself.
        """
        found = to_entries(entries.pattern, self.positions) - of_columns(entries.pattern, self.positions)
        if entries.offsets is None:
            return found.to(self.dtype)
        if self.n_structures == 1:
            shifts = entries.offsets.to(self.cell.dtype) @ self.cell[0]
        else:
            # Selected rows are copied as a whole, which avoids a product with a small matrix for every edge.
            cells = self.cell.index_select(0, self.structure.index_select(0, entries.receiver))
            shifts = (entries.offsets[:, :, None] * cells).sum(dim=1)
        return (found - shifts).to(self.dtype)

    @Kept
    def atom_mask(self) -> Tensor:
        """(n_structures, n_max) bool: which places hold an atom."""
        return self.pad(torch.ones_like(self.structure, dtype=torch.bool))

    @Kept
    def pair_mask(self) -> Tensor:
        """(n_structures, n_max, n_max) bool: both atoms exist."""
        return self.atom_mask[:, :, None] & self.atom_mask[:, None, :]

    def pad(self, packed: Tensor) -> Tensor:
        """(n_atoms, ...) → (n_structures, n_max, ...), zeros where there is no atom."""
        return self.layout.places.pad(packed)

    def pack(self, padded: Tensor) -> Tensor:
        """(n_structures, n_max, ...) → (n_atoms, ...)."""
        return self.layout.places.pack(padded)

    def sum_on_pairs(self, entries: Entries, values: Tensor) -> Tensor:
        """Sum values on pairs: (c, n_entries) → (c, n_structures, n_max, n_max).

        Several entries of one pair, its images, are added.
        """
        places = self.layout.places
        n = places.n_max
        pair = places.slot[entries.receiver] * n + places.slot[entries.sender] % n
        flat = values.new_zeros(values.shape[0], places.n_structures * n * n)
        summed = flat.scatter_add(1, pair.expand(values.shape), values)
        return summed.view(-1, places.n_structures, n, n)

    def sum_over_structures(self, values: Tensor) -> Tensor:
        """(n_atoms, c) or (n_atoms,) → (n_structures, ...)."""
        pattern = self.layout.atoms_of_structures
        return sum_of_entries(pattern, values) if values.dim() > 1 else sum_of_entries(pattern, values[:, None])[:, 0]

    def to_atoms(self, values: Tensor) -> Tensor:
        """(n_structures, c) → (n_atoms, c)."""
        return to_entries(self.layout.atoms_of_structures, values)


def geometry_of_batch(batch: Any, layout: Layout, dtype: torch.dtype) -> Geometry:
    """Centre the structures of a batch.

    Args:
        batch: with positions, (n_atoms, 3) Å, through which gradients flow, atomic numbers and cells.
        layout: of the batch, on its device.
        dtype: floating dtype of everything derived.
    """
    positions = batch.positions.to(torch.float64)
    sums = sum_of_entries(layout.atoms_of_structures, positions)
    centroids = sums / layout.counts[:, None]
    return Geometry(
        positions=positions - to_entries(layout.atoms_of_structures, centroids),
        centroids=centroids,
        atomic_numbers=batch.atomic_numbers,
        cell=batch.cell.to(torch.float64),
        pbc=batch.pbc,
        layout=layout,
        dtype=dtype,
    )
