"""Facts about the structures of a set, one row each, from which sets are judged, compared and learnt from.

They are found in a single pass: when a set is prepared (:mod:`molflt.data.prepared`), or when a run begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.data.quality.contacts import Look, examine
from molflt.data.quality.domain import Domain, DomainFit
from molflt.data.quality.leaks import Sketches, sketch
from molflt.data.quality.occurrence import Sight, areas
from molflt.vocabulary import MAX_ATOMIC_NUMBER, N_TAGS, TARGETS

_MOST_PAIRED = 2_000
_SKETCH = 9


class Facts(NamedTuple):
    """Columns over n structures.

    Attributes:
        n_atoms: (n,) int32; 0 where a structure cannot be used.
        energies: (n, 3) eV, in the order of ``TARGETS``; NaN where there is none.
        relaxed: (n,) bool, whether relaxed positions are known.
        forces: (n,) eV/Å, root mean square component; NaN without forces.
        displacements: (n, 2): Å², sum of squares over the components of atoms free to move, and their number.
        free_forces: (n, 2): the same of forces, (eV/Å)².
        cell: (n, 9) float32 Å, periodic lattice vectors; zero for others.
        diameter: (n,) Å, largest distance of two atoms; of very many, the diagonal of their box.
        sketch: (n, 9) float32, see :func:`molflt.data.quality.leaks.sketch`; zero unless asked for.
        composition: (n,) uint64, a hash.
        axes: (n,) int8, number of periodic axes.
        charge: (n,) int16, e.
        n_codes: (n,) int32, elements with a tag.
        codes: (sum of ``n_codes``,) int16, those of one structure after the other, ascending.
        counts: (sum of ``n_codes``,) int32, atoms of each.
        looks: (n_looks, 5) int64, of structures examined closely: row, numbers of codes in ``look_codes`` (distances,
            nearest, environments), and the graph's hash.
        gaps: (n_looks, 3), gap, rupture and strain, likewise.
        look_codes: int64, see :class:`molflt.data.quality.contacts.Look`.
    """

    n_atoms: np.ndarray
    energies: np.ndarray
    relaxed: np.ndarray
    forces: np.ndarray
    displacements: np.ndarray
    free_forces: np.ndarray
    cell: np.ndarray
    diameter: np.ndarray
    sketch: np.ndarray
    composition: np.ndarray
    axes: np.ndarray
    charge: np.ndarray
    n_codes: np.ndarray
    codes: np.ndarray
    counts: np.ndarray
    looks: np.ndarray
    gaps: np.ndarray
    look_codes: np.ndarray

    @staticmethod
    def joined(parts: Sequence[Facts]) -> Facts:
        """Put the facts of consecutive parts of a set together."""
        first = 0
        for k, part in enumerate(parts := list(parts)):
            if len(part.looks) and first:
                parts[k] = part._replace(looks=part.looks + np.array([first, 0, 0, 0, 0]))
            first += len(part.n_atoms)
        return Facts(*map(np.concatenate, zip(*parts, strict=True)))

    def _index_of_codes(self, places: np.ndarray) -> np.ndarray:
        """Index into ``places`` of the structure that each code belongs to; -1 for others."""
        row = np.full(len(self.n_atoms), -1)
        row[places] = np.arange(len(places))
        return np.repeat(row, self.n_codes)

    def compositions(self, places: np.ndarray) -> np.ndarray:
        """(n_places, 119) int32: atoms of each atomic number."""
        rows = self._index_of_codes(places)
        found = np.zeros((len(places), MAX_ATOMIC_NUMBER + 1), dtype=np.int32)
        for tag in range(N_TAGS):
            # An element has each tag once.
            own = (rows >= 0) & (self.codes % N_TAGS == tag)
            found[rows[own], self.codes[own] // N_TAGS] += self.counts[own]
        return found

    def elements(self, places: np.ndarray) -> list[int]:
        """Atomic numbers that occur."""
        chosen = np.zeros(len(self.n_atoms), dtype=bool)
        chosen[places] = True
        return [int(z) for z in np.unique(self.codes[np.repeat(chosen, self.n_codes)] // N_TAGS)]

    def sample(self, places: np.ndarray, most: int, of_each: int = 20) -> np.ndarray:
        """Indices of about ``most`` of ``places``, evenly chosen, and of some with each element."""
        rows, elements = self._index_of_codes(places), self.codes // N_TAGS
        some = [rows[(rows >= 0) & (elements == z)][:of_each] for z in self.elements(places)]
        evenly = np.arange(0, len(places), -(-len(places) // most))
        return np.unique(np.concatenate([evenly, *some]))

    def sketches(self, places: np.ndarray) -> Sketches:
        """Sketches of some structures."""
        return Sketches(self.composition[places], self.sketch[places])

    def sights(self, places: np.ndarray) -> Iterator[Sight]:
        """Yield the features of structures that do not depend on their geometry."""
        ends = np.cumsum(self.n_codes)
        columns = (ends - self.n_codes, ends, self.axes, self.charge, areas(self.cell.reshape(-1, 3, 3)))
        for start, end, axes, charge, area in zip(*(column[places].tolist() for column in columns), strict=True):
            yield Sight(axes, charge, self.codes[start:end].astype(np.int64), self.counts[start:end], area)

    def seen(self, places: np.ndarray) -> Iterator[Look]:
        """Yield what structures contribute to the domain of their set."""
        ends = np.cumsum(self.looks[:, 1:4].ravel()).reshape(-1, 3)
        look_of = {int(row): k for k, row in enumerate(self.looks[:, 0])}
        for place, sight in zip(places.tolist(), self.sights(places), strict=True):
            if (k := look_of.get(place)) is None:
                yield Look(sight)
            else:
                a, b, c = (self.look_codes[e - n : e] for e, n in zip(ends[k], self.looks[k, 1:4], strict=True))
                yield Look(sight, a, b, c, int(self.looks[k, 4]), *self.gaps[k].tolist())


class FactRows:
    """Facts of one structure after the other.

    ``compared`` makes sketches, and of every ``every``-th structure, if given, the geometry is examined.
    """

    def __init__(self, compared: bool, every: int | None = None) -> None:
        self._compared, self._every = compared, every
        self._rows: list[tuple[Any, ...]] = []
        self._codes: list[np.ndarray] = []
        self._counts: list[np.ndarray] = []
        self._looks: list[tuple[int, ...]] = []
        self._gaps: list[tuple[float, float, float]] = []
        self._look_codes: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_unusable(self) -> None:
        """Leave a row for a structure that cannot be used."""
        nothing = (np.nan,) * len(TARGETS), False, np.nan, (0.0, 0), (0.0, 0), np.zeros(9), 0.0, np.zeros(_SKETCH)
        self._rows.append((0, *nothing, 0, 0, 0, 0))

    def add(self, data: Data, place: int) -> None:
        """Find the facts of a usable structure; ``place`` is its index in the whole set."""
        sight = Sight.of(data)
        elements = sight.codes // N_TAGS
        first = np.flatnonzero(np.diff(elements, prepend=-1))
        composition = np.stack([elements[first], np.add.reduceat(sight.counts, first)]).astype(np.int32)
        free = ~data.fixed
        present = data.to_dict()
        relaxed, has_forces = "positions_relaxed" in present, "forces" in present
        self._codes.append(sight.codes)
        self._counts.append(sight.counts)
        if self._every is not None and place % self._every == 0:
            look = examine(data, sight)
            codes = (look.distances, look.nearest, look.environments)
            self._looks.append((len(self), *map(len, codes), look.graph))  # type: ignore[arg-type]
            self._look_codes += codes  # type: ignore[arg-type]
            self._gaps.append((look.gap, look.rupture, look.strain))
        self._rows.append(
            (
                int(data.num_nodes),
                tuple(float(present[target]) if target in present else np.nan for target in TARGETS),
                relaxed,
                float(data.forces.square().mean().sqrt()) if has_forces else np.nan,
                _squares((data.positions_relaxed - data.positions)[free]) if relaxed else (0.0, 0),
                _squares(data.forces[free]) if has_forces else (0.0, 0),
                # A box around molecules that do not repeat says nothing.
                (data.cell[0] * data.pbc[0][:, None]).numpy().ravel(),
                _diameter(data.positions),
                sketch(data) if self._compared else np.zeros(_SKETCH),
                int.from_bytes(hashlib.blake2b(composition.tobytes(), digest_size=8).digest(), "little"),
                sight.axes,
                sight.charge,
                len(sight.codes),
            )
        )

    def facts(self) -> Facts:
        """Facts of all structures added."""
        n, flat = len(self._rows), (np.empty(0, dtype=np.int64),)
        columns = list(zip(*self._rows, strict=True)) or [()] * len(_TYPES)
        made = (
            np.array(c, dtype=dtype).reshape(n, *shape) for c, (dtype, shape) in zip(columns, _TYPES, strict=True)
        )
        of_all = (
            np.concatenate([*flat, *self._codes]).astype(np.int16),
            np.concatenate([*flat, *self._counts]).astype(np.int32),
            np.array(self._looks, dtype=np.int64).reshape(-1, 5),
            np.array(self._gaps, dtype=np.float64).reshape(-1, 3),
            np.concatenate([*flat, *self._look_codes]),
        )
        return Facts(*(*made, *of_all))


def domain_of(facts: Facts, places: np.ndarray, forces: bool, by_element: bool) -> Domain:
    """Domain of the structures at some places."""
    fit = DomainFit(len(places), forces, by_element)
    for look in facts.seen(places):
        fit.add(look)
    return fit.domain()


_TYPES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (np.int32, ()),
    (np.float64, (len(TARGETS),)),
    (np.bool_, ()),
    (np.float64, ()),
    (np.float64, (2,)),
    (np.float64, (2,)),
    (np.float32, (9,)),
    (np.float64, ()),
    (np.float32, (_SKETCH,)),
    (np.uint64, ()),
    (np.int8, ()),
    (np.int16, ()),
    (np.int32, ()),
)
"""Of the columns with a row for each structure."""


def _squares(vectors: torch.Tensor) -> tuple[float, int]:
    return float((vectors * vectors).sum()), vectors.numel()


def _diameter(positions: torch.Tensor) -> float:
    """Largest distance between two positions, Å; of very many, the diagonal of their box."""
    if len(positions) > _MOST_PAIRED:
        return float((positions.amax(dim=0) - positions.amin(dim=0)).norm())
    return float(torch.pdist(positions).max()) if len(positions) > 1 else 0.0
