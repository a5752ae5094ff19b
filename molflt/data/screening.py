"""One pass over a labelled set: which of its structures can be used, and which were left out."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch_geometric.data import Data

from molflt.data.labels import CANDIDATES, STORED, LabelSpec
from molflt.data.likeness import Sketch, sketch
from molflt.data.neighbours import check_geometry
from molflt.data.plausibility import ForceCheck, doubts
from molflt.data.progress import track
from molflt.data.sources import StructureDataset, SubsetDataset
from molflt.errors import InputError, OnBad, refuse
from molflt.files import atomic_file
from molflt.vocabulary import MAX_ATOMIC_NUMBER

SKIPPED = "skipped.csv"
_JUDGED = 5_000
"""Labels from which the whole set is judged, evenly from all; twice as many at most."""


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
        compared: whether sketches are made, by which structures of several sets are compared.

    Attributes:
        skipped: what was left out.
        doubts: what looks wrong with the labels, see :func:`molflt.data.plausibility.doubts`.
        sketches: of the structures that can be used, where they are asked for.

    Raises:
        InputError: in the course of the iteration: with ``stop``, such a structure; with ``skip``, nothing is left;
            or labels that are certainly not what they are said to be.
    """

    def __init__(
        self,
        structures: StructureDataset,
        labels: LabelSpec,
        source: str,
        forces: bool = False,
        on_bad: OnBad = "stop",
        compared: bool = False,
    ) -> None:
        self.structures, self.labels, self.source = structures, labels, source
        self.forces, self.on_bad, self.compared = forces, on_bad, compared
        self.skipped: list[Skipped] = []
        self.doubts: list[str] = []
        self.sketches: list[Sketch] = []

    def __iter__(self) -> Iterator[Data]:
        self.skipped, self.sketches = [], []
        energies: list[float] = []
        compositions: list[np.ndarray] = []
        force_check = ForceCheck(self.labels)
        unlabelled: list[str] = []
        forceless: list[str] = []
        bad: dict[int, InputError] = {}
        stored, remedy = "", ""
        n = len(self.structures)
        for index in track(range(n), "reading labels", n):
            name = ""
            try:
                data = self.structures[index]
                name = str(data.name)
                check_geometry(data)
            except InputError as error:
                bad[index] = error
                self.skipped.append(Skipped(index, name or error.record, str(error)))
                continue
            if self.labels.target not in data:
                if not unlabelled and data.get(STORED):
                    stored = f" Stored with {name}: {data[STORED]}."
                    remedy = self.labels.remedy([name for name in str(data[CANDIDATES]).split("; ") if name])
                unlabelled.append(name)
                self.skipped.append(Skipped(index, name, f"{name}: no label '{self.labels.name}'"))
            elif self.forces and "forces" not in data:
                forceless.append(name)
                self.skipped.append(Skipped(index, name, f"{name}: no forces"))
            else:
                if self.compared:
                    self.sketches.append(sketch(data))
                if index % max(1, n // _JUDGED) == 0:
                    energies.append(float(data[self.labels.target]))
                    numbers = data.atomic_numbers.numpy()
                    compositions.append(np.bincount(numbers, minlength=MAX_ATOMIC_NUMBER + 1))
                    if self.forces:
                        force_check.add(data)
                yield data
        if self.on_bad == "stop":
            refuse(bad, n, self.source)
            self._refuse(unlabelled, stored, remedy, forceless)
        elif len(self.skipped) == n:
            raise InputError(
                f"{self.source}: none of {n} structures can be used; the first: {self.skipped[0].reason}"
                + (f". To learn what is there: {remedy}" if remedy else "")
            )
        if energies:
            self.doubts = doubts(self.labels, np.array(energies), np.stack(compositions), self.source)
            self.doubts += force_check.doubts(self.source)

    @property
    def usable(self) -> StructureDataset:
        """The structures that can be used, after the pass."""
        if not self.skipped:
            return self.structures
        left_out = {skipped.index for skipped in self.skipped}
        return SubsetDataset(self.structures, (k for k in range(len(self.structures)) if k not in left_out))

    def _refuse(self, unlabelled: list[str], stored: str, remedy: str, forceless: list[str]) -> None:
        n = len(self.structures)
        if unlabelled:
            raise InputError(
                f"{self.source}: {len(unlabelled)} of {n} structures have no label '{self.labels.name}' "
                f"(first: {', '.join(unlabelled[:3])}).{stored} "
                + (f"Name what is there: {remedy}" if remedy else "None of it is an energy: add the label")
                + "; or remove the structures"
            )
        if forceless:
            raise InputError(
                f"{self.source}: {len(forceless)} of {n} structures have no forces (first: "
                f"{', '.join(forceless[:3])}). Name the forces (data.force_label), leave them out of the loss "
                "(loss.force_weight=0), or remove the structures"
            )


def labels(screening: Screening, references: Mapping[int, float] | None = None) -> np.ndarray:
    """The label of every structure that can be used, found in a pass over the set.

    Args:
        screening: the set.
        references: eV by atomic number, to take off for every atom.

    Returns:
        (n_structures,) eV, float64.

    Raises:
        InputError: from the screening.
    """
    of_element = np.zeros(MAX_ATOMIC_NUMBER + 1)
    for z, energy in (references or {}).items():
        of_element[z] = energy
    return np.array(
        [float(data[screening.labels.target]) - of_element[data.atomic_numbers.numpy()].sum() for data in screening],
        dtype=np.float64,
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
