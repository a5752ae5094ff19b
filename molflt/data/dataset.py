"""Data sets: their protocol, lists, subsets, concatenations and fingerprints."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from torch_geometric.data import Data

from molflt.data.neighbours import check_geometry
from molflt.data.progress import track
from molflt.errors import InputError, OnBad, noting, refuse


@runtime_checkable
class StructureDataset(Protocol):
    """Structures by index, with their sizes."""

    def __len__(self) -> int:
        """Number of structures."""
        ...

    def __getitem__(self, index: int, /) -> Data:
        """Return a structure without a neighbour list; negative indices count from the end."""
        ...

    @property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64: number of atoms of every structure."""
        ...


class ListDataset:
    """Structures held in memory.

    Args:
        items: structures, and errors in place of unusable ones, which are raised on access; these count as one
            atom.
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
        """Make a data set of usable structures, with errors in place of the others.

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
    """Some structures of a data set, read on access.

    Args:
        dataset: the complete data set.
        indices: the chosen structures.
        n_atoms: (n_structures,) their sizes, if known; otherwise they are read from the data set.
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
    """Data sets one after the other, read on access."""

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


MANIFEST, UNFINISHED = "manifest.json", "unfinished.json"
"""Of a prepared set."""


def is_prepared(path: Path) -> bool:
    """True for the folder of a prepared set, finished or not."""
    return (path / MANIFEST).is_file() or (path / UNFINISHED).is_file()


_WHOLE, _END = 64 << 20, 1 << 20
"""Most bytes of a file that is hashed completely, and bytes hashed at either end of a larger one."""


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Compute a cheap fingerprint of a data set's content, independent of its location.

    It is the SHA-256 of names, sizes and contents; for a file above 64 MiB only of the first and last MiB. That of a
    prepared set is the one of the data it was made of.

    Raises:
        InputError: nothing there, or it cannot be read.
    """
    source = Path(path)
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    if (prepared := source / MANIFEST).is_file():
        with suppress(OSError, ValueError, KeyError, TypeError):
            (known,) = json.loads(prepared.read_text(encoding="utf-8"))["data"]
            return str(known)
    files = data_files(source)
    names = [file.relative_to(source).as_posix() if source.is_dir() else file.name for file in files]
    digest = hashlib.sha256()
    try:
        for file, name in zip(files, names, strict=True):
            size = file.stat().st_size
            # Names as bytes on the disk, whatever the locale.
            digest.update(f"{name}\n{size}\n".encode("utf-8", "surrogateescape"))
            with file.open("rb") as stream:
                if size <= _WHOLE:
                    while block := stream.read(_END):
                        digest.update(block)
                else:
                    digest.update(stream.read(_END))
                    stream.seek(-_END, os.SEEK_END)
                    digest.update(stream.read(_END))
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error}") from error
    return digest.hexdigest()


def data_files(source: Path) -> list[Path]:
    """Return the file, or all files of a folder, without what belongs to them."""
    if not source.is_dir():
        return [source]
    # Lock files, stored sizes and prepared sets come and go.
    found = (path for path in sorted(source.rglob("*")) if path.is_file())
    return [path for path in found if not any(map(is_companion, (path, *path.relative_to(source).parents)))]


def refuse_unusable(structures: StructureDataset, where: str, known: Mapping[int, InputError]) -> None:
    """Read a whole set, and refuse all unusable structures at once.

    ``known`` holds errors found already, by index.

    Raises:
        InputError: names the first ten and counts the others; a single one stands for itself.
    """
    bad, n = dict(known), len(structures)
    for index in track(range(n), "looking for all that cannot be used", n):
        if index not in bad:
            with noting(bad, index, "", {}):
                data = structures[index]
                check_geometry(data, str(data.get("name", "structure")))
    refuse(bad, n, where)


def is_companion(path: Path) -> bool:
    """True if a file belongs to data files: a lock, stored sizes, a partial file, a prepared set."""
    return ".prepared-" in path.name or path.name.endswith(
        (".natoms", ".natoms.npz", "-lock", "lock.mdb", ".lock", ".partial")
    )
