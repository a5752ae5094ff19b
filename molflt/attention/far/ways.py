"""The way in which the far field of each structure is summed: on pairs, over waves, or on a mesh.

    pairs   up to 2,000 atoms in the open, and what repeats along one axis with few images in reach; in a cell, where
            an atom has fewer others and images in reach than there are waves
    waves   other cells, unless there are many atoms and waves
    mesh    the rest, but never for 200 atoms or fewer

Nothing but the structure and the plan enters: batch-mates must not change a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from molflt.attention.places import Movable, place_rows, select_rows
from molflt.errors import InputError

Way = Literal["pairs", "waves", "mesh"]
WAYS: tuple[Way, ...] = ("pairs", "waves", "mesh")

MESH_FROM = 200
"""Up to so many atoms there is no mesh, so that small structures stay invariant to rounding, not to ε."""
MOST_PAIRS, MOST_IMAGES = 4_000_000, 400_000
"""Pairs of atoms up to which an open structure is summed on them, and of atoms and images in one that repeats."""
MOST_WAVES = 700_000
"""Atoms times waves up to which a structure that repeats is summed over waves."""
MARGIN = 1.05
"""By how much a plan goes beyond what the members of f need at present, so that it lasts while they are learnt."""


@dataclass(frozen=True)
class Images(Movable):
    """Pairs of atoms, or of an atom and an image.

    Attributes:
        receiver, sender: (n_pairs,) int32, places in the padded layout, structure · n_max + atom.
        offsets: (n_pairs, 3) int16, lattice translation of the sender's image.
    """

    receiver: Tensor
    sender: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class Group(Movable):
    """Structures of a batch whose far field is computed together.

    Attributes:
        way: in which.
        structures, index: their indices in the batch, and these as (n_structures,) int64.
        sizes: how many atoms each has.
        n_max: places for the atoms of each, as many as the largest has.
        there: (n_structures, n_max) bool, which of them hold an atom.
        images: pairs of atoms and images within reach, where structures repeat.
        integers: (n_structures, n_waves, 3) coefficients of the reciprocal vectors, zero first; float64.
        multiplicity: of waves, (n_structures, n_waves), 0 where they only fill up.
        directions: (n_structures, 3, 3) unit vectors along which structures do not repeat, zero for those along
            which they do; None where all repeat along all.
        rungs: of the ladder for 1/r, (n_structures, n_rungs) float64, 0 for those that a structure is without.
    """

    way: Way
    structures: tuple[int, ...]
    index: Tensor
    sizes: tuple[int, ...]
    n_max: int
    there: Tensor
    images: Images | None = None
    integers: Tensor | None = None
    multiplicity: Tensor | None = None
    directions: Tensor | None = None
    rungs: Tensor | None = None


@dataclass(frozen=True)
class Groups(Movable):
    """The structures of a batch, group after group, padded.

    Attributes:
        groups: every structure is in one.
        slot: (n_atoms,) the place of each atom of the batch among those of all groups, one group after another.
        is_batch: whether one group without empty places is the batch as it is.
    """

    groups: tuple[Group, ...]
    slot: Tensor
    is_batch: bool

    def pad(self, values: Tensor) -> list[Tensor]:
        """(n_atoms, ...) → (n_structures, n_max, ...) of every group, zeros where there is no atom."""
        shapes = [group.there.shape for group in self.groups]
        if self.is_batch:
            return [values.reshape(*shapes[0], *values.shape[1:])]
        n = [n_structures * n_max for n_structures, n_max in shapes]
        parts = place_rows(values, self.slot, sum(n)).split(n)
        return [part.unflatten(0, shape) for part, shape in zip(parts, shapes, strict=True)]

    def pack(self, padded: Sequence[Tensor]) -> Tensor:
        """(n_structures, n_max, ...) of every group → (n_atoms, ...)."""
        flat = [part.flatten(0, 1) for part in padded]
        together = flat[0] if len(flat) == 1 else torch.cat(flat)
        return together if self.is_batch else select_rows(together, self.slot)


def grouped(groups: tuple[Group, ...], starts: np.ndarray) -> Groups:
    """Groups with the places of the atoms; ``starts``: (n_structures + 1,) where the atoms of each begin."""
    slot, first = np.empty(starts[-1], dtype=np.int64), 0
    for group in groups:
        for b, size in zip(group.structures, group.sizes, strict=True):
            slot[starts[b] : starts[b + 1]] = first + np.arange(size)
            first += group.n_max
    is_batch = len(groups) == 1 and first == len(slot) and np.array_equal(slot, np.arange(first))
    return Groups(groups, torch.from_numpy(slot), is_batch)


@dataclass(frozen=True)
class FarPlan:
    """What the far field of a model needs, as plain numbers.

    Attributes:
        way: the only one; None: that of the rule.
        longest: 1/Å, up to which there are waves; zero: none.
        reach: Å, beyond which every member is nothing.
        padding: Å by which artificial cell vectors are longer than a structure.
        dense: whether layers need f̂ as a matrix, which a mesh does not give.
    """

    way: Way | None
    longest: float
    reach: float
    padding: float
    dense: bool = False

    @staticmethod
    def covering(plans: Sequence[FarPlan]) -> FarPlan:
        """The one that goes as far as all of them."""
        longest, reach, padding = (
            max(p) for p in zip(*((p.longest, p.reach, p.padding) for p in plans), strict=True)
        )
        return replace(plans[0], longest=longest, reach=reach, padding=padding)

    def groups(self, positions: Sequence[np.ndarray], cells: np.ndarray, pbc: np.ndarray) -> tuple[Group, ...]:
        """The structures of a batch by their ways, none twice.

        Args:
            positions: (n, 3) Å of each structure.
            cells: (n_structures, 3, 3) Å.
            pbc: (n_structures, 3) bool.
        """
        # Sums over images apart from those over pairs alone.
        kinds = [
            (self.way_of(r, cell, repeats), bool(repeats.any()))
            for r, cell, repeats in zip(positions, cells, pbc, strict=True)
        ]
        found = []
        for kind in sorted(set(kinds), key=lambda kind: (WAYS.index(kind[0]), kind[1])):
            mine = [b for b, of_b in enumerate(kinds) if of_b == kind]
            way = kind[0]
            sizes = [len(positions[b]) for b in mine]
            others = sizes if way == "pairs" else [abs(np.linalg.det(cells[b])) for b in mine]
            for some in [range(len(mine))] if way == "mesh" else similar(sizes, others):
                chosen = [mine[k] for k in some]
                fields: dict[str, Any] = {}
                if way != "mesh":
                    make = self._pairs if way == "pairs" else self._waves
                    fields |= make(chosen, positions, cells, pbc)
                atoms = tuple(sizes[k] for k in some)
                there = torch.arange(max(atoms)) < torch.tensor(atoms)[:, None]
                found.append(Group(way, tuple(chosen), torch.tensor(chosen), atoms, max(atoms), there, **fields))
        return tuple(found)

    def way_of(self, positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> Way:
        """The way of one structure."""
        if self.way is not None:
            return self.way
        n, n_axes = len(positions), int(pbc.sum())
        n_images = expected_images(cell, pbc, self.reach)
        if n_axes < 2:
            few = n * n * n_images <= (MOST_IMAGES if n_axes else MOST_PAIRS)
            return "pairs" if n <= MESH_FROM or few or self.dense else "mesh"
        box = padded_cell(positions, cell, pbc, open_directions(positions, cell, pbc), self.padding)
        n_waves = 1 + 2 / 3 * math.pi * self.longest**3 * abs(np.linalg.det(box))
        if n * n_images < n_waves:
            return "pairs" if n <= MESH_FROM or self.dense else "mesh"
        return "waves" if n <= MESH_FROM or n * n_waves <= MOST_WAVES or self.dense else "mesh"

    def _pairs(
        self, mine: list[int], positions: Sequence[np.ndarray], cells: np.ndarray, pbc: np.ndarray
    ) -> dict[str, Images]:
        if not pbc[mine].any():
            return {}
        width = max(len(positions[b]) for b in mine)
        found = [images(positions[b], cells[b], pbc[b], self.reach) for b in mine]
        receiver, sender = (
            np.concatenate([k * width + pairs[side] for k, pairs in enumerate(found)]).astype(np.int32)
            for side in (0, 1)
        )
        offsets = np.concatenate([pairs[2] for pairs in found]).astype(np.int16)
        return {"images": Images(*map(torch.from_numpy, (receiver, sender, offsets)))}

    def _waves(
        self, mine: list[int], positions: Sequence[np.ndarray], cells: np.ndarray, pbc: np.ndarray
    ) -> dict[str, Tensor]:
        directions, found = np.zeros((len(mine), 3, 3)), []
        for k, b in enumerate(mine):
            directions[k] = open_directions(positions[b], cells[b], pbc[b])
            box = padded_cell(positions[b], cells[b], pbc[b], directions[k], self.padding)
            found.append(half_lattice(box, self.longest))
        integers, exists = _filled(found)
        multiplicity = 2 * exists
        multiplicity[:, 0] = 1.0
        across = {} if pbc[mine].all() else {"directions": torch.from_numpy(directions)}
        return {"integers": integers, "multiplicity": multiplicity, **across}


@dataclass(frozen=True)
class LadderPlan:
    """How the ladder of Gaussians for 1/r is summed (``coulomb.py``): in crystals never on pairs.

    Attributes:
        finest: Å, the width of the finest rung; each is √2 times as wide as the one before.
        longest: 1/Å, up to which there are waves.
        way: the only one; None: that of the rule.
    """

    finest: float
    longest: float
    way: Way | None = None

    def groups(self, positions: Sequence[np.ndarray], cells: np.ndarray, pbc: np.ndarray) -> tuple[Group, ...]:
        """See :meth:`FarPlan.groups`.

        Raises:
            InputError: a structure repeats along one or two axes only.
        """
        n_axes = pbc.sum(axis=1)
        if (some := n_axes[(n_axes > 0) & (n_axes < 3)]).size:
            raise InputError(
                f"a structure that is periodic along {some[0]} of three axes, and a model with charges, whose 1/r "
                "has no sum there; make it periodic along all three, with vacuum where it does not repeat"
            )
        # Of a sum over images nothing would be in reach.
        found = FarPlan(self.way, self.longest, math.inf, 0.0).groups(positions, cells, pbc)
        return tuple(replace(group, rungs=self._rungs(group, positions, cells, pbc)) for group in found)

    def _rungs(self, group: Group, positions: Sequence[np.ndarray], cells: np.ndarray, pbc: np.ndarray) -> Tensor:
        counts = []
        for b in group.structures:
            widest = _NOTHING_BUT_MEAN * longest_wave(cells[b]) if pbc[b].any() else 0.0
            if not pbc[b].any():
                widest = DIAMETERS * float(np.linalg.norm(np.ptp(positions[b], axis=0)))
            counts.append(n_rungs(widest / self.finest))
        return torch.from_numpy((np.arange(max(counts)) < np.array(counts)[:, None]).astype(np.float64))


def n_rungs(widest: float) -> int:
    """How many rungs there are up to one so many times as wide as the finest."""
    return 1 + math.ceil(2 * math.log2(max(widest, 2.0)))


def longest_wave(cell: np.ndarray) -> float:
    """1/|ξ| of the shortest vector of the reciprocal lattice of ``cell`` (3, 3) Å."""
    few = np.arange(-3, 4)
    xi = np.stack(np.meshgrid(few, few, few, indexing="ij"), axis=-1).reshape(-1, 3) @ np.linalg.inv(cell).T
    length = np.linalg.norm(xi, axis=1)
    return float(1 / length[length > 0].min())


DIAMETERS = 16
"""Diameters of an open structure up to which rungs are summed."""
_NOTHING_BUT_MEAN = 1.4
"""exp(−2π²x²) is 1e-17: what the longest wave of a lattice has left of a Gaussian x times as wide."""


def similar(sizes: Sequence[int], others: Sequence[float]) -> list[list[int]]:
    """Structures in one group, or in two where these need much less padding.

    Args:
        sizes: of structures.
        others: what they are multiplied with: the sizes again, or volumes, as which the numbers of waves grow.

    Returns:
        Ascending indices, group after group.
    """
    table = np.array([sizes, others], dtype=np.float64)
    order = np.argsort(table.prod(axis=0), kind="stable")
    counts = np.arange(1, len(order) + 1)
    # Of the first k, and of the last k.
    low, high = (np.maximum.accumulate(table[:, o], axis=1).prod(axis=0) * counts for o in (order, order[::-1]))
    apart = low[:-1] + high[-2::-1] if len(order) > 1 else np.zeros(0)
    if len(apart) and apart.min() < WORTH_A_GROUP * high[-1]:
        cut = 1 + int(np.argmin(apart))
        return [sorted(order[:cut].tolist()), sorted(order[cut:].tolist())]
    return [sorted(order.tolist())]


WORTH_A_GROUP = 0.75
"""Share of the padded pairs, or atoms times waves, that must be left for a second group."""


def _filled(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Rows of each structure, (n_b, 3), filled up with zeros, (n_structures, n, 3), and where there are any."""
    integers = np.zeros((len(rows), max(map(len, rows)), 3))
    exists = np.zeros(integers.shape[:2])
    for k, some in enumerate(rows):
        integers[k, : len(some)] = some
        exists[k, : len(some)] = 1.0
    return torch.from_numpy(integers), torch.from_numpy(exists)


