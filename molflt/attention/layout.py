"""Discrete structure of a batch, decided on the host: neighbours and their places.

A :class:`Plan` holds the plain numbers of a model that these decisions need. Workers of a loader make a
:class:`Layout` of every batch with it; a model makes one itself for a batch without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from molflt.attention.far.images import Structure
from molflt.attention.far.ways import FarPlan, Groups, LadderPlan, grouped, held_of
from molflt.attention.places import Kept, Movable, Places, places_of
from molflt.attention.sparse import SparsePattern
from molflt.errors import InputError


@dataclass(frozen=True)
class Entries(Movable):
    """The neighbours of every atom and the atom itself, by receiver, sender and translation.

    Attributes:
        receiver, sender: (n_entries,) int64.
        offsets: (n_entries, 3) int32, lattice translation of the sender's image; None where all are zero.
        row_starts: (n_atoms + 1,) int32.
        reverse: (n_entries,) the entry with receiver and sender exchanged; for an atom itself the entry itself.
        others: (n_entries,) 0 for an atom itself, 1 for its neighbours; float64.
        slot: (n_entries,) the place of every entry in (n_atoms, width).
        sender_of_slot: (n_atoms · width,) the atom itself where there is no entry.
        reverse_of_slot: (n_atoms · width,) the place of the reverse; its own where there is no entry.
        width: places of an atom: the largest number of entries of any.
    """

    receiver: Tensor
    sender: Tensor
    offsets: Tensor | None
    row_starts: Tensor
    reverse: Tensor
    others: Tensor
    slot: Tensor
    sender_of_slot: Tensor
    reverse_of_slot: Tensor
    width: int

    @Kept
    def pattern(self) -> SparsePattern:
        """Receivers as rows, senders as columns."""
        pattern = SparsePattern(self.row_starts, self.sender, len(self.row_starts) - 1, self.reverse)
        pattern.rows = self.receiver
        return pattern


def entries_of(edge_index: np.ndarray, offsets: np.ndarray, n_atoms: int) -> Entries:
    """Return the entries of a symmetric neighbour list.

    Args:
        edge_index: (2, n_edges): (i, j), atom j sends to atom i.
        offsets: (n_edges, 3) lattice translation of the sender's image.
        n_atoms: number of atoms.

    Raises:
        ValueError: an edge exists in one direction only.
    """
    atoms, (i, j) = np.arange(n_atoms), edge_index
    codes, zero, n_codes = _translations(offsets, n_atoms)
    edges = (i * n_atoms + j) * n_codes + codes
    steps = np.diff(edges)
    if (steps <= 0).any():
        order = np.argsort(edges)
        i, j, offsets, edges = i[order], j[order], offsets[order], edges[order]
        steps = np.diff(edges)
    ends = atoms * (n_atoms + 1) * n_codes + zero
    itself = np.zeros(len(i) + n_atoms, dtype=bool)
    itself[np.searchsorted(edges, ends) + atoms] = True
    receiver, sender, keys = (np.empty(len(itself), np.int64) for _ in range(3))
    for column, of_atoms, of_edges in ((receiver, atoms, i), (sender, atoms, j), (keys, ends, edges)):
        column[itself], column[~itself] = of_atoms, of_edges
    shifts = None
    if offsets.any():
        shifts = np.zeros((len(itself), 3), dtype=np.int32)
        # NumPy puts one value in a place faster than three.
        as_one = np.dtype((np.void, shifts.itemsize * 3))
        shifts.view(as_one)[~itself] = np.ascontiguousarray(offsets, dtype=np.int32).view(as_one)
    counts = np.bincount(receiver, minlength=n_atoms)
    starts = np.concatenate([[0], np.cumsum(counts)])
    reverse = _reverse(sender, starts)
    # Opposite translations have opposite numbers.
    sums = (receiver + sender) * ((n_atoms + 1) * n_codes) + n_codes - 1
    if (steps == 0).any() or not np.array_equal(keys[reverse] + keys, sums):
        raise ValueError("a neighbour list must hold every edge in both directions, and none twice")
    width = int(counts.max(initial=0))
    slot = np.arange(len(receiver)) + np.repeat(atoms * width - starts[:-1], counts)
    sender_of_slot, reverse_of_slot = np.repeat(atoms, width), np.arange(n_atoms * width)
    sender_of_slot[slot], reverse_of_slot[slot] = sender, slot[reverse]
    return Entries(
        receiver=torch.from_numpy(receiver),
        sender=torch.from_numpy(sender),
        offsets=None if shifts is None else torch.from_numpy(shifts),
        row_starts=torch.from_numpy(starts.astype(np.int32)),
        reverse=torch.from_numpy(reverse),
        others=torch.from_numpy(1.0 - itself),
        slot=torch.from_numpy(slot),
        sender_of_slot=torch.from_numpy(sender_of_slot),
        reverse_of_slot=torch.from_numpy(reverse_of_slot),
        width=width,
    )


def _translations(shifts: np.ndarray, n_atoms: int) -> tuple[np.ndarray, int, int]:
    """(n_edges,) one number for each translation, in their order; that of none, and how many there may be."""
    reach = int(max(shifts.max(initial=0), -shifts.min(initial=0)))
    width = 2 * reach + 1
    if max(n_atoms, 1) ** 2 * width**3 >= 1 << 62:
        # Translations and their opposites are replaced by their ranks, which take fewer numbers.
        some = np.concatenate([np.zeros((1, 3), shifts.dtype), shifts, -shifts])
        distinct, ranks = np.unique(some, axis=0, return_inverse=True)
        ranks = ranks.reshape(-1)
        return ranks[1 : len(shifts) + 1], int(ranks[0]), len(distinct)
    codes = np.zeros(len(shifts), dtype=np.int64)
    for axis in range(3 if reach else 0):
        codes = codes * width + (shifts[:, axis] + reach)
    return codes, width**3 // 2, width**3


def _reverse(sender: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Reverse of every entry of a symmetric list by receiver, sender and translation, S.

    The reverses of the entries (i, j, S) are (j, i, −S): in their order, entries by sender and receiver, the last
    translation first. With the entries of every receiver backwards, transposing a sparse matrix gives this order.
    """
    n_atoms = len(starts) - 1
    backwards = np.repeat(starts[1:] + starts[:-1] - 1, np.diff(starts)) - np.arange(len(sender))
    found = csr_array((backwards, sender[backwards], starts), shape=(n_atoms, n_atoms)).tocsc().data
    return np.asarray(found)


