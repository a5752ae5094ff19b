"""Structures by number: the protocol of all data sets, and lists, parts and concatenations of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol, runtime_checkable

import numpy as np
from torch_geometric.data import Data

from molflt.errors import InputError, OnBad, refuse


@runtime_checkable
class StructureDataset(Protocol):
    """Structures by index, with their sizes."""

    def __len__(self) -> int:
        """The number of structures."""
        ...

    def __getitem__(self, index: int, /) -> Data:
        """One structure, without a neighbour list; negative indices count from the end."""
        ...

    @property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64: atoms of every structure."""
        ...


class ListDataset:
    """Structures held in memory.

    Args:
        items: structures, and in the places of those that cannot be used what is wrong with them: it is raised when
            they are asked for, and they count as one atom.
    """

    def __init__(self, items: Iterable[Data | InputError]) -> None:
        self.items = list(items)
        sizes = (1 if isinstance(item, InputError) else int(item.num_nodes) for item in self.items)
        self._n_atoms = np.fromiter(sizes, dtype=np.int64)

    @classmethod
    def read(
        cls,
        structures: Iterable[Data],
        bad: Mapping[int, InputError],
        on_bad: OnBad,
        where: str,
        what: str = "structures",
    ) -> ListDataset:
        """What was read: structures that can be used, and what is wrong with the others, by their places among all.

        Raises:
            InputError: some cannot be used, and ``on_bad`` is ``stop``; see :func:`molflt.errors.refuse`.
        """
        items: list[Data | InputError] = list(structures)
        for place in sorted(bad):
            items.insert(place, bad[place])
        if on_bad == "stop":
            refuse(bad, len(items), where, what)
        return cls(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Data:
        item = self.items[index]
        if isinstance(item, InputError):
            raise item.again() from item
        return item

    def __iter__(self) -> Iterator[Data]:
        return (self[k] for k in range(len(self)))

    @property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64."""
        return self._n_atoms


class SubsetDataset:
    """Some structures of a data set, read when asked for.

    Args:
        dataset: the whole.
        indices: which of its structures.
        n_atoms: (n_structures,) their sizes, where they are known already; the data set is not asked then.
    """

    def __init__(self, dataset: StructureDataset, indices: Iterable[int], n_atoms: np.ndarray | None = None) -> None:
        self._dataset, self._n_atoms = dataset, n_atoms
        self.indices = np.fromiter((int(k) for k in indices), dtype=np.int64)
        n = len(dataset)
        if len(self.indices) and (self.indices.min() < -n or self.indices.max() >= n):
            raise InputError(f"an index of the subset is out of range for {n} structures")
        self.indices %= max(n, 1)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Data:
        return self._dataset[int(self.indices[index])]

    def __iter__(self) -> Iterator[Data]:
        return (self[k] for k in range(len(self)))

    @property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64."""
        return self._dataset.n_atoms[self.indices] if self._n_atoms is None else self._n_atoms


class ConcatDataset:
    """Data sets one after the other, read when asked for."""

    def __init__(self, datasets: Sequence[StructureDataset]) -> None:
        self._datasets = list(datasets)
        self._ends = list(accumulate(len(dataset) for dataset in self._datasets))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Data:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} structures")
        k = bisect_right(self._ends, position)
        return self._datasets[k][position - (self._ends[k] - len(self._datasets[k]))]

    def __iter__(self) -> Iterator[Data]:
        return (self[k] for k in range(len(self)))

    @property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64."""
        sizes = [dataset.n_atoms for dataset in self._datasets]
        return np.concatenate(sizes) if sizes else np.zeros(0, dtype=np.int64)