def images(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, reach: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Receivers and senders, (n_pairs,), and translations of the senders, (n_pairs, 3), nearer than ``reach`` Å.

    Of a structure that does not repeat, all pairs whatever their distance.
    """
    n, rows = len(positions), np.flatnonzero(pbc)
    i, j = (index.ravel() for index in np.indices((n, n)))
    if not len(rows):
        return i, j, np.zeros((n * n, 3), dtype=int)
    lattice = cell[rows]
    dual = np.linalg.pinv(lattice)
    delta = positions[i] - positions[j]
    nearest = np.round(delta @ dual)
    delta -= nearest @ lattice
    # Across the lattice no image is nearer than another, however far apart the atoms are there.
    radius = reach + float(np.linalg.norm(delta @ dual @ lattice, axis=1).max())
    # |n_k| ≤ radius · |column k of the dual basis|: the planes n_k = const are 1/|dual| apart.
    most = np.floor(radius * np.linalg.norm(dual, axis=0) + 1e-9).astype(int)
    grid = np.stack(np.meshgrid(*[np.arange(-m, m + 1) for m in most], indexing="ij"), axis=-1)
    translations = grid.reshape(-1, len(rows))
    translations = translations[np.linalg.norm(translations @ lattice, axis=1) <= radius]
    found = []
    for some in np.array_split(translations, 1 + n * n * len(translations) // _TRIED_AT_ONCE):
        apart = delta[:, None] - (some @ lattice)[None]
        pair, k = np.nonzero(np.einsum("pix,pix->pi", apart, apart) <= reach**2)
        found.append((pair, nearest[pair] + some[k]))
    pairs = np.concatenate([pair for pair, _ in found])
    offsets = np.zeros((len(pairs), 3), dtype=int)
    offsets[:, rows] = np.concatenate([shifts for _, shifts in found])
    return i[pairs], j[pairs], offsets


_TRIED_AT_ONCE = 1 << 20
"""Pairs and images whose distances are looked at together."""


def expected_images(cell: np.ndarray, pbc: np.ndarray, radius: float) -> float:
    """How many lattice translations a ball of ``radius`` Å holds, judged by volume; at least one."""
    lattice = cell[pbc]
    measure = math.sqrt(abs(np.linalg.det(lattice @ lattice.T))) if len(lattice) else 1.0
    return max(1.0, (1.0, 2 * radius, math.pi * radius**2, 4 / 3 * math.pi * radius**3)[len(lattice)] / measure)


def open_directions(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """(3, 3): of every axis that does not repeat a unit vector, at right angles to all others; zero for the rest.

    For a slab it is the normal; else the principal axes of Σ (r − r̄)(r − r̄)ᵀ, longest first, across the periodic
    axis where there is one. They point where the third moment is positive, and so turn with the structure. Where two
    axes are equally long, or a structure is its own mirror image, they are one choice of several.
    """
    found, periodic = np.zeros((3, 3)), cell[pbc]
    if len(periodic) == 3:
        return found
    if len(periodic) == 2:
        normal = np.cross(periodic[0], periodic[1])
        found[~pbc] = normal / np.linalg.norm(normal)
        return found
    centred = positions - positions.mean(axis=0)
    if len(periodic) == 1:
        axis = periodic[0] / np.linalg.norm(periodic[0])
        centred = centred - (centred @ axis)[:, None] * axis
        # The axis itself comes last, far from the others.
        tensor = centred.T @ centred
        _, axes = np.linalg.eigh(tensor - (1 + np.trace(tensor)) * np.outer(axis, axis))
        rows = axes.T[:0:-1]
    else:
        rows = np.linalg.eigh(centred.T @ centred)[1].T[::-1]
    sense = ((centred @ rows.T) ** 3).sum(axis=0)
    found[~pbc] = np.where(sense < 0, -1.0, 1.0)[:, None] * rows
    return found


def padded_cell(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, directions: np.ndarray, padding: float
) -> np.ndarray:
    """(3, 3) Å: the periodic vectors, and along the others some so long that their images are nothing."""
    box = np.where(pbc[:, None], cell, 0.0)
    heights = (positions - positions.mean(axis=0)) @ directions.T
    for axis in np.flatnonzero(~pbc):
        box[axis] = (_bound(heights[:, axis]) + _bound(-heights[:, axis]) + padding) * directions[axis]
    return box


def _bound(lengths: np.ndarray) -> float:
    """``smooth_max`` of the device, a little above."""
    largest = float(lengths.max())
    return largest + math.log(float(np.exp(4.0 * (lengths - largest)).sum())) / 4.0 + 1e-9


def half_lattice(cell: np.ndarray, longest: float) -> np.ndarray:
    """(K, 3) integers n with |n·A⁻ᵀ| ≤ longest, by length: zero, then one of each pair ±n.

    Raises:
        InputError: they would not fit into the memory of a usual machine.
    """
    reach = np.floor(longest * np.linalg.norm(cell, axis=1) + 1e-9).astype(int)
    if (n_tried := float(np.prod(2.0 * reach + 1))) > _MOST_TRIED:
        raise InputError(
            f"a cell of {abs(np.linalg.det(cell)):.3g} Å³ has about {n_tried:.1e} lattice waves; use "
            "frequencies=auto, or look for atoms that are far from all others"
        )
    axes = [np.arange(0, reach[0] + 1), np.arange(-reach[1], reach[1] + 1), np.arange(-reach[2], reach[2] + 1)]
    n = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
    first, second, third = n.T
    n = n[(first > 0) | ((first == 0) & ((second > 0) | ((second == 0) & (third >= 0))))]
    length = np.linalg.norm(n @ np.linalg.inv(cell).T, axis=1)
    order = np.argsort(length, kind="stable")
    return n[order[length[order] <= longest]]


_MOST_TRIED = 1 << 24
"""Wave vectors that may be looked at; each takes some hundred bytes. A cell with a million atoms has half of that."""
