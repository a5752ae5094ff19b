"""One pass over a labelled set, to select usable structures and list the others."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch_geometric.data import Data

from molflt.data.dataset import StructureDataset, SubsetDataset
from molflt.data.labels import CANDIDATES, STORED, VECTORS, LabelSpec
from molflt.data.neighbours import check_geometry
from molflt.data.progress import track
from molflt.data.quality.forces import ForceCheck
from molflt.data.quality.labels import doubts, energies_out_of_line, forces_out_of_line
from molflt.data.quality.leaks import Sketch, sketch
from molflt.errors import AgreedError, InputError, OnBad, refuse
from molflt.files import atomic_file
from molflt.vocabulary import MAX_ATOMIC_NUMBER

SKIPPED = "skipped.csv"
_JUDGED = 5_000
"""Labels, evenly spaced, from which the whole set is judged; twice as many at most."""
T = TypeVar("T")


@dataclass(frozen=True)
class Crew:
    """Processes that read sets together, each a range of their records.

    Attributes:
        rank: of this process.
        n: number of processes.
        gather: gives every process the values of all of them, in the order of ranks. All must call it.
    """

    rank: int = 0
    n: int = 1
    gather: Callable[[Any], list[Any]] = lambda value: [value]

    def share(self, n_records: int) -> range:
        """Return the records that this process reads."""
        return range(n_records * self.rank // self.n, n_records * (self.rank + 1) // self.n)

    def agree(self, do: Callable[[], T]) -> T:
        """Run a function in every process; all must call it.

        Raises:
            InputError: in all processes, if one of them met it; of several, an ``AgreedError``.
        """
        failure = None
        try:
            mine = do()
        except InputError as error:
            failure = error
        failures = [text for text in self.gather(failure and str(failure)) if text]
        if failures:
            raise failure if failure and self.n == 1 else AgreedError(failures[0])
        return mine


ALONE = Crew()


@dataclass(frozen=True)
class Skipped:
    """Structure that was left out.

    Attributes:
        index: its index in the set.
        name: its own name, or file and record; empty if it cannot be read.
        reason: the error.
    """

    index: int
    name: str
    reason: str


@dataclass
class _Found:
    """Findings of a pass over some of the structures, in their order."""

    force_check: ForceCheck
    skipped: list[Skipped] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    sketches: list[Sketch] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    energies: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    force_sizes: list[float] = field(default_factory=list)
    compositions: dict[bytes, int] = field(default_factory=dict)
    unlabelled: list[str] = field(default_factory=list)
    forceless: list[str] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    stored: str = ""
    remedy: str = ""
    force_remedy: str = ""

    def look(self, place: int, data: Data, target: str, forces: bool) -> None:
        """Record the labels of a usable structure."""
        counts = np.bincount(data.atomic_numbers.numpy())
        present = np.flatnonzero(counts)
        composition = np.array([present, counts[present]], dtype=np.int32).tobytes()
        self.places.append(place)
        self.energies.append(float(data[target]))
        self.kinds.append(self.compositions.setdefault(composition, len(self.compositions)))
        if forces:
            self.force_sizes.append(float(data.forces.square().mean().sqrt()))

    def counts(self) -> np.ndarray:
        """(n_compositions, 119) int32: atoms of each atomic number."""
        found = np.zeros((len(self.compositions), MAX_ATOMIC_NUMBER + 1), dtype=np.int32)
        for row, composition in zip(found, self.compositions, strict=True):
            numbers, counts = np.frombuffer(composition, dtype=np.int32).reshape(2, -1)
            row[numbers] = counts
        return found

    def add(self, later: _Found) -> None:
        self.force_check.merge(later.force_check)
        self.bad |= later.bad
        for name in ("stored", "remedy", "force_remedy"):
            setattr(self, name, getattr(self, name) or getattr(later, name))
        here = [self.compositions.setdefault(one, len(self.compositions)) for one in later.compositions]
        self.kinds += [here[kind] for kind in later.kinds]
        for name in ("skipped", "sizes", "sketches", "places", "energies", "force_sizes", "unlabelled", "forceless"):
            getattr(self, name).extend(getattr(later, name))


@dataclass(eq=False)
class Screening:
    """Iterator over the usable structures of a labelled set, which then tells which they were.

    Args:
        structures: the set, read with ``labels``.
        source: origin of the structures, for messages.
        on_bad: ``stop`` refuses a set with a structure that cannot be read, whose geometry is invalid, or that
            lacks its label or forces; ``skip`` leaves such structures out.
        compared: whether to make sketches, by which structures of several sets are compared.
        crew: the processes that share the pass of :meth:`each`.

    Attributes:
        skipped: the structures left out.
        doubts: warnings about the labels, see :func:`molflt.data.quality.labels.doubts`.
        sketches: of the usable structures, if requested.

    Raises:
        InputError: during the pass: with ``stop``, such a structure; with ``skip``, nothing is left; or labels that
            certainly contradict their declaration.
    """

    structures: StructureDataset
    labels: LabelSpec
    source: str
    forces: bool = False
    on_bad: OnBad = "stop"
    compared: bool = False
    crew: Crew = ALONE
    skipped: list[Skipped] = field(default_factory=list, init=False)
    doubts: list[str] = field(default_factory=list, init=False)
    sketches: list[Sketch] = field(default_factory=list, init=False)
    _sizes: list[int] = field(default_factory=list, init=False)

    def each(self, look: Callable[[int, Data], T]) -> list[T]:
        """Return ``look(index, structure)`` for each usable structure, in order.

        If there are several processes, each reads its share of the records, and all get everything: results of
        ``look`` are pickled. Errors in a record are raised in all of them.
        """
        found = _Found(ForceCheck(self.labels))
        share = self._read(self.crew.share(len(self.structures)), found)
        mine = self.crew.agree(lambda: [look(index, data) for index, data in share])
        parts, shares = zip(*self.crew.gather((mine, found)), strict=True)
        self.crew.agree(lambda: self._judge(shares))
        return [one for part in parts for one in part]

    def _read(self, share: range, found: _Found) -> Iterator[tuple[int, Data]]:
        """Yield the usable structures of a share, and record the others."""
        n = len(self.structures)
        for index in track(share, "reading labels", len(share), enabled=None if self.crew.rank == 0 else False):
            name = ""
            try:
                data = self.structures[index]
                name = str(data.name)
                check_geometry(data, name)
            except InputError as error:
                found.bad[index] = str(error)
                found.skipped.append(Skipped(index, name or error.record, str(error)))
                continue
            if self.labels.target not in data:
                if not found.unlabelled and data.get(STORED):
                    found.stored = f" Stored with {name}: {data[STORED]}."
                    candidates = [name for name in str(data[CANDIDATES]).split("; ") if name]
                    found.remedy = self.labels.remedy(candidates)
                found.unlabelled.append(name)
                found.skipped.append(Skipped(index, name, f"{name}: no label '{self.labels.name}'"))
            elif self.forces and "forces" not in data:
                if not found.forceless and data.get(VECTORS):
                    given = " or ".join(f"data.force_label={one}" for one in data[VECTORS].split("; "))
                    found.force_remedy = f"Stored with {name}: {data[STORED]}. Name the forces: {given}"
                found.forceless.append(name)
                found.skipped.append(Skipped(index, name, f"{name}: no forces"))
            else:
                found.sizes.append(int(data.num_nodes))
                if self.compared:
                    found.sketches.append(sketch(data))
                found.look(index, data, self.labels.target, self.forces)
                if self.forces and index % max(1, n // _JUDGED) == 0:
                    found.force_check.add(index, data)
                yield index, data

    def _judge(self, shares: Sequence[_Found]) -> None:
        """Decide on the whole set.

        Raises:
            InputError: it cannot be used.
        """
        found, *others = shares
        for other in others:
            found.add(other)
        n = len(self.structures)
        self.skipped, self.sketches, self._sizes = found.skipped, found.sketches, found.sizes
        if self.on_bad == "stop":
            refuse({index: InputError(text) for index, text in found.bad.items()}, n, self.source)
            self._refuse(found)
        elif len(self.skipped) == n:
            raise InputError(
                f"{self.source}: none of {n} structures can be used; the first: {self.skipped[0].reason}"
                + (f". To learn what is there: {found.remedy}" if found.remedy else "")
            )
        if found.energies:
            self.doubts = self._doubts(found)

    def _doubts(self, found: _Found) -> list[str]:
        """Warn of single structures first; the whole set is judged without them."""
        energies, kinds, places = np.array(found.energies), np.array(found.kinds), np.array(found.places)
        compositions, additive = found.counts(), self.labels.target == "energy"
        odd = energies_out_of_line(energies, kinds, compositions, additive)
        odd_forces = forces_out_of_line(np.array(found.force_sizes))
        without = {*odd.places.tolist(), *odd_forces.places.tolist()}

        def name(k: int) -> str:
            return str(self.structures[int(places[k])].name)

        explained = "what composition explains" if additive else "the median of all"
        remedy = "; correct it, or leave the structure out"
        far = f"its energy is {{size}} eV from {explained} (the others: up to {{others}} eV)"
        large = "the root mean square of its forces is {size} eV/Å (of the others: up to {others} eV/Å)"
        said = odd.doubts(far + remedy, self.source, name)
        said += odd_forces.doubts(large + remedy, self.source, name)
        judged = np.delete(np.arange(len(places)), sorted(without))
        judged = judged[places[judged] % max(1, len(self.structures) // _JUDGED) == 0]
        said += doubts(self.labels, energies[judged], compositions[kinds[judged]], self.source)
        return said + found.force_check.doubts(self.source, {int(places[k]) for k in without})

    @property
    def usable(self) -> StructureDataset:
        """Usable structures with their sizes, after the pass."""
        left_out = {skipped.index for skipped in self.skipped}
        kept = (k for k in range(len(self.structures)) if k not in left_out)
        return SubsetDataset(self.structures, kept, np.array(self._sizes, dtype=np.int64))

    def _refuse(self, found: _Found) -> None:
        n, unlabelled, forceless = len(self.structures), found.unlabelled, found.forceless
        if unlabelled:
            remedy = "None of it is an energy: add the label"
            if found.remedy:
                remedy = f"Name what is there: {found.remedy}"
            raise InputError(
                f"{self.source}: {len(unlabelled)} of {n} structures have no label '{self.labels.name}' "
                f"(first: {', '.join(unlabelled[:3])}).{found.stored} {remedy}; or remove the structures"
            )
        if forceless:
            remedy = found.force_remedy or "Name the forces: data.force_label"
            raise InputError(
                f"{self.source}: {len(forceless)} of {n} structures have no forces (first: "
                f"{', '.join(forceless[:3])}). {remedy} (evaluate: --force-label); or leave them out of the loss "
                "(loss.force_weight=0), or remove the structures"
            )


def labels(screening: Screening, references: Mapping[int, float] | None = None) -> np.ndarray:
    """(n_structures,) eV: label of every usable structure, found in a pass over the set.

    ``references``, eV by atomic number, are subtracted for every atom.

    Raises:
        InputError: from the screening.
    """
    of = label_of(screening.labels.target, references)
    return np.array(screening.each(lambda _, data: of(data)), dtype=np.float64)


def label_of(target: str, references: Mapping[int, float] | None = None) -> Callable[[Data], float]:
    """Return a function for the label of a structure, eV; ``references`` as in :func:`labels`."""
    of_element = np.zeros(MAX_ATOMIC_NUMBER + 1)
    for z, energy in (references or {}).items():
        of_element[z] = energy
    return lambda data: float(data[target] - of_element[data.atomic_numbers.numpy()].sum())


def write_skipped(run_dir: Path, skipped: Mapping[str, Sequence[Skipped]]) -> str:
    """Write a list of the structures left out of each set, ``skipped.csv``, in a run directory.

    Returns:
        A line that says so; empty, and no file, if nothing was left out.
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
