"""What attention needs to know of a batch's geometry, computed once and shared by all layers and recycles.

Atoms are stored packed, ``(n_atoms, ...)``, structure after structure. The quadratic contraction order works on
padded pairs, ``(n_structures, n_max, n_max, ...)``. This file translates between the two.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


@dataclass
class Geometry:
    """Positions, neighbours and layout of a batch of structures.

    Every structure is centred and displacements are formed in float64, and only then cast to ``dtype``, so that
    coordinates far from the origin lose no digits.

    Attributes:
        positions: (n_atoms, 3) Å, float64, centred on each structure's mean.
        centroids: (n_structures, 3) Å, float64: what was taken off.
        atomic_numbers: (n_atoms,).
        structure: (n_atoms,) the index of the structure of each atom, ascending.
        sizes: how many atoms each structure has.
        cell: (n_structures, 3, 3) Å, float64, rows are lattice vectors.
        pbc: which lattice vectors of each structure are periodic.
        edge_index: (2, n_edges), pairs (i, j) where atom j sends to atom i. An atom is not its own neighbour here.
        edge_displacements: (n_edges, 3) Å, Δ_ij = r_i − r_j − offset·cell, in ``dtype``.
        dtype: the dtype of everything computed from the geometry.
        n_max: the width of the padded layout, at least the largest size.
    """

    positions: Tensor
    centroids: Tensor
    atomic_numbers: Tensor
    structure: Tensor
    sizes: list[int]
    cell: Tensor
    pbc: list[tuple[bool, bool, bool]]
    edge_index: Tensor
    edge_displacements: Tensor
    dtype: torch.dtype
    n_max: int

    @property
    def n_structures(self) -> int:
        """Number of structures in the batch."""
        return len(self.sizes)

    @property
    def n_atoms(self) -> int:
        """Number of atoms in the batch."""
        return int(self.atomic_numbers.shape[0])

    @cached_property
    def edge_distances(self) -> Tensor:
        """|Δ_ij|, (n_edges,) Å. It is smooth, because the neighbour list refuses atoms that coincide."""
        return self.edge_displacements.norm(dim=-1)

    @cached_property
    def starts(self) -> list[int]:
        """The index of each structure's first atom."""
        return [0, *itertools.accumulate(self.sizes)][:-1]

    @cached_property
    def on_host(self) -> Geometry:
        """The same in the processor's memory, without gradients: what is asked of it waits for no GPU."""
        return replace(
            self,
            positions=self.positions.detach().cpu(),
            centroids=self.centroids.detach().cpu(),
            atomic_numbers=self.atomic_numbers.cpu(),
            structure=self.structure.cpu(),
            cell=self.cell.detach().cpu(),
            edge_index=self.edge_index[:, :0].cpu(),
            edge_displacements=self.edge_displacements[:0].detach().cpu(),
        )

    @cached_property
    def measures(self) -> list[float]:
        """The length, area or volume in Å, Å² or Å³ with which each structure repeats; 1 where it does not."""
        found = []
        for cell, pbc in zip(self.on_host.cell.numpy(), self.pbc, strict=True):
            lattice = cell[list(pbc)]
            found.append(math.sqrt(np.linalg.det(lattice @ lattice.T)) if any(pbc) else 1.0)
        return found

    @cached_property
    def radii(self) -> list[float]:
        """Å from the centroid of each structure to the atom that is farthest from it."""
        squared = self.on_host.positions.square().sum(dim=1)
        return [float(part.max()) ** 0.5 for part in squared.split(self.sizes)]

    @property
    def is_full(self) -> bool:
        """Whether the padded layout has no empty places, so that it is the packed one."""
        return self.n_structures * self.n_max == self.n_atoms

    @cached_property
    def slot(self) -> Tensor:
        """(n_atoms,) the place of each atom in the flattened (n_structures · n_max) layout."""
        device = self.structure.device
        starts = torch.tensor(self.starts, device=device)
        local = torch.arange(self.n_atoms, device=device) - starts[self.structure]
        return self.structure * self.n_max + local

    @cached_property
    def atom_mask(self) -> Tensor:
        """(n_structures, n_max) bool: which places hold an atom."""
        mask = torch.zeros(self.n_structures * self.n_max, dtype=torch.bool, device=self.structure.device)
        mask[self.slot] = True
        return mask.view(self.n_structures, self.n_max)

    @cached_property
    def pair_mask(self) -> Tensor:
        """(n_structures, n_max, n_max) bool: both atoms exist."""
        return self.atom_mask[:, :, None] & self.atom_mask[:, None, :]

    @cached_property
    def padded_positions(self) -> Tensor:
        """(n_structures, n_max, 3) Å, float64; zero where there is no atom."""
        return self.pad(self.positions)

    @cached_property
    def pair_displacements(self) -> Tensor:
        """(n_structures, n_max, n_max, 3) Å: r_i − r_j in the home cell, in ``dtype``; meaningless off the mask."""
        r = self.padded_positions
        return (r[:, :, None, :] - r[:, None, :, :]).to(self.dtype)

    def pad(self, packed: Tensor) -> Tensor:
        """(n_atoms, ...) → (n_structures, n_max, ...), zeros where there is no atom."""
        if self.is_full:
            return packed.reshape(self.n_structures, self.n_max, *packed.shape[1:])
        flat: Tensor = _Pad.apply(packed, self.slot, self.n_structures * self.n_max)
        return flat.view(self.n_structures, self.n_max, *packed.shape[1:])

    def pack(self, padded: Tensor) -> Tensor:
        """(n_structures, n_max, ...) → (n_atoms, ...)."""
        flat = padded.reshape(self.n_structures * self.n_max, *padded.shape[2:])
        if self.is_full:
            return flat
        packed: Tensor = _Pack.apply(flat, self.slot)
        return packed

    def pad_blocks(self, blocks: list[Tensor]) -> Tensor:
        """One block (n_b, n_b, c) per structure → (len(blocks), n_max, n_max, c), zeros where there is no pair."""
        gaps = [self.n_max - block.shape[0] for block in blocks]
        return torch.stack(
            [functional.pad(block, (0, 0, 0, gap, 0, gap)) for block, gap in zip(blocks, gaps, strict=True)]
        )

    def pair_places(self, receiver: Tensor, sender: Tensor) -> Tensor:
        """The places of pairs of atoms, (n,) and (n,), in the flattened (n_structures · n_max · n_max) layout."""
        return self.slot[receiver] * self.n_max + self.slot[sender] % self.n_max

    def sum_on_pairs(self, places: Tensor, values: Tensor) -> Tensor:
        """Values (c, n) at (n,) places → (c, n_structures, n_max, n_max); several at one place are added."""
        flat = values.new_zeros(values.shape[0], self.n_structures * self.n_max**2)
        summed = flat.scatter_add(1, places.expand(values.shape), values)
        return summed.view(-1, self.n_structures, self.n_max, self.n_max)

    def sum_over_structures(self, values: Tensor) -> Tensor:
        """(n_atoms, ...) → (n_structures, ...)."""
        out = values.new_zeros((self.n_structures, *values.shape[1:]))
        return out.index_add(0, self.structure, values)

    def atoms_of(self, b: int) -> Tensor:
        """(n, 3) Å, float64: positions of structure ``b`` from its centroid."""
        start = self.starts[b]
        return self.positions[start : start + self.sizes[b]]

    def of_structure(self, b: int) -> Geometry:
        """Structure ``b`` alone, without its neighbour list."""
        atoms, one = slice(self.starts[b], self.starts[b] + self.sizes[b]), slice(b, b + 1)
        return replace(
            self,
            positions=self.positions[atoms],
            centroids=self.centroids[one],
            atomic_numbers=self.atomic_numbers[atoms],
            structure=torch.zeros_like(self.structure[atoms]),
            sizes=[self.sizes[b]],
            cell=self.cell[one],
            pbc=[self.pbc[b]],
            edge_index=self.edge_index[:, :0],
            edge_displacements=self.edge_displacements[:0],
            n_max=self.sizes[b],
        )

    def is_periodic(self, b: int) -> bool:
        """Whether structure ``b`` repeats along any axis."""
        return any(self.pbc[b])


