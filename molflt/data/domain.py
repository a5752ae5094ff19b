"""The domain of a training set: what structures there look like, and how another one differs from all of them.

The rule is geometric and costs a neighbour list. A structure is outside when one of these holds:

* it is of a kind that does not occur: an isolated molecule, a surface with an adsorbate, a cell without an adsorbate,
  an adsorbate without a surface;
* it is larger: more atoms than any isolated structure, more adsorbate atoms than any surface carries;
* two atoms are at a distance, short enough to matter to both, at which these two elements do not occur, within a
  margin;
* an atom has more or fewer neighbours than any atom of its element;
* a part lies further from the rest than any part of any structure, as when a molecule leaves a surface.

The margin is found by cross-validation, for each pair of elements. Of five parts of the training set each is measured
against the others; the margin is 1.5 times what all but one in five hundred structures with such a pair stay within,
at least 0.1 and at most 0.4 Å. Of fewer than a hundred structures only the kinds are learnt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch_geometric.data import Data

from molflt.data.neighbours import neighbour_list
from molflt.vocabulary import TAG_ADSORBATE

ISOLATED, ON_SURFACE = "isolated molecule", "surface with an adsorbate"
NO_ADSORBATE, NO_SURFACE = "cell without an adsorbate", "adsorbate without a surface"
_FURTHEST = 4.0
"""Å."""
_BOND, _NEAR, _BEYOND = 1.25, 1.3, 0.5
"""Neighbours are closer than 1.25 times the sum of covalent radii; distances matter to 1.3 times that plus 0.5 Å."""
_BIN = 0.02
"""Å."""
_MOST = 20_000
"""Structures of a training set whose geometry is looked at."""
_FEWEST, _FOLDS, _SHARE, _SAFETY = 100, 5, 0.998, 1.5
_MARGINS = (0.1, 0.4)
"""Å, the least and the largest."""
_PAIR, _ELEMENT = 1000, 1000
_FAR = 1 << 60
_UNLIMITED = 1e9
_ROUNDS = 4
"""Bonds over which the graphs of two molecules are told apart."""


class Reason(NamedTuple):
    """Why a structure is outside: by which part of the rule, and in words."""

    rule: str
    text: str


class Domain(BaseModel):
    """What the structures of a training set look like."""

    model_config = ConfigDict(extra="forbid")

    kinds: list[str]
    most_atoms: int = Field(ge=0, description="of isolated structures")
    most_adsorbate_atoms: int = Field(ge=0)
    distances: dict[str, list[tuple[float, float]]] = Field(
        description="Å, ranges by pair of elements, as C-H, margin included"
    )
    neighbours: dict[str, tuple[int, int]] = Field(description="fewest and most, by element")
    widest_gap: float = Field(ge=0, description="Å, between a part of a structure and the rest, margin included")
    held_out: float | None = Field(
        description="share of the training set outside when left out of it; None: too few to judge more than kinds"
    )
    forces: bool = Field(description="whether forces were learnt")
    geometries: float = Field(description="structures for each graph of neighbours: 1, no molecule occurs twice")

    @property
    def knows_displaced(self) -> bool:
        """Whether the energy of displaced atoms was learnt: from forces, or from many geometries of one molecule."""
        return self.forces or self.geometries >= _MANY

    def reasons(self, data: Data) -> list[Reason]:
        """Why a structure, whose neighbour list is not needed, is outside; empty: it is inside.

        Raises:
            InputError: as :func:`molflt.data.neighbours.neighbour_list`.
        """
        found = []
        kind, n_atoms, n_adsorbate = _kind(data)
        if kind not in self.kinds:
            found.append(Reason("kind", f"{kind}, and only {' and '.join(self.kinds)} in training"))
        if self.held_out is None:
            return found
        if kind == ISOLATED and self.most_atoms and n_atoms > self.most_atoms:
            found.append(Reason("size", f"{n_atoms:,} atoms, and at most {self.most_atoms} in training"))
        if kind == ON_SURFACE and self.most_adsorbate_atoms and n_adsorbate > self.most_adsorbate_atoms:
            text = f"{n_adsorbate} adsorbate atoms, and at most {self.most_adsorbate_atoms} in training"
            found.append(Reason("size", text))
        geometry = _Geometry.of(data)
        worst, text = 0.0, ""
        for a, b, distance in zip(*geometry.elements, geometry.distances, strict=True):
            ranges = self.distances.get(_name(a, b))
            miss = min((max(low - distance, distance - high, 0.0) for low, high in ranges or ()), default=math.inf)
            if miss > worst:
                unseen = "these elements" if ranges is None else "such a distance"
                worst, text = miss, f"{_name(a, b)} {distance:.2f} Å apart, and {unseen} nowhere in training"
        if text:
            found.append(Reason("distance", text))
        for element, count in zip(data.atomic_numbers.tolist(), geometry.counts.tolist(), strict=True):
            low, high = self.neighbours.get(chemical_symbols[element], (0, _FAR))
            if not low <= count <= high:
                some = f"{low}" if low == high else f"{low} to {high}"
                text = f"{chemical_symbols[element]} with {count} neighbours, and {some} in training"
                found.append(Reason("neighbours", text))
                break
        if geometry.gap > self.widest_gap:
            far = f"{geometry.gap:.1f}" if math.isfinite(geometry.gap) else f"more than {_FURTHEST:g}"
            found.append(
                Reason("gap", f"a part {far} Å from the rest, and at most {self.widest_gap:.1f} in training")
            )
        return found


_MANY = 5.0
"""Geometries of one molecule from which on its energy is known away from a minimum."""


class Look(NamedTuple):
    """What the domain of a set needs of one of its structures.

    Attributes:
        kind: see :data:`ISOLATED` and its like.
        n_atoms: all of them.
        n_adsorbate: those of the adsorbate.
        distances: codes of pair of elements and distance; None where the structure is not looked at closely.
        neighbours: codes of element and number of neighbours.
        graph: the same for all geometries of a molecule.
        gap: Å, between a part and the rest.
    """

    kind: str
    n_atoms: int
    n_adsorbate: int
    distances: np.ndarray | None = None
    neighbours: np.ndarray | None = None
    graph: bytes = b""
    gap: float = 0.0


class DomainFit:
    """Learns the domain of a training set, structure by structure.

    There will be ``n``; of many, every so many is looked at closely.
    """

    def __init__(self, n: int, forces: bool) -> None:
        self._every, self._forces, self._n = max(1, math.ceil(n / _MOST)), forces, 0
        self._kinds: set[str] = set()
        self._most_atoms = self._most_adsorbate = 0
        self._gap = 0.0
        self._distances: list[np.ndarray] = []
        self._neighbours: list[np.ndarray] = []
        self._graphs: set[bytes] = set()

    def look(self, index: int, data: Data) -> Look:
        """Look at one structure, given its place in the set; another process may."""
        kind = _kind(data)
        if index % self._every:
            return Look(*kind)
        geometry, numbers = _Geometry.of(data), data.atomic_numbers.numpy()
        a, b = geometry.elements
        return Look(
            *kind,
            np.unique((a * 128 + b) * _PAIR + (geometry.distances / _BIN).astype(np.int64)),
            np.unique(numbers * _ELEMENT + np.minimum(geometry.counts, _ELEMENT - 1)),
            geometry.graph(numbers),
            geometry.gap,
        )

    def add(self, look: Look) -> None:
        """Learn from one structure."""
        self._kinds.add(look.kind)
        if look.kind == ISOLATED:
            self._most_atoms = max(self._most_atoms, look.n_atoms)
        self._most_adsorbate = max(self._most_adsorbate, look.n_adsorbate)
        self._n += 1
        if look.distances is not None and look.neighbours is not None:
            self._distances.append(look.distances)
            self._neighbours.append(look.neighbours)
            self._graphs.add(look.graph)
            self._gap = max(self._gap, look.gap)

    def domain(self) -> Domain:
        """What was learnt."""
        judged = self._n >= _FEWEST
        margins, held_out = self._cross_validated() if judged else ({}, None)
        ranges: dict[str, list[tuple[float, float]]] = {}
        for code in _union(self._distances if judged else ()).tolist():
            pair, place = divmod(code, _PAIR)
            margin = margins.get(pair, _MARGINS[1])
            low, high = place * _BIN - margin, (place + 1) * _BIN + margin
            known = ranges.setdefault(_name(*divmod(pair, 128)), [])
            if known and low <= known[-1][1]:
                low = known.pop()[0]
            known.append((round(low, 2), round(high, 2)))
        return Domain(
            kinds=sorted(self._kinds),
            most_atoms=self._most_atoms,
            most_adsorbate_atoms=self._most_adsorbate,
            distances=ranges,
            neighbours={
                chemical_symbols[z]: limits for z, limits in _limits(self._neighbours if judged else ()).items()
            },
            # Where parts are out of sight of each other in training, nothing is too far.
            widest_gap=round(min(self._gap + _MARGINS[0], _UNLIMITED), 2),
            held_out=held_out,
            forces=self._forces,
            geometries=round(len(self._neighbours) / max(1, len(self._graphs)), 2),
        )

    def _cross_validated(self) -> tuple[dict[int, float], float]:
        """Å, the margin of each pair of elements; and the share of structures that is outside with it."""
        n = len(self._distances)
        misses: list[dict[int, float]] = [{} for _ in range(n)]
        outside = np.zeros(n, dtype=bool)
        by_pair: dict[int, list[float]] = {}
        order = np.random.default_rng(0).permutation(n)
        for k in range(_FOLDS):
            left_out = order[k::_FOLDS].tolist()
            others = np.delete(order, np.arange(k, n, _FOLDS)).tolist()
            seen = np.concatenate([[-_FAR], _union(self._distances[i] for i in others), [_FAR]])
            limits = _limits(self._neighbours[i] for i in others)
            for i in left_out:
                codes = self._distances[i]
                above = np.searchsorted(seen, codes)
                apart = np.minimum(seen[above] - codes, codes - seen[above - 1])
                # Codes of another pair are further away than any distance.
                apart = np.where(apart > _PAIR / 2, np.inf, np.maximum(apart - 1, 0) * _BIN)
                for pair, miss in zip((codes // _PAIR).tolist(), apart.tolist(), strict=True):
                    misses[i][pair] = max(miss, misses[i].get(pair, 0.0))
                for pair, miss in misses[i].items():
                    by_pair.setdefault(pair, []).append(miss)
                counts = [divmod(code, _ELEMENT) for code in self._neighbours[i].tolist()]
                outside[i] = any(not (r := limits.get(z, (0, -1)))[0] <= count <= r[1] for z, count in counts)
        margins = {
            pair: min(max(_SAFETY * float(np.quantile(found, _SHARE, method="higher")), _MARGINS[0]), _MARGINS[1])
            for pair, found in by_pair.items()
        }
        for i, found in enumerate(misses):
            outside[i] |= any(miss > margins[pair] for pair, miss in found.items())
        return margins, round(float(outside.mean()), 4)


class _Geometry(NamedTuple):
    """Pairs of near atoms, once each.

    Attributes:
        elements: (2, n_pairs) int64, atomic numbers, the smaller first.
        distances: (n_pairs,) Å.
        counts: (n_atoms,) int64, neighbours of each atom.
        bonds: (2, n_bonds) int64, neighbours in either order.
        gap: Å, the largest distance between a part of the structure and the rest; infinite beyond 4 Å.
    """

    elements: np.ndarray
    distances: np.ndarray
    counts: np.ndarray
    bonds: np.ndarray
    gap: float

    @classmethod
    def of(cls, data: Data) -> _Geometry:
        edges, offsets = neighbour_list(data.positions, data.cell, data.pbc, _FURTHEST)
        positions, numbers = data.positions.numpy(), data.atomic_numbers.numpy()
        i, j = edges.numpy()
        apart = positions[i] - positions[j] - offsets.numpy() @ data.cell[0].numpy()
        distances = np.linalg.norm(apart, axis=1)
        radii = covalent_radii[numbers]
        both = radii[i] + radii[j]
        bonds = edges.numpy()[:, distances < _BOND * both]
        counts = np.bincount(bonds[0], minlength=len(numbers))
        # Of several images the nearest; an atom is in no need of its own.
        order = np.lexsort((distances, i * len(numbers) + j))
        order = order[i[order] != j[order]]
        i_j = i[order] * len(numbers) + j[order]
        first = order[np.diff(i_j, prepend=-1) != 0]
        shape = (len(numbers), len(numbers))
        tree = minimum_spanning_tree(csr_array((distances[first], (i[first], j[first])), shape=shape)).data
        gap = float(tree.max(initial=0.0)) if len(tree) == len(numbers) - 1 else math.inf
        near = (i <= j) & (distances < np.minimum(_NEAR * both + _BEYOND, _FURTHEST))
        return cls(np.sort(numbers[np.stack([i[near], j[near]])], axis=0), distances[near], counts, bonds, gap)

    def graph(self, atomic_numbers: np.ndarray) -> bytes:
        """The same for every order of the atoms and every geometry of the same graph (Weisfeiler and Leman)."""
        colours = _mixed(atomic_numbers.astype(np.uint64))
        for _ in range(_ROUNDS):
            around = np.zeros_like(colours)
            np.add.at(around, self.bonds[0], colours[self.bonds[1]])
            colours = _mixed(colours * np.uint64(3) + around)
        return np.sort(colours).tobytes()


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers made of others, one of each, as if drawn at random (the finaliser of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _kind(data: Data) -> tuple[str, int, int]:
    """What a structure is, its number of atoms and of adsorbate atoms."""
    n_atoms, n_adsorbate = int(data.num_nodes), int((data.tags == TAG_ADSORBATE).sum())
    if not bool(data.pbc.any()):
        return ISOLATED, n_atoms, n_adsorbate
    if n_adsorbate == 0:
        return NO_ADSORBATE, n_atoms, 0
    return (ON_SURFACE if n_adsorbate < n_atoms else NO_SURFACE), n_atoms, n_adsorbate


def _union(codes: Iterable[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *codes]))


def _limits(codes: Iterable[np.ndarray]) -> dict[int, tuple[int, int]]:
    """Fewest and most neighbours by atomic number."""
    found: dict[int, tuple[int, int]] = {}
    for element, count in (divmod(code, _ELEMENT) for code in _union(codes).tolist()):
        low, high = found.get(element, (count, count))
        found[element] = min(low, count), max(high, count)
    return found


def _name(a: int, b: int) -> str:
    return f"{chemical_symbols[a]}-{chemical_symbols[b]}"