@dataclass(frozen=True)
class Layout(Movable):
    """Discrete structure of a batch.

    Attributes:
        plan: from which it was made.
        sizes: number of atoms of each structure.
        pbc: which lattice vectors of each structure are periodic.
        structure: (n_atoms,) the index of the structure of each atom, ascending.
        starts: (n_structures + 1,) int32, where each structure's atoms begin.
        places: padded to the largest structure.
        counts: (n_structures,) float64, the sizes.
        near: neighbours within the local cutoff.
        wide: the whole neighbour list, if attention needs more than the near part; else None.
        far: structures whose far field is computed together; None without a far field.
        of_charges: the same for 1/r; None without charges.
    """

    plan: Plan
    sizes: tuple[int, ...]
    pbc: tuple[tuple[bool, bool, bool], ...]
    structure: Tensor
    starts: Tensor
    places: Places
    counts: Tensor
    near: Entries
    wide: Entries | None
    far: Groups | None
    of_charges: Groups | None

    @Kept
    def atoms_of_structures(self) -> SparsePattern:
        """Structures as rows, their atoms as entries."""
        pattern = SparsePattern(self.starts, self.structure, self.places.n_structures)
        pattern.rows = self.structure
        return pattern


@dataclass(frozen=True)
class Plan:
    """Numbers of a model that determine the layout of batches.

    Attributes:
        cutoff: Å, of the near part.
        wide: whether attention uses the whole neighbour list.
        far: of the far field; None without one.
        charges: of 1/r; None without charges.
        skin: Å that atoms may move before a new layout is needed.
    """

    cutoff: float
    wide: bool = False
    far: FarPlan | None = None
    charges: LadderPlan | None = None
    skin: float = 0.0

    @property
    def kind(self) -> tuple[Any, ...]:
        """Properties that models must agree on to share a layout."""
        return self.cutoff, self.wide, self.far and (self.far.way, self.far.dense), self.charges

    @staticmethod
    def covering(plans: Sequence[Plan]) -> Plan:
        """Return the plan that serves several models of one kind, those of an ensemble.

        Raises:
            InputError: they are of several kinds.
        """
        if len({plan.kind for plan in plans}) > 1:
            raise InputError(
                "a calculator cannot use members of several kinds (cutoff, far field, charges); predict can"
            )
        far = [plan.far for plan in plans if plan.far is not None]
        return replace(plans[0], far=FarPlan.covering(far)) if far else plans[0]

    def holding(self, layout: Layout) -> Plan:
        """Return the plan that keeps the ways and grids of the far field of a batch."""
        far, charges = self.far, self.charges
        if far is not None and layout.far is not None:
            far = replace(far, held=held_of(layout.far.groups))
        if charges is not None and layout.of_charges is not None:
            charges = replace(charges, held=held_of(layout.of_charges.groups))
        return replace(self, far=far, charges=charges)

    def __call__(self, batch: Any, n_max: int | None = None, reach: float = math.inf) -> Layout:
        """Return the layout of a batch with its neighbour list (see ``molflt.vocabulary``).

        No pair of the list is further apart than ``reach``, Å.
        """
        positions, cells = (_on_host(t).astype(np.float64) for t in (batch.positions, batch.cell))
        pbc, structure = _on_host(batch.pbc), _on_host(batch.batch)
        edge_index, offsets = _on_host(batch.edge_index), _on_host(batch.cell_offsets)
        sizes = np.bincount(structure, minlength=len(cells))
        starts = np.concatenate([[0], np.cumsum(sizes)])
        near = wide = entries_of(edge_index, offsets, len(positions)) if self.wide else None
        longest = (self.cutoff + 2 * self.skin) * (1 + 1e-6)
        if reach > longest:
            i, j = edge_index
            delta = positions[i] - positions[j]
            if offsets.any():
                delta -= np.einsum("ek,ekl->el", offsets.astype(np.float64), cells[structure[i]])
            # A pair just outside may be just inside once displacements are rounded.
            inside = np.einsum("ek,ek->e", delta, delta) < longest**2
            if not inside.all():
                edge_index, offsets, near = edge_index[:, inside], offsets[inside], None
        if near is None:
            near = entries_of(edge_index, offsets, len(positions))
        each = zip(np.split(positions, starts[1:-1]), cells, pbc, strict=True)
        structures, groups = [Structure(*one) for one in each], []
        for plan in (self.far, self.charges):
            groups.append(None if plan is None else grouped(plan.groups(structures, self.skin), starts))
        return Layout(
            plan=self,
            sizes=tuple(sizes.tolist()),
            pbc=tuple((bool(x), bool(y), bool(z)) for x, y, z in pbc),
            structure=torch.from_numpy(structure),
            starts=torch.from_numpy(starts.astype(np.int32)),
            places=places_of(sizes.tolist(), n_max),
            counts=torch.from_numpy(sizes.astype(np.float64)),
            near=near,
            wide=wide,
            far=groups[0],
            of_charges=groups[1],
        )


def _on_host(tensor: Tensor) -> np.ndarray:
    """Copy a tensor to an array on the host.

    A batch's memory moves when it is sent to another process, and an array that shares it would dangle.
    """
    return tensor.detach().cpu().numpy().copy()
