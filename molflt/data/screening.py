"""One pass over a labelled set: which of its structures can be used, and which were left out."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch_geometric.data import Data

from molflt.data.labels import STORED, LabelSpec
from molflt.data.neighbours import check_geometry
from molflt.data.progress import track
from molflt.data.sources import StructureDataset, SubsetDataset
from molflt.errors import InputError, OnBad
from molflt.files import atomic_file

SKIPPED = "skipped.csv"
T = TypeVar("T")


@dataclass(frozen=True)
class Crew:
    """The processes that read a set together, each a run of its records.

    Attributes:
        rank: of this process.
        n: how many they are.
        gather: gives every process the values of all of them, in the order of ranks. All must call it.
    """

    rank: int = 0
    n: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]

    def share(self, n_records: int) -> range:
        """The records that this process reads."""
        return range(n_records * self.rank // self.n, n_records * (self.rank + 1) // self.n)


@dataclass(frozen=True)
class Skipped:
    """A structure that was left out.

    Attributes:
        index: its place in the set.
        name: its own name, or file and record; empty where it cannot be read.
        reason: what is wrong with it.
    """

    index: int
    name: str
    reason: str


class Screening:
    """Iterate over the structures of a labelled set that can be used, then ask which they were.

    Args:
        structures: the set, read with ``labels``.
        labels: the label that is needed.
        source: where the structures are from, for messages.
        forces: whether forces are needed as well.
        on_bad: ``stop`` refuses a set with a structure that cannot be read, whose geometry makes no sense, or that
            lacks its label or forces; ``skip`` leaves such structures out.
        crew: the processes that share the pass; see :meth:`portions`.

    Attributes:
        skipped: what was left out.

    Raises:
        InputError: in the course of the iteration: with ``stop``, such a structure; with ``skip``, nothing is left.
    """

    def __init__(
        self,
        structures: StructureDataset,
        labels: LabelSpec,
        source: str,
        forces: bool = False,
        on_bad: OnBad = "stop",
        crew: Crew = Crew(),
    ) -> None:
        self.structures, self.labels, self.source = structures, labels, source
        self.forces, self.on_bad, self.crew = forces, on_bad, crew
        self.skipped: list[Skipped] = []
        self._sizes: np.ndarray | None = None

    def __iter__(self) -> Iterator[Data]:
        found = _Found()
        yield from self._read(range(len(self.structures)), found)
        self._judge([found])

    def portions(self, read: Callable[[Iterator[Data]], T]) -> list[T]:
        """What every process of the crew makes of its share of the structures that can be used, by rank.

        Each record is read by one process only. What is wrong with one is raised in all of them.

        Args:
            read: gets the structures of a share, of which there may be none, and goes through all of them.
        """
        found = _Found()
        mine: T | InputError
        try:
            mine = read(self._read(self.crew.share(len(self.structures)), found))
        except InputError as error:
            # The others wait for this process's share.
            mine = error
        portions, shares = zip(*self.crew.gather((mine, found)), strict=True)
        for portion in portions:
            if isinstance(portion, InputError):
                raise portion
        self._judge(shares)
        self._sizes = np.concatenate([np.array(its.sizes, dtype=np.int64) for its in shares])
        return list(portions)

    def _read(self, share: range, found: _Found) -> Iterator[Data]:
        """The structures of a share that can be used; the others are noted."""
        for index in track(share, "reading labels", len(share)):
            name = ""
            try:
                data = self.structures[index]
                name = str(data.name)
                check_geometry(data)
            except InputError as error:
                if self.on_bad == "stop":
                    raise
                found.skipped.append(Skipped(index, name, str(error)))
                continue
            if self.labels.target not in data:
                if not found.unlabelled and data.get(STORED):
                    found.stored = f" Stored with {name}: {data[STORED]}."
                found.unlabelled.append(name)
                found.skipped.append(Skipped(index, name, f"{name}: no label '{self.labels.name}'"))
            elif self.forces and "forces" not in data:
                found.forceless.append(name)
                found.skipped.append(Skipped(index, name, f"{name}: no forces"))
            else:
                found.sizes.append(int(data.num_nodes))
                yield data

    def _judge(self, shares: Sequence[_Found]) -> None:
        """Decide on the whole set.

        Raises:
            InputError: it cannot be used.
        """
        self.skipped = [skipped for found in shares for skipped in found.skipped]
        n = len(self.structures)
        if self.on_bad == "stop":
            unlabelled = [name for found in shares for name in found.unlabelled]
            forceless = [name for found in shares for name in found.forceless]
            self._refuse(unlabelled, next((found.stored for found in shares if found.unlabelled), ""), forceless)
        elif len(self.skipped) == n:
            raise InputError(
                f"{self.source}: none of {n} structures can be used; the first: {self.skipped[0].reason}"
            )

    @property
    def usable(self) -> StructureDataset:
        """The structures that can be used, after the pass."""
        if not self.skipped and self._sizes is None:
            return self.structures
        left_out = {skipped.index for skipped in self.skipped}
        kept = (k for k in range(len(self.structures)) if k not in left_out)
        return SubsetDataset(self.structures, kept, self._sizes)

    def _refuse(self, unlabelled: list[str], stored: str, forceless: list[str]) -> None:
        n = len(self.structures)
        if unlabelled:
            raise InputError(
                f"{self.source}: {len(unlabelled)} of {n} structures have no label '{self.labels.name}' "
                f"(first: {', '.join(unlabelled[:3])}).{stored} Name the label that is there (data.label; for "
                "evaluate --label), choose another data.target, or remove the structures"
            )
        if forceless:
            raise InputError(
                f"{self.source}: {len(forceless)} of {n} structures have no forces (first: "
                f"{', '.join(forceless[:3])}). Name the forces (data.force_label), leave them out of the loss "
                "(loss.force_weight=0), or remove the structures"
            )


@dataclass
class _Found:
    """What a process came across in its share, by name, and the sizes of the structures that can be used."""

    skipped: list[Skipped] = field(default_factory=list)
    unlabelled: list[str] = field(default_factory=list)
    forceless: list[str] = field(default_factory=list)
    stored: str = ""
    sizes: list[int] = field(default_factory=list)


def labels(screening: Screening) -> np.ndarray:
    """The label of every structure that can be used, found in a pass over the set.

    Returns:
        (n_structures,) eV, float64.

    Raises:
        InputError: from the screening.
    """
    target = screening.labels.target
    return np.concatenate(
        screening.portions(lambda share: np.array([float(data[target]) for data in share], dtype=np.float64))
    )


def write_skipped(run_dir: Path, skipped: Mapping[str, Sequence[Skipped]]) -> str:
    """Leave a list of what was left out in a run directory.

    Args:
        run_dir: gets ``skipped.csv``, unless nothing was left out.
        skipped: what was left out of each set, by its name.

    Returns:
        A line that says so; empty if nothing was left out.
    """
    counts = {name: len(some) for name, some in skipped.items() if some}
    if not counts:
        return ""
    with atomic_file(run_dir / SKIPPED) as path, open(path, "w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(("set", "index", "name", "reason"))
        writer.writerows((name, s.index, s.name, s.reason) for name, some in skipped.items() for s in some)
    by_set = ", ".join(f"{name} {n:,}" for name, n in counts.items())
    return f"structures that cannot be used, left out: {by_set}; {run_dir / SKIPPED} says which and why"
