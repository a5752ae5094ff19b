"""Choice of how a structure's far field is summed: on pairs, over waves, or on a mesh.

    pairs   open structures of up to 2,000 atoms; those that repeat along one axis with few images in reach; cells in
            which an atom has fewer others and images in reach than there are waves
    waves   other cells, unless there are many atoms and waves
    mesh    the rest, but never for 200 atoms or fewer

Only the structure and the plan count: batch-mates must not change a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from molflt.attention.far.images import (
    Needs,
    Structure,
    covering_needs,
    expected_images,
    far_apart,
    half_lattice,
    images,
    longest_wave,
    open_directions,
    padded_cell,
)
from molflt.attention.places import Movable, place_rows, select_rows
from molflt.errors import InputError

if TYPE_CHECKING:
    from molflt.attention.far.grid import Grid, OnGrid

Way = Literal["pairs", "waves", "mesh"]
WAYS: tuple[Way, ...] = ("pairs", "waves", "mesh")

MESH_FROM = 200
"""Structures of up to this many atoms never use a mesh, so that they stay invariant to rounding, not to ε."""
MOST_PAIRS, MOST_IMAGES = 4_000_000, 400_000
"""Most pairs of atoms for a sum on pairs in an open structure, and of atoms and images in one that repeats."""
MOST_WAVES = 700_000
"""Most atoms times waves for a sum over waves in a structure that repeats."""
MARGIN = 1.05
"""Factor by which a plan exceeds the present needs of the basis of f, so that it lasts while widths are learnt."""


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
    """Structures of a batch whose far field is computed together; on a mesh, one.

    Attributes:
        way: of the sum.
        structures, index: their indices in the batch, and these as (n_structures,) int64.
        sizes: number of atoms of each.
        n_max: places for the atoms of each, as many as the largest has.
        there: (n_structures, n_max) bool, which of them hold an atom.
        images: pairs of atoms and images within reach, where structures repeat.
        integers: (n_structures, n_waves, 3) coefficients of the reciprocal vectors, zero first; float64.
        multiplicity: of waves, (n_structures, n_waves), 0 for padding.
        directions: (n_structures, 3, 3) unit vectors along which structures do not repeat, zero for those along
            which they do; None where all repeat along all.
        pieces: parts of a structure on a mesh that do not interact.
        rungs: of the ladder for 1/r, (n_structures, n_rungs) float64, 0 for those that a structure does not use.
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
    pieces: tuple[OnGrid, ...] = ()
    rungs: Tensor | None = None


