"""Which structures of a labelled set can be used."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molflt.data.labels import STORED, LabelSpec
from molflt.data.neighbours import check_geometry
from molflt.data.progress import track
from molflt.data.sources import StructureDataset, SubsetDataset
from molflt.errors import InputError, OnBad
from molflt.files import atomic_file

SKIPPED = "skipped.csv"


@dataclass(frozen=True)
class Skipped:
    """A structure that was left out.

    Attributes:
        index: its place in the set.
        name: its own, or file and record; empty where it cannot be read.
        reason: why.
    """

    index: int
    name: str
    reason: str


class Screening:
    """One pass over a labelled set: iterate over the structures that can be used, then ask which they were.

    Args:
        structures: read with ``labels``.
        labels: the label that is needed.
        source: where the structures are from, for messages.
        forces: whether forces are needed as well.
        on_bad: ``stop`` refuses a set with a structure that cannot be read, whose geometry makes no sense, or that
            lacks a label or forces; ``skip`` leaves such structures out.

    Attributes:
        skipped: what was left out.

    Raises:
        InputError: in the course of the iteration: a structure as above; none that can be used.
    """

    def __init__(
        self,
        structures: StructureDataset,
        labels: LabelSpec,
        source: str,
        forces: bool = False,
        on_bad: OnBad = "stop",
    ) -> None:
        self.structures, self.labels, self.source = structures, labels, source
        self.forces, self.on_bad = forces, on_bad
        self.skipped: list[Skipped] = []
        self._unlabelled: list[str] = []
        self._forceless: list[str] = []
        self._stored = ""

    def __iter__(self) -> Iterator[Any]:
        self.skipped, self._unlabelled, self._forceless = [], [], []
        n = len(self.structures)
        for index in track(range(n), "reading labels", n):
            name = ""
            try:
                data = self.structures[index]
                name = str(data.name)
                check_geometry(data)
                missing = self._missing(data)
            except InputError as error:
                missing = str(error)
                if self.on_bad == "stop":
                    raise
            if not missing:
                yield data
            elif self.on_bad == "skip":
                self.skipped.append(Skipped(index, name, missing))
        if self.on_bad == "stop":
            self._refuse_missing()
        elif len(self.skipped) == n:
            raise InputError(
                f"{self.source}: none of {n} structures can be used; the first: {self.skipped[0].reason}"
            )

    @property
    def usable(self) -> StructureDataset:
        """The structures that can be used, after the pass."""
        if not self.skipped:
            return self.structures
        left_out = {skipped.index for skipped in self.skipped}
        return SubsetDataset(self.structures, (k for k in range(len(self.structures)) if k not in left_out))

    def _missing(self, data: Any) -> str:
        """What a structure lacks, in words; nothing: an empty text."""
        if self.labels.target not in data:
            self._unlabelled.append(data.name)
            self._stored = self._stored or data.get(STORED, "")
            return f"{data.name}: no label '{self.labels.name}'"
        if self.forces and "forces" not in data:
            self._forceless.append(data.name)
            return f"{data.name}: no forces"
        return ""

    def _refuse_missing(self) -> None:
        n = len(self.structures)
        if self._unlabelled:
            stored = f" Stored with {self._unlabelled[0]}: {self._stored}." if self._stored else ""
            raise InputError(
                f"{self.source}: {len(self._unlabelled)} of {n} structures have no label '{self.labels.name}' "
                f"(first: {', '.join(self._unlabelled[:3])}).{stored} Name the label that is there (data.label; "
                "for evaluate --label), choose another data.target, or remove them"
            )
        if self._forceless:
            raise InputError(
                f"{self.source}: {len(self._forceless)} of {n} structures have no forces "
                f"(first: {', '.join(self._forceless[:3])}). Name them (data.force_label), leave them out of the "
                "loss (loss.force_weight=0), or remove the structures"
            )


def write_skipped(run_dir: Path, skipped: Mapping[str, Sequence[Skipped]]) -> str:
    """Leave a list of what was left out with a run.

    Args:
        run_dir: gets ``skipped.csv``, unless nothing was left out.
        skipped: by the name of the set.

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
