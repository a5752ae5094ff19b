"""Batches limited by a number of atoms."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler
from torch_geometric.data import Batch, Data

from molflt import vocabulary
from molflt.data.neighbours import attach_neighbours
from molflt.errors import InputError

_MIXING = 4
"""Batches a bucket should have, so that its structures meet in new combinations every epoch."""


class AtomBudgetSampler(Sampler[list[int]]):
    """Batches of indices limited by a number of atoms, for ``DataLoader(batch_sampler=...)``.

    In every batch, the number of structures times the size of the largest is at most ``max_atoms``, so the limit
    holds for padded batches too. A structure above the limit is a batch of its own.

    Shuffled (training): structures are put once into buckets of similar size. In a bucket any ``k`` structures fit
    the limit, so it gives the same number of batches whichever way it is shuffled: the batches are new every epoch
    and ``len`` never changes, which schedules rely on. Every rank gets the same number of batches (batches are made
    smaller until that works out; only if there are too few structures, some are left out, others every epoch). The
    order depends on ``seed`` and the epoch alone.

    Not shuffled (evaluation): the data set's order, cut where the limit is reached; rank ``r`` takes every
    ``n_ranks``-th batch from the ``r``-th. Over all ranks every structure comes exactly once; the numbers of
    batches differ by at most one.

    Raises:
        InputError: there are no structures, the limit is below one, or (shuffled) fewer structures than ranks.
    """

    def __init__(
        self,
        n_atoms: Sequence[int] | np.ndarray,
        max_atoms: int,
        *,
        shuffle: bool,
        seed: int,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        self._sizes = np.asarray(n_atoms, dtype=np.int64)
        if self._sizes.ndim != 1 or len(self._sizes) == 0 or self._sizes.min() < 1:
            raise InputError("there are no structures to make batches of")
        if max_atoms < 1:
            raise InputError(f"max_atoms must be positive, not {max_atoms}")
        if not 0 <= rank < n_ranks:
            raise InputError(f"rank {rank} is not one of {n_ranks} ranks")
        if shuffle and len(self._sizes) < n_ranks:
            raise InputError(f"{len(self._sizes)} structures cannot be shared by {n_ranks} ranks")
        self.max_atoms = max_atoms
        self.shuffle, self.seed, self.rank, self.n_ranks = shuffle, seed, rank, n_ranks
        self.epoch = 0
        if shuffle:
            self._buckets = self._make_buckets()
            self._parts = self._share_out()
            self._length = sum(self._parts) // n_ranks
        else:
            self._ordered = self._in_order()[rank::n_ranks]
            self._length = len(self._ordered)

    @property
    def sampler(self) -> AtomBudgetSampler:
        """Itself: Lightning calls ``set_epoch`` on the ``sampler`` of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose batches come next."""
        self.epoch = int(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        if not self.shuffle:
            yield from (list(batch) for batch in self._ordered)
            return
        generator = np.random.default_rng([self.seed, self.epoch])
        batches = [
            part
            for bucket, n_parts in zip(self._buckets, self._parts, strict=True)
            for part in np.array_split(generator.permutation(bucket), n_parts)
        ]
        order = generator.permutation(len(batches))[: self._length * self.n_ranks]
        for k in order[self.rank :: self.n_ranks]:
            yield batches[k].tolist()

    def _capacity(self, largest: int) -> int:
        """Return how many structures up to the given size fit; at least one."""
        return max(1, self.max_atoms // largest)

    def _in_order(self) -> list[list[int]]:
        batches: list[list[int]] = []
        largest = room = 0
        for index, size in enumerate(self._sizes.tolist()):
            if size > largest:
                largest, room = size, self._capacity(size)
            if not batches or len(batches[-1]) >= room:
                batches.append([])
                largest, room = size, self._capacity(size)
            batches[-1].append(index)
        return batches

    def _make_buckets(self) -> list[np.ndarray]:
        """Cut the structures, ordered by size, into the buckets that need the fewest batches.

        Dynamic programming over the distinct sizes. Few batches in a bucket are penalised, because the same
        structures would meet in every epoch; at equal cost the wider bucket wins.
        """
        order = np.argsort(self._sizes, kind="stable")
        sizes, counts = np.unique(self._sizes, return_counts=True)
        ends = np.concatenate([[0], np.cumsum(counts)])
        cost = np.zeros(len(sizes) + 1)
        previous = np.zeros(len(sizes) + 1, dtype=np.int64)
        for j in range(1, len(sizes) + 1):
            room = self._capacity(int(sizes[j - 1]))
            n_batches = -(-(ends[j] - ends[:j]) // room)
            fine = 0.5 * np.maximum(0, _MIXING - n_batches) if room > 1 else np.zeros(j)
            costs = cost[:j] + n_batches + fine
            previous[j] = int(np.argmin(costs))
            cost[j] = costs[previous[j]]
        buckets, j = [], len(sizes)
        while j > 0:
            buckets.append(order[ends[previous[j]] : ends[j]])
            j = int(previous[j])
        return buckets[::-1]

    def _share_out(self) -> list[int]:
        """Choose batches per bucket, in all a multiple of the ranks if there are enough structures."""
        counts = [len(bucket) for bucket in self._buckets]
        parts = [-(-len(bucket) // self._capacity(int(self._sizes[bucket].max()))) for bucket in self._buckets]
        wanted = min(-(-sum(parts) // self.n_ranks) * self.n_ranks, sum(counts))
        while sum(parts) < wanted:
            # the fullest batches are split
            fullest = max(range(len(parts)), key=lambda k: counts[k] / parts[k])
            parts[fullest] += 1
        return parts


def collate(structures: Sequence[Data], plan: Callable[..., Any] | None = None, reach: float = math.inf) -> Batch:
    """Put structures into one batch.

    Per-atom fields are concatenated, per-structure fields stacked, ``edge_index`` counts through the batch;
    ``name`` and other text become lists. If only some structures have a charge, that of the others is 0. Text and
    sids that only some structures have are left out, as are further conformers and data beyond the vocabulary
    (``info`` and ``extra``).

    Args:
        structures: with their neighbour lists.
        plan: of the model that the batch is for, which lays it out (:class:`molflt.attention.layout.Plan`) here, in
            a worker, and not while a device waits. Without it the model does so itself.
        reach: Å, beyond which there is nothing in the neighbour lists.

    Raises:
        InputError: there are none, or only some of them have a label or a neighbour list.
    """
    if not structures:
        raise InputError("there are no structures to put into a batch")
    if any("charge" in structure for structure in structures):
        structures = [_with_charge(structure) for structure in structures]
    present = [set(structure.keys()) for structure in structures]
    common = set.intersection(*present)
    partial = set.union(*present) - common
    for field in (*vocabulary.LABELS, "edge_index", "cell_offsets"):
        if field in partial:
            without = next(s for s, keys in zip(structures, present, strict=True) if field not in keys)
            raise InputError(
                f"'{field}' is given for some structures of a batch but not for {without.get('name', 'others')}; "
                "complete the data or drop the field"
            )
    batch = Batch.from_data_list(list(structures), exclude_keys=sorted(partial | {"conformers", "info", "extra"}))
    if plan is not None:
        batch.layout = plan(batch, reach=reach)
    return batch


def _with_charge(structure: Data) -> Data:
    if "charge" not in structure:
        structure = copy.copy(structure)
        structure.charge = structure.positions.new_zeros(1)
    return structure


@dataclass(frozen=True)
class StructureCollater:
    """``collate_fn`` of a DataLoader: ``attach_neighbours``, in the worker, then one batch."""

    cutoff: float
    all_pairs_if_isolated: bool = False
    plan: Callable[..., Any] | None = None

    def __call__(self, structures: Sequence[Data]) -> Batch:
        """Attach neighbour lists to copies of the structures and put these into a batch."""
        with torch.no_grad():
            # shallow: the data set's own structures stay as they are
            return collate(
                [attach_neighbours(copy.copy(s), self.cutoff, self.all_pairs_if_isolated) for s in structures],
                self.plan,
            )
