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
from molflt.data.prepared import PreparedSet
from molflt.data.progress import track
from molflt.data.quality.domain import Domain, sample
from molflt.data.quality.facts import FactRows, Facts, domain_of
from molflt.data.quality.forces import ForceCheck
from molflt.data.quality.labels import doubts, energies_out_of_line, forces_out_of_line
from molflt.errors import AgreedError, DamagedError, InputError, OnBad, refuse
from molflt.files import atomic_file
from molflt.vocabulary import MAX_ATOMIC_NUMBER, TARGETS

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
class _Noted:
    """Notes on structures that cannot be used, from a share of a set."""

    force_check: ForceCheck
    bad: dict[int, str] = field(default_factory=dict)
    unlabelled: list[str] = field(default_factory=list)
    forceless: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    stored: str = ""
    remedy: str = ""
    force_remedy: str = ""

    def add(self, later: _Noted) -> None:
        self.force_check.merge(later.force_check)
        self.bad |= later.bad
        for name in ("stored", "remedy", "force_remedy"):
            setattr(self, name, getattr(self, name) or getattr(later, name))
        for name in ("unlabelled", "forceless", "skipped"):
            getattr(self, name).extend(getattr(later, name))


@dataclass(eq=False)
class Screening:
    """Selection of the usable structures of a labelled set, by facts about all of them.

    The facts of a prepared set come from its files; others are found in one pass over the structures.

    Args:
        structures: the set, read with ``labels``.
        source: origin of the structures, for messages.
        on_bad: ``stop`` refuses a set with a structure that cannot be read, whose geometry is invalid, or that
            lacks its label or forces; ``skip`` leaves such structures out.
        compared: whether to make sketches, by which structures of several sets are compared.
        crew: the processes that share the pass of :meth:`each`.

    Attributes:
        facts: of all structures.
        places: indices of the usable ones.
        skipped: the structures left out.
        doubts: warnings about the labels, see :func:`molflt.data.quality.labels.doubts`.

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
    facts: Facts = field(init=False)
    places: np.ndarray = field(init=False)

    def each(self, look: Callable[[int, Data], T] | None = None, examined: bool = False) -> list[T]:
        """Return ``look(index, structure)`` for each usable structure, in order.

        If there are several processes, each reads its share of the records, and all get everything: results of
        ``look`` are pickled. Errors in a record are raised in all of them. With ``examined``, a sample's geometry is
        examined, for the domain of the set.
        """
        n, noted, share = len(self.structures), _Noted(ForceCheck(self.labels)), self.crew.share(len(self.structures))
        rows: FactRows | None = None
        if isinstance(self.structures, PreparedSet):
            self.facts = self.crew.agree(self.structures.facts)
            there = self.facts.n_atoms > 0
            usable = there & self._usable(self.facts)
            wanted = ~usable | (look is not None)
            if self.forces:
                wanted[:: self._every] = True
            indices = share.start + np.flatnonzero(wanted[share.start : share.stop])
        else:
            rows, indices = FactRows(self.compared, sample(n) if examined else None), np.array(share, dtype=np.int64)
        read = self._read(indices, noted, rows)
        mine = self.crew.agree(lambda: [look(index, data) for index, data in read if look is not None])
        found = None if rows is None else rows.facts()
        parts, facts, notes = zip(*self.crew.gather((mine, found, noted)), strict=True)
        if rows is not None:
            self.facts = Facts.joined(facts)
        self.crew.agree(lambda: self._judge(notes))
        return [one for part in parts for one in part]

    @property
    def _every(self) -> int:
        return max(1, len(self.structures) // _JUDGED)

    def _usable(self, facts: Facts) -> np.ndarray:
        usable: np.ndarray = (facts.n_atoms > 0) & ~np.isnan(facts.energies[:, TARGETS.index(self.labels.target)])
        return usable & ~np.isnan(facts.forces) if self.forces else usable

    def _read(self, indices: np.ndarray, noted: _Noted, rows: FactRows | None) -> Iterator[tuple[int, Data]]:
        """Yield the usable structures at some indices, find their facts, and note the others."""
        enabled = None if self.crew.rank == 0 else False
        for index in track(indices.tolist(), "reading labels", len(indices), enabled=enabled):
            name = ""
            try:
                data = self.structures[index]
                name = str(data.name)
                if rows is not None:
                    check_geometry(data, name)
                    rows.add(data, index)
            except DamagedError:
                raise
            except InputError as error:
                noted.bad[index] = str(error)
                noted.skipped.append(Skipped(index, name or error.record, str(error)))
                if rows is not None:
                    rows.add_unusable()
                continue
            if self.labels.target not in data:
                if not noted.unlabelled and data.get(STORED):
                    noted.stored = f" Stored with {name}: {data[STORED]}."
                    candidates = [name for name in str(data[CANDIDATES]).split("; ") if name]
                    noted.remedy = self.labels.remedy(candidates)
                noted.unlabelled.append(name)
                noted.skipped.append(Skipped(index, name, f"{name}: no label '{self.labels.name}'"))
            elif self.forces and "forces" not in data:
                if not noted.forceless and data.get(VECTORS):
                    given = " or ".join(f"--forces-key {one}" for one in data[VECTORS].split("; "))
                    noted.force_remedy = f"Stored with {name}: {data[STORED]}. Name the forces: {given}"
                noted.forceless.append(name)
                noted.skipped.append(Skipped(index, name, f"{name}: no forces"))
            else:
                if self.forces and index % self._every == 0:
                    noted.force_check.add(index, data)
                yield index, data

    def _judge(self, notes: Sequence[_Noted]) -> None:
        """Decide on the whole set.

        Raises:
            InputError: it cannot be used.
        """
        noted, *others = notes
        for other in others:
            noted.add(other)
        n = len(self.structures)
        self.skipped = noted.skipped
        self.places = np.flatnonzero(self._usable(self.facts))
        if self.on_bad == "stop":
            refuse({index: InputError(text) for index, text in noted.bad.items()}, n, self.source)
            self._refuse(noted)
        elif len(self.places) == 0:
            raise InputError(
                f"{self.source}: none of {n} structures can be used; the first: {self.skipped[0].reason}"
                + (f". To learn a stored label: {noted.remedy}" if noted.remedy else "")
            )
        if len(self.places):
            self.doubts = self._doubts(noted)

    def _doubts(self, noted: _Noted) -> list[str]:
        """Warn of single structures first; the whole set is judged without them."""
        places, additive = self.places, self.labels.target == "energy"
        energies = self.energies()
        _, first, kinds = np.unique(self.facts.composition[places], return_index=True, return_inverse=True)
        # Of adsorption energies the compositions say nothing, and there are many.
        compositions = self.facts.compositions(places[first]) if additive else np.empty(0)
        odd = energies_out_of_line(energies, kinds, compositions, additive)
        odd_forces = forces_out_of_line(self.facts.forces[places] if self.forces else np.empty(0))
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
        judged = judged[places[judged] % self._every == 0]
        said += doubts(self.labels, energies[judged], self.facts.compositions(places[judged]), self.source)
        return said + noted.force_check.doubts(self.source, {int(places[k]) for k in without})

    def domain(self, by_element: bool) -> Domain:
        """Domain of the usable structures, of which a sample has been examined."""
        if isinstance(self.structures, PreparedSet) and np.array_equal(
            self.places, np.flatnonzero(self.facts.n_atoms)
        ):
            known = self.structures.domain(by_element)
            return known.model_copy(update={"forces": self.forces})
        return domain_of(self.facts, self.places, self.forces, by_element)

    def energies(self, references: Mapping[int, float] | None = None) -> np.ndarray:
        """(n_usable,) eV: labels, after the pass, less ``references``, eV by atomic number, for every atom."""
        found = self.facts.energies[self.places, TARGETS.index(self.labels.target)]
        if not references:
            return found
        of_element = np.zeros(MAX_ATOMIC_NUMBER + 1)
        of_element[list(references)] = list(references.values())
        return np.asarray(found - self.facts.compositions(self.places) @ of_element)

    @property
    def usable(self) -> StructureDataset:
        """Usable structures with their sizes, after the pass."""
        return SubsetDataset(self.structures, self.places, self.facts.n_atoms[self.places].astype(np.int64))

    def _refuse(self, found: _Noted) -> None:
        n, unlabelled, forceless = len(self.structures), found.unlabelled, found.forceless
        if unlabelled:
            remedy = "None of it is an energy: add the label"
            if found.remedy:
                remedy = f"Give {found.remedy}"
            raise InputError(
                f"{self.source}: {len(unlabelled)} of {n} structures have no label '{self.labels.name}' "
                f"(first: {', '.join(unlabelled[:3])}).{found.stored} {remedy}; or remove the structures"
            )
        if forceless:
            remedy = found.force_remedy or "Name the forces: --forces-key"
            raise InputError(
                f"{self.source}: {len(forceless)} of {n} structures have no forces (first: "
                f"{', '.join(forceless[:3])}). {remedy} (evaluate: --force-label); or leave them out of the loss "
                "(--task energy), or remove the structures"
            )


def labels(screening: Screening, references: Mapping[int, float] | None = None) -> np.ndarray:
    """(n_structures,) eV: label of every usable structure, found in a pass over the set.

    ``references``, eV by atomic number, are subtracted for every atom.

    Raises:
        InputError: from the screening.
    """
    screening.each()
    return screening.energies(references)


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