@dataclass(frozen=True)
class Groups(Movable):
    """The structures of a batch, group after group, padded.

    Attributes:
        groups: every structure is in one.
        slot: (n_atoms,) the place of each atom of the batch among those of all groups, one group after another.
        is_batch: whether the batch is a single group without empty places.
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
    """Add the places of atoms to groups; ``starts``: (n_structures + 1,) first atom of each."""
    slot, first = np.empty(starts[-1], dtype=np.int64), 0
    for group in groups:
        for b, size in zip(group.structures, group.sizes, strict=True):
            slot[starts[b] : starts[b + 1]] = first + np.arange(size)
            first += group.n_max
    is_batch = len(groups) == 1 and first == len(slot) and np.array_equal(slot, np.arange(first))
    return Groups(groups, torch.from_numpy(slot), is_batch)


Held = tuple[Way, "tuple[Grid, ...]"]
"""Way of one structure, and the grids of its pieces."""


def held_of(groups: Sequence[Group]) -> tuple[Held, ...]:
    """Return the ways and grids of the structures of a batch, for a plan to keep."""
    held: dict[int, Held] = {}
    for group in groups:
        held |= dict.fromkeys(group.structures, (group.way, tuple(piece.grid for piece in group.pieces)))
    return tuple(held[b] for b in sorted(held))


@dataclass(frozen=True)
class FarPlan:
    """Needs of a model's far field, as plain numbers.

    Attributes:
        way: forced for all structures; None: chosen by the rule.
        longest: cutoff of the waves, 1/Å; zero: no waves.
        reach: Å, beyond which every basis function vanishes.
        padding: Å by which artificial cell vectors are longer than a structure.
        dense: whether layers need f̂ as a matrix, which a mesh does not give.
        spacing: Å between the planes of a mesh.
        members: needs of the basis of f on a mesh.
        held: of each structure, the way and grids kept from earlier layouts.
    """

    way: Way | None
    longest: float
    reach: float
    padding: float
    dense: bool = False
    spacing: float = math.inf
    members: tuple[Needs, ...] = ()
    held: tuple[Held, ...] = ()

    @staticmethod
    def covering(plans: Sequence[FarPlan]) -> FarPlan:
        """Return the plan that covers all of the given ones."""
        most = max(len(plan.members) for plan in plans)
        members = (covering_needs([p.members[t] for p in plans if t < len(p.members)]) for t in range(most))
        return replace(
            plans[0],
            longest=max(plan.longest for plan in plans),
            reach=max(plan.reach for plan in plans),
            padding=max(plan.padding for plan in plans),
            spacing=min(plan.spacing for plan in plans),
            members=tuple(members),
        )

    def groups(self, structures: Sequence[Structure], skin: float = 0.0) -> tuple[Group, ...]:
        """Group the structures of a batch by way, valid while atoms move up to ``skin`` Å."""
        # Sums over images are kept apart from those over pairs alone.
        kinds = [
            (self.held[b][0] if self.held else self.way_of(one), bool(one.pbc.any()))
            for b, one in enumerate(structures)
        ]
        found = []
        for way, repeats in sorted(set(kinds), key=lambda kind: (WAYS.index(kind[0]), kind[1])):
            mine = [b for b, kind in enumerate(kinds) if kind == (way, repeats)]
            sizes = [len(structures[b].positions) for b in mine]
            others = sizes if way == "pairs" else [abs(np.linalg.det(structures[b].cell)) for b in mine]
            for alike in [[k] for k in range(len(mine))] if way == "mesh" else similar(sizes, others):
                chosen = tuple(mine[k] for k in alike)
                some = [structures[b] for b in chosen]
                fields: dict[str, Any] = {}
                if way == "mesh":
                    from molflt.attention.far.grid import on_grid

                    held = self.held[chosen[0]][1] if self.held else ()
                    on = self.spacing, self.members, held, 2 * skin
                    fields["pieces"] = tuple(on_grid(some[0], atoms, *on) for atoms in far_apart(some[0], self.reach))
                elif way == "waves":
                    fields = self._waves(some)
                elif repeats:
                    fields["images"] = self._images(some)
                atoms = tuple(sizes[k] for k in alike)
                there = torch.arange(max(atoms)) < torch.tensor(atoms)[:, None]
                found.append(Group(way, chosen, torch.tensor(chosen), atoms, max(atoms), there, **fields))
        return tuple(found)

    def way_of(self, structure: Structure) -> Way:
        """Return the way of one structure."""
        if self.way is not None:
            return self.way
        n, n_axes = len(structure.positions), int(structure.pbc.sum())
        n_images = expected_images(structure, self.reach)
        if n_axes < 2:
            few = n * n * n_images <= (MOST_IMAGES if n_axes else MOST_PAIRS)
            return "pairs" if n <= MESH_FROM or few or self.dense else "mesh"
        box = padded_cell(structure, open_directions(structure), self.padding)
        n_waves = 1 + 2 / 3 * math.pi * self.longest**3 * abs(np.linalg.det(box))
        if n * n_images < n_waves:
            return "pairs" if n <= MESH_FROM or self.dense else "mesh"
        return "waves" if n <= MESH_FROM or n * n_waves <= MOST_WAVES or self.dense else "mesh"

    def _images(self, structures: Sequence[Structure]) -> Images:
        width = max(len(one.positions) for one in structures)
        found = [images(one, self.reach) for one in structures]
        receiver, sender = (
            np.concatenate([k * width + pairs[side] for k, pairs in enumerate(found)]).astype(np.int32)
            for side in (0, 1)
        )
        offsets = np.concatenate([pairs[2] for pairs in found]).astype(np.int16)
        return Images(*map(torch.from_numpy, (receiver, sender, offsets)))

    def _waves(self, structures: Sequence[Structure]) -> dict[str, Any]:
        directions = np.array([open_directions(one) for one in structures])
        boxes = [padded_cell(one, across, self.padding) for one, across in zip(structures, directions, strict=True)]
        integers, exists = _filled([half_lattice(box, self.longest) for box in boxes])
        multiplicity = 2 * exists
        multiplicity[:, 0] = 1.0
        across = torch.from_numpy(directions) if directions.any() else None
        return {"integers": integers, "multiplicity": multiplicity, "directions": across}


@dataclass(frozen=True)
class LadderPlan:
    """Plan of the sum over the ladder for 1/r (``coulomb.py``), in crystals never on pairs.

    Attributes:
        finest: Å, the width of the finest rung; each is √2 times as wide as the one before.
        longest: cutoff of the waves, 1/Å.
        spacing: Å between the planes of a mesh.
        padding: of artificial cell vectors, in widths of a rung.
        way: forced for all structures; None: chosen by the rule.
        held: of each structure, the way and grids kept from earlier layouts.
    """

    finest: float
    longest: float
    spacing: float
    padding: float
    way: Way | None = None
    held: tuple[Held, ...] = ()

    def groups(self, structures: Sequence[Structure], skin: float = 0.0) -> tuple[Group, ...]:
        """See :meth:`FarPlan.groups`.

        Raises:
            InputError: a structure repeats along one or two axes only.
        """
        some = [n for one in structures if 0 < (n := int(one.pbc.sum())) < 3]
        if some:
            raise InputError(
                f"a structure that is periodic along {some[0]} of three axes, and a model with charges, whose 1/r "
                "has no sum there; make it periodic along all three, with vacuum where it does not repeat"
            )
        counts = [self._n_rungs(one) for one in structures]
        times = [2 ** (t / 2) for t in range(max(counts))]
        members = tuple((self.finest * x, self.longest / x, self.padding * self.finest * x) for x in times)
        # The sum over images has no finite reach.
        plan = FarPlan(self.way, self.longest, math.inf, 0.0, False, self.spacing, members, self.held)
        found = []
        for group in plan.groups(structures, skin):
            of_group = np.array([counts[b] for b in group.structures])
            rungs = np.arange(of_group.max()) < of_group[:, None]
            found.append(replace(group, rungs=torch.from_numpy(rungs.astype(np.float64))))
        return tuple(found)

    def _n_rungs(self, structure: Structure) -> int:
        if structure.pbc.any():
            return n_rungs(_NOTHING_BUT_MEAN * longest_wave(structure.cell) / self.finest)
        return n_rungs(DIAMETERS * float(np.linalg.norm(np.ptp(structure.positions, axis=0))) / self.finest)


def n_rungs(widest: float) -> int:
    """Return the number of rungs up to one ``widest`` times as wide as the finest."""
    return 1 + math.ceil(2 * math.log2(max(widest, 2.0)))


DIAMETERS = 16
"""Width of the widest rung that an open structure sums, in its diameters."""
_NOTHING_BUT_MEAN = 1.4
"""exp(−2π²x²) is 1e-17: the transform, at the longest wave of a lattice, of a Gaussian x times as wide."""


def similar(sizes: Sequence[int], others: Sequence[float]) -> list[list[int]]:
    """Divide structures into one group, or into two if these need much less padding.

    Args:
        sizes: of structures.
        others: factors of the sizes: the sizes again, or volumes, to which the numbers of waves are proportional.
    """
    table = np.array([sizes, others], dtype=np.float64)
    order = np.argsort(table.prod(axis=0), kind="stable")
    counts = np.arange(1, len(order) + 1)
    # Costs of the first k, and of the last k.
    low, high = (np.maximum.accumulate(table[:, o], axis=1).prod(axis=0) * counts for o in (order, order[::-1]))
    apart = low[:-1] + high[-2::-1] if len(order) > 1 else np.zeros(0)
    if len(apart) and apart.min() < WORTH_A_GROUP * high[-1]:
        cut = 1 + int(np.argmin(apart))
        return [sorted(order[:cut].tolist()), sorted(order[cut:].tolist())]
    return [sorted(order.tolist())]


WORTH_A_GROUP = 0.75
"""Share of the padded pairs, or atoms times waves, below which two groups are better than one."""


def _filled(rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Pad rows (n_b, 3) with zeros to (n_structures, n, 3), and return a mask of the rows."""
    integers = np.zeros((len(rows), max(map(len, rows)), 3))
    exists = np.zeros(integers.shape[:2])
    for k, some in enumerate(rows):
        integers[k, : len(some)] = some
        exists[k, : len(some)] = 1.0
    return torch.from_numpy(integers), torch.from_numpy(exists)
