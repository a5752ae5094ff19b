"""Domain of a training set: its kinds of structures, and rules for others to be outside.

A structure is outside if one of its features does not occur, whatever the geometry
(:mod:`molflt.data.quality.occurrence`):

* it is of a new kind: an isolated molecule, a surface with an adsorbate, a cell without an adsorbate, an adsorbate
  without a surface;
* its number of periodic axes, the tag of an element, or the combination of its tags does not occur;
* its total charge does not occur, or it is a molecule with an odd number of electrons while all have an even one;
* it is smaller or larger: fewer or more atoms than any isolated structure, or adsorbate atoms than on any surface;
* its composition is not a combination of those that occur (:mod:`molflt.data.quality.occurrence`);
* its adsorbate is another than the few, at most 20, of a training set with twenty structures or more for each;
* the cell of an adsorbate along the surface is smaller than any by 5 % or more, so that the coverage is higher.

The other part of the rule is geometric and needs a neighbour list. A structure is also outside if

* two near atoms are at a distance that does not occur, within a margin, for their elements;
* a nonmetal is bonded to other nonmetals than any atom of its element, as in a functional group that does not occur;
  being bonded to a metal counts as well, but not to how many;
* a metal atom has more or fewer neighbours than any of its element;
* a part is further from the rest than any part of any structure, as when a molecule leaves a surface;
* a part of a molecule with an odd number of electrons is, as when a bond breaks, over the sum of covalent radii;
* its bonds are on average shorter or longer, over the sums of covalent radii, than in all but a thousandth, by 2 %,
  as when positions are scaled: each of these bonds may occur in a vibration, but not all of them together.

The margin of distances is found by cross-validation, for each pair of elements. Each of five parts of the training
set is compared with the others; the margin is 1.5 times the 99.8th percentile over structures with such a pair, at
least 0.1 and at most 0.4 Å. With fewer than a hundred structures the geometric part is not learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from ase.data import chemical_symbols
from pydantic import BaseModel, ConfigDict, Field
from torch_geometric.data import Data

from molflt.data.quality import contacts
from molflt.data.quality.contacts import BIN, N_BINS, Contacts, Look, described, examine, filled
from molflt.data.quality.occurrence import ISOLATED, ON_SURFACE, Occurrence, OccurrenceFit, Reason, Sight
from molflt.vocabulary import N_TAGS

_MOST = 20_000
"""Most structures of a training set whose geometry is examined."""
_FEWEST, _FOLDS, _SHARE, _SAFETY = 100, 5, 0.998, 1.5
_MARGINS = (0.1, 0.4)
"""Å, the least and the largest margin."""
_RARE, _STRAIN = 0.001, 0.02
_NARROWER = 0.95
_FAR = 1 << 60
_UNLIMITED = 1e9


GEOMETRIC = ("distance", "environment", "gap", "bond", "strain")
"""Rules based on the geometry."""


def outside(domain: Domain | None, elements: Iterable[int], data: Data, closely: bool = True) -> list[Reason]:
    """Reasons why a structure is outside a model's domain; empty if it is inside.

    Elements are checked even if the model states no domain; for ``closely`` see :meth:`Domain.reasons`.

    Raises:
        InputError: as :meth:`Domain.reasons`.
    """
    unknown = outside_by_sight(None, elements, Sight.of(data))
    return unknown or ([] if domain is None else domain.reasons(data, closely))


def outside_by_sight(domain: Domain | None, elements: Iterable[int], sight: Sight) -> list[Reason]:
    """Reasons why a structure is outside a model's domain that do not depend on its geometry."""
    if unknown := sorted(set((sight.codes // N_TAGS).tolist()).difference(elements)):
        # Nothing else is known about these elements.
        symbols = ", ".join(chemical_symbols[z] for z in unknown)
        return [Reason("elements", f"the model was not trained on {symbols}")]
    return [] if domain is None else list(domain.unseen(sight))


class Domain(BaseModel):
    """Description of the structures of a training set."""

    model_config = ConfigDict(extra="forbid")

    kinds: list[str]
    fewest_atoms: int = Field(0, ge=0, description="of isolated structures; 0: not recorded")
    most_atoms: int = Field(ge=0, description="of isolated structures")
    fewest_adsorbate_atoms: int = Field(0, ge=0, description="0: not recorded")
    most_adsorbate_atoms: int = Field(ge=0)
    least_area: float = Field(
        0.0, ge=0, description="Å², of a cell along a surface with an adsorbate; 0: not recorded"
    )
    occurrence: Occurrence | None = Field(None, description="what occurs whatever the geometry; None: not recorded")
    distances: dict[str, list[tuple[float, float]]] = Field(
        description="Å, ranges by pair of elements, as C-H, margin included"
    )
    nearest: dict[str, float] = Field({}, description="Å, the smallest distance up to 4 Å, by pair of elements")
    neighbours: object = Field(None, exclude=True, description="of older files, where numbers of them were a rule")
    environments: list[str] = Field([], description="of atoms, in words; []: not recorded")
    widest_gap: float = Field(ge=0, description="Å, between a part of a structure and the rest, margin included")
    widest_rupture: float | None = Field(
        None,
        ge=0,
        description="largest distance between a part of a molecule with an odd number of electrons and the rest, "
        "over the sum of covalent radii, margin included; None: not recorded",
    )
    strain: tuple[float, float] | None = Field(
        None,
        description="least and largest mean over bonds of ln(length/sum of covalent radii), margin included; "
        "None: not recorded, or no structure has enough bonds",
    )
    held_out: float | None = Field(
        description="share of the training set outside when left out of it; None: too few to judge distances"
    )
    forces: bool = Field(description="whether forces were learnt")
    geometries: float = Field(description="structures for each graph of neighbours: 1, no molecule occurs twice")

    @property
    def knows_displaced(self) -> bool:
        """True if forces, or many geometries of one molecule, were learnt."""
        return self.forces or self.geometries >= _MANY

    def reasons(self, data: Data, closely: bool = True) -> list[Reason]:
        """Reasons why a structure without a neighbour list is outside; empty if it is inside.

        The geometry is examined if ``closely``.

        Raises:
            InputError: as :func:`molflt.data.neighbours.neighbour_list`.
        """
        found = list(self.unseen(Sight.of(data)))
        if self.held_out is None or not closely:
            return found
        geometry = Contacts.of(data)
        worst, text = 0.0, ""
        for a, b, distance in zip(*geometry.elements, geometry.distances, strict=True):
            ranges = self.distances.get(_name(a, b))
            miss = min((max(low - distance, distance - high, 0.0) for low, high in ranges or ()), default=math.inf)
            if miss > worst:
                worst, text = miss, self._strange_distance(a, b, float(distance))
        if text:
            found.append(Reason("distance", text))
        around = map(described, geometry.environments(data.atomic_numbers.numpy()).tolist())
        if self.environments and (new := next((each for each in around if each not in self.environments), "")):
            found.append(Reason("environment", f"{new}, and no such atom in training"))
        if min(geometry.gap, _UNLIMITED) > self.widest_gap:
            far = f"{geometry.gap:.1f}" if math.isfinite(geometry.gap) else f"more than {contacts.FURTHEST:g}"
            found.append(
                Reason("gap", f"a part {far} Å from the rest, and at most {self.widest_gap:.1f} in training")
            )
        if self.widest_rupture is not None and geometry.rupture > self.widest_rupture:
            found.append(
                Reason("bond", "a bond is broken: a part with an odd number of electrons is away from the rest")
            )
        shortest, longest = self.strain or (-math.inf, math.inf)
        if geometry.strain < shortest or geometry.strain > longest:
            mean, least, most = (f"{math.exp(value):.2f}" for value in (geometry.strain, shortest, longest))
            text = f"bonds are on average {mean} times the sums of covalent radii, and {least} to {most} in training"
            found.append(Reason("strain", text))
        return found

    def unseen(self, sight: Sight) -> Iterator[Reason]:
        """Reasons that do not depend on the geometry."""
        if (mine := sight.kind) not in self.kinds:
            yield Reason("kind", f"{mine}, and only {' and '.join(self.kinds)} in training")
        for kind, n, fewest, most, what in (
            (ISOLATED, sight.n_atoms, self.fewest_atoms, self.most_atoms, "atom"),
            (ON_SURFACE, sight.n_adsorbate, self.fewest_adsorbate_atoms, self.most_adsorbate_atoms, "adsorbate atom"),
        ):
            if kind == mine and most and not fewest <= n <= most:
                limit = f"at most {most}" if n > most else f"at least {fewest}"
                yield Reason("size", f"{n:,} {what}{'s' * (n != 1)}, and {limit} in training")
        if mine == ON_SURFACE and sight.area < _NARROWER * (least := self.least_area):
            text = f"an adsorbate to {sight.area:.0f} Å² of surface, and at least {least:.0f} Å² in training"
            yield Reason("coverage", text)
        if self.occurrence is not None:
            yield from self.occurrence.reasons(sight, mine in self.kinds)

    def _strange_distance(self, a: int, b: int, distance: float) -> str:
        seen = "at no such distance" if _name(a, b) in self.distances else "never so near"
        if distance < (nearest := self.nearest.get(_name(a, b), 0.0)):
            seen = f"{nearest:.2f} Å or more"
        return f"{chemical_symbols[a]} and {chemical_symbols[b]} {distance:.2f} Å apart, and {seen} in training"


_MANY = 5.0
"""Fewest geometries per molecule for which energies away from minima are known."""


def sample(n: int) -> int:
    """Return k, if the geometry of every k-th of ``n`` structures is examined."""
    return max(1, math.ceil(n / _MOST))


class DomainFit:
    """Learn the domain of a training set, structure by structure.

    ``n`` is the expected number of structures, of which an even sample is examined closely. For ``by_element`` see
    :class:`molflt.data.quality.occurrence.OccurrenceFit`.
    """

    def __init__(self, n: int, forces: bool, by_element: bool = True) -> None:
        self._every, self._forces, self._n = sample(n), forces, 0
        self._occurrence = OccurrenceFit(by_element)
        self._kinds: set[str] = set()
        self._atoms: set[int] = set()
        self._adsorbate_atoms: set[int] = set()
        self._area = math.inf
        self._gap = self._rupture = 0.0
        self._strains: list[float] = []
        self._nearest = np.empty(0, dtype=np.int64)
        self._distances: list[np.ndarray] = []
        self._environments: list[np.ndarray] = []
        self._graphs: set[int] = set()

    def look(self, index: int, data: Data) -> Look:
        """Examine one structure, given its index in the set."""
        sight = Sight.of(data)
        return Look(sight) if index % self._every else examine(data, sight)

    def add(self, look: Look) -> None:
        """Learn from one structure."""
        sight = look.sight
        self._occurrence.add(sight)
        self._kinds.add(kind := sight.kind)
        if kind == ISOLATED:
            self._atoms.add(sight.n_atoms)
        if kind == ON_SURFACE:
            self._adsorbate_atoms.add(sight.n_adsorbate)
            self._area = min(self._area, sight.area)
        self._n += 1
        if look.distances is not None and look.nearest is not None and look.environments is not None:
            self._distances.append(look.distances)
            self._nearest = contacts.first_of_each(_union((self._nearest, look.nearest)))
            self._environments.append(look.environments)
            self._graphs.add(look.graph)
            self._gap, self._rupture = max(self._gap, look.gap), max(self._rupture, look.rupture)
            self._strains += [] if math.isnan(look.strain) else [look.strain]

    def domain(self) -> Domain:
        """Domain of the structures seen."""
        judged = self._n >= _FEWEST
        strain = None
        if judged and self._strains:
            least, most = np.quantile(self._strains, (_RARE, 1 - _RARE)).tolist()
            strain = (round(least - _STRAIN, 4), round(most + _STRAIN, 4))
        margins, held_out = self._cross_validated() if judged else ({}, None)
        ranges: dict[str, list[tuple[float, float]]] = {}
        for code in _union(self._distances if judged else ()).tolist():
            pair, place = divmod(code, N_BINS)
            margin = margins.get(pair, _MARGINS[1])
            low, high = place * BIN - margin, (place + 1) * BIN + margin
            known = ranges.setdefault(_name(*divmod(pair, 128)), [])
            if known and low <= known[-1][1]:
                low = known.pop()[0]
            known.append((round(low, 2), round(high, 2)))
        return Domain(
            kinds=sorted(self._kinds),
            fewest_atoms=min(self._atoms, default=0),
            most_atoms=max(self._atoms, default=0),
            fewest_adsorbate_atoms=min(self._adsorbate_atoms, default=0),
            most_adsorbate_atoms=max(self._adsorbate_atoms, default=0),
            least_area=0.0 if math.isinf(self._area) else round(self._area, 2),
            occurrence=self._occurrence.occurrence(self._kinds),
            distances=ranges,
            nearest={
                _name(*divmod(pair, 128)): round(place * BIN, 2)
                for pair, place in (divmod(code, N_BINS) for code in (self._nearest.tolist() if judged else ()))
            },
            environments=[described(code) for code in filled(_union(self._environments if judged else ())).tolist()],
            # If separate parts occur in training, no distance is too far.
            widest_gap=round(min(self._gap + _MARGINS[0], _UNLIMITED), 2),
            widest_rupture=round(min(self._rupture + _MARGINS[0], _UNLIMITED), 2),
            strain=strain,
            held_out=held_out,
            forces=self._forces,
            geometries=round(len(self._environments) / max(1, len(self._graphs)), 2),
        )

    def _cross_validated(self) -> tuple[dict[int, float], float]:
        """Margin of each pair of elements, Å, and the share of structures outside with it."""
        n = len(self._distances)
        misses: list[dict[int, float]] = [{} for _ in range(n)]
        outside = np.zeros(n, dtype=bool)
        by_pair: dict[int, list[float]] = {}
        order = np.random.default_rng(0).permutation(n)
        for k in range(_FOLDS):
            left_out = order[k::_FOLDS].tolist()
            others = np.delete(order, np.arange(k, n, _FOLDS)).tolist()
            seen = np.concatenate([[-_FAR], _union(self._distances[i] for i in others), [_FAR]])
            around = filled(_union(self._environments[i] for i in others))
            for i in left_out:
                codes = self._distances[i]
                above = np.searchsorted(seen, codes)
                apart = np.minimum(seen[above] - codes, codes - seen[above - 1])
                # Codes of another pair are further away than any distance.
                apart = np.where(apart > N_BINS / 2, np.inf, np.maximum(apart - 1, 0) * BIN)
                for pair, miss in zip((codes // N_BINS).tolist(), apart.tolist(), strict=True):
                    misses[i][pair] = max(miss, misses[i].get(pair, 0.0))
                for pair, miss in misses[i].items():
                    by_pair.setdefault(pair, []).append(miss)
                outside[i] = not np.isin(self._environments[i], around).all()
        margins = {
            pair: min(max(_SAFETY * float(np.quantile(found, _SHARE, method="higher")), _MARGINS[0]), _MARGINS[1])
            for pair, found in by_pair.items()
        }
        for i, found in enumerate(misses):
            outside[i] |= any(miss > margins[pair] for pair, miss in found.items())
        return margins, round(float(outside.mean()), 4)


def _union(codes: Iterable[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *codes]))


def _name(a: int, b: int) -> str:
    return f"{chemical_symbols[a]}-{chemical_symbols[b]}"