def select_rows(rows: Tensor, index: Tensor) -> Tensor:
    """``rows[index]`` for an index without repetitions. Its derivative is a copy, where that of indexing is a sum."""
    selected: Tensor = _Pack.apply(rows, index)
    return selected


class _Pad(torch.autograd.Function):
    """Each row to a place of its own. Its derivative is :class:`_Pack`, and the reverse: nothing has to be added."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, slot: Tensor, n_slots: int) -> Tensor:
        ctx.slot = slot
        return rows.new_zeros((n_slots, *rows.shape[1:])).index_copy_(0, slot, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Pack.apply(gradient, ctx.slot), None, None


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, places: Tensor, slot: Tensor) -> Tensor:
        ctx.slot, ctx.n_slots = slot, len(places)
        return places.index_select(0, slot)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Pad.apply(gradient, ctx.slot, ctx.n_slots), None


def geometry_of_batch(batch: Any, dtype: torch.dtype, n_max: int | None = None) -> Geometry:
    """:func:`build_geometry` of the fields of a batch with its neighbour list."""
    return build_geometry(
        batch.positions,
        batch.atomic_numbers,
        batch.batch,
        batch.cell,
        batch.pbc,
        batch.edge_index,
        batch.cell_offsets,
        dtype,
        n_max,
    )


def build_geometry(
    positions: Tensor,
    atomic_numbers: Tensor,
    structure: Tensor,
    cell: Tensor,
    pbc: Tensor,
    edge_index: Tensor,
    cell_offsets: Tensor,
    dtype: torch.dtype,
    n_max: int | None = None,
) -> Geometry:
    """Centre the structures, form displacements, and lay out.

    Args:
        positions: (n_atoms, 3) Å; gradients flow through it.
        atomic_numbers: (n_atoms,).
        structure: (n_atoms,) ascending structure index.
        cell: (n_structures, 3, 3) Å.
        pbc: (n_structures, 3) bool.
        edge_index: (2, n_edges) neighbour list, both directions, without self pairs.
        cell_offsets: (n_edges, 3) lattice translation of the sender's image.
        dtype: floating dtype of everything derived.
        n_max: width of the padded layout; with None that of the largest structure.

    Raises:
        ValueError: ``n_max`` is smaller than the largest structure.
    """
    n_structures = int(cell.shape[0])
    counts = torch.bincount(structure, minlength=n_structures)
    sizes = [int(n) for n in counts.tolist()]
    n_max = max(sizes) if n_max is None else n_max
    if n_max < max(sizes):
        raise ValueError(f"n_max={n_max} cannot hold a structure of {max(sizes)} atoms")
    positions = positions.to(torch.float64)
    cell = cell.to(torch.float64)
    sums = positions.new_zeros((n_structures, 3)).index_add(0, structure, positions)
    centroids = sums / counts.clamp(min=1)[:, None]
    centred = positions - centroids[structure]
    axes = [(bool(x), bool(y), bool(z)) for x, y, z in pbc.tolist()]
    periodic = any(map(any, axes))
    displacements = [
        _displacements(centred, cell, structure, periodic, *few).to(dtype)
        for few in zip(edge_index.split(_EDGES_AT_ONCE, dim=1), cell_offsets.split(_EDGES_AT_ONCE), strict=True)
    ]
    return Geometry(
        positions=centred,
        centroids=centroids,
        atomic_numbers=atomic_numbers,
        structure=structure,
        sizes=sizes,
        cell=cell,
        pbc=axes,
        edge_index=edge_index,
        edge_displacements=displacements[0] if len(displacements) == 1 else torch.cat(displacements),
        dtype=dtype,
        n_max=n_max,
    )


def subset_of_atoms(geometry: Geometry, b: int, atoms: Tensor) -> Geometry:
    """Some atoms of structure ``b``, (n_part,) indices counted within it, as a structure without neighbours."""
    alone = geometry.of_structure(b)
    centroid = alone.positions[atoms].mean(dim=0)
    return replace(
        alone,
        positions=alone.positions[atoms] - centroid,
        centroids=alone.centroids + centroid,
        atomic_numbers=alone.atomic_numbers[atoms],
        structure=alone.structure[atoms],
        sizes=[len(atoms)],
        n_max=len(atoms),
    )


def _displacements(
    positions: Tensor, cell: Tensor, structure: Tensor, periodic: bool, edge_index: Tensor, cell_offsets: Tensor
) -> Tensor:
    """(n_edges, 3) Å: r_i − r_j − offset·cell, where anything is periodic."""
    receiver, sender = edge_index
    # Selected rows are copied as a whole, and there is no product of a small matrix for every edge.
    found = positions.index_select(0, receiver) - positions.index_select(0, sender)
    if not periodic:
        return found
    own, offsets = structure.index_select(0, receiver), cell_offsets.to(positions.dtype)
    for axis in range(3):
        found = found - offsets[:, axis, None] * cell[:, axis].index_select(0, own)
    return found


_EDGES_AT_ONCE = 1 << 22
"""Edges whose cells are held at once. It bounds memory and changes no result."""
