"""Placement of a particle mesh: planes, waves and order of atoms, decided on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from molflt.attention.far.images import Needs, Structure, covering_needs, open_directions, padded_cell
from molflt.attention.places import Movable
from molflt.errors import InputError

NODES = 6
"""Grid points per axis that an atom is spread over. With more the grid can be coarser, but spreading grows with their
cube; with this number spreading and waves cost about the same."""

COARSEST = 1.05
"""Largest spacing of a held grid, relative to the one that its tolerance asks for, before a new grid is made. The
error grows with the seventh power of the spacing and stays below the stated ε, of which it uses two thirds."""
LARGEST = 2.0
"""Most grid points of a held grid, relative to one along the present axes, when its structure has rotated or an atom
has left it, before a new grid is made."""


@dataclass(frozen=True)
class Grid:
    """Placement of a grid, which is not differentiated and is kept while its atoms move.

    Attributes:
        n_atoms: number of atoms; each piece of a structure has its own grid.
        directions: (3, 3) unit vectors along which they do not repeat, zero for axes along which they do.
        n_periodic: (3,) planes along each vector along which they repeat, zero for the others.
        spacing: Å between planes in the other directions.
    """

    n_atoms: int
    directions: np.ndarray
    n_periodic: np.ndarray
    spacing: float

    def inverse(self, cell: np.ndarray) -> np.ndarray:
        """Return the matrix (3, 3) that converts positions to units of the grid."""
        periodic = self.n_periodic[:, None]
        steps = np.where(periodic > 0, cell / np.maximum(periodic, 1), self.spacing * self.directions)
        return np.asarray(np.linalg.inv(steps))

    def planes(self, structure: Structure, way: float) -> list[np.ndarray]:
        """Return the ascending planes per axis that atoms may reach within ``way`` Å."""
        found, inverse = [], self.inverse(structure.cell)
        for along, n in zip(inverse.T, self.n_periodic, strict=True):
            far = way * np.linalg.norm(along)
            first = np.unique(np.floor(structure.positions @ along - far).astype(np.int64))
            some = np.unique(first[:, None] + np.arange(1 - NODES, math.ceil(2 * far) + 1))
            found.append(np.unique(some % n) if n else some)
        return found


@dataclass(frozen=True)
class Octave(Movable):
    """Basis functions of f that share their waves.

    In open directions the widest one sets the distance between images, and so the spacing of the waves, and the
    finest one their number. With a band for every octave, each has what it needs and little more.

    Attributes:
        chosen: (n_members,) their indices; None: all.
        longest: cutoff of their waves, 1/Å.
        n_waves: K along each axis, up to the end of all transforms, or what the grid can hold.
    """

    chosen: Tensor | None
    longest: float
    n_waves: tuple[int, int, int]


@dataclass(frozen=True)
class OnGrid(Movable):
    """Atoms on a grid.

    Axes are those of the cell; k are the wave numbers of all octaves, axis after axis.

    Attributes:
        grid: its placement.
        atoms: (n,) their indices in the structure, in order of place: neighbours in space read the same grid points,
            which are then still in a processor's cache.
        octaves: the basis of f.
        is_orthogonal: whether the vectors of the waves' cells are orthogonal.
        n_planes: along each axis, the number of planes that atoms are spread over.
        directions: see :class:`Grid`.
        turns: (3,) phase of the first wave between planes, in turns, where structures repeat; zero elsewhere.
        paddings: (n_octaves, 1) Å.
        nodes: (3, NODES) offsets subtracted from the floor of a coordinate to number the nodes of an atom.
        periods: (3, 1) planes after which numbers repeat; more than there are where they do not.
        starts: (3, 1) where the axes start in ``table``.
        table: (3 · width,) int32, the contribution of every plane to the index of a grid point.
        waves: (n_k, 3 · n_octaves) k in the column of its axis and octave, zero in the others.
        multiplicity: (n_k,) 1 for k = 0, else 2: for −k.
        planes: (n_k, most planes) the planes of its axis.
    """

    grid: Grid
    atoms: Tensor
    octaves: tuple[Octave, ...]
    is_orthogonal: bool
    n_planes: tuple[int, int, int]
    directions: Tensor
    turns: Tensor
    paddings: Tensor
    nodes: Tensor
    periods: Tensor
    starts: Tensor
    table: Tensor
    waves: Tensor
    multiplicity: Tensor
    planes: Tensor


def on_grid(
    structure: Structure,
    atoms: np.ndarray,
    spacing: float,
    members: Sequence[Needs],
    held: Sequence[Grid],
    way: float,
) -> OnGrid:
    """Place some atoms of a structure on a grid.

    Args:
        structure: that contains them.
        atoms: (n,) their indices.
        spacing: Å between planes.
        members: the needs of the basis of f.
        held: grids of the structure that are kept if they fit.
        way: Å that atoms may move relative to their mean.

    Raises:
        InputError: the grid would not fit into the memory of a typical machine.
    """
    cell, pbc, n = structure.cell, structure.pbc, len(atoms)
    some = structure.positions[atoms]
    own = Structure(some - some.mean(axis=0), cell, pbc)
    counts = np.maximum(NODES, np.ceil(np.linalg.norm(cell, axis=1) / spacing)).astype(np.int64)
    grid = Grid(n, open_directions(own), np.where(pbc, counts, 0), spacing)
    planes = grid.planes(own, way)
    for other in held:
        if other.n_atoms == n and other.spacing <= spacing and (other.n_periodic * COARSEST >= grid.n_periodic).all():
            theirs = other.planes(own, way)
            if math.prod(map(len, theirs)) <= LARGEST * math.prod(map(len, planes)):
                grid, planes = other, theirs
    cubes = (own.positions @ grid.inverse(cell) // _CUBE).astype(np.int64)
    order = np.lexsort(cubes.T[::-1])
    repeats, octaves, paddings, is_orthogonal = grid.n_periodic > 0, [], [], True
    x, y, z = map(len, planes)
    for chosen in [range(len(members))] if repeats.all() else _octaves(members):
        _, longest, padding = covering_needs([members[t] for t in chosen])
        box = padded_cell(own, grid.directions, padding)
        is_orthogonal &= _is_orthogonal(np.linalg.inv(box))
        n_waves = _n_waves(grid, np.linalg.norm(box, axis=1), longest, way)
        u, v, w = (2 * k + 2 for k in n_waves)
        if max(x * y * z, u * y * z, u * v * z, u * v * w) > MOST_POINTS:
            raise InputError(
                f"a structure of {grid.n_atoms:,} atoms needs a mesh of more than {MOST_POINTS:,} points; look for "
                "atoms that are far from all others"
            )
        octaves.append(Octave(None if repeats.all() else torch.tensor(chosen), longest, n_waves))
        paddings.append([padding])
    lowest = [0 if n else int(some[0]) for n, some in zip(grid.n_periodic, planes, strict=True)]
    width = 1 + max(int(some[-1]) - low for some, low in zip(planes, lowest, strict=True))
    table = np.zeros((3, width), dtype=np.int32)
    for axis, (some, stride) in enumerate(zip(planes, (y * z, z, 1), strict=True)):
        table[axis, some - lowest[axis]] = np.arange(len(some)) * stride
    numbers = [np.arange(octave.n_waves[axis] + 1.0) for axis in range(3) for octave in octaves]
    waves = block_diag(*[k[:, None] for k in numbers])
    of_waves = np.zeros((len(waves), max(x, y, z)))
    axes = np.repeat(np.arange(len(numbers)) // len(octaves), [len(k) for k in numbers])
    for axis, some in enumerate(planes):
        of_waves[axes == axis, : len(some)] = some
    arrays = {
        "atoms": atoms[order],
        "directions": grid.directions,
        "turns": np.where(repeats, 1 / np.maximum(grid.n_periodic, 1), 0.0),
        "paddings": np.array(paddings),
        "nodes": np.array(lowest)[:, None] + np.arange(float(NODES)),
        "periods": np.where(repeats, grid.n_periodic, 1 << 40)[:, None].astype(np.float64),
        "starts": width * np.arange(3.0)[:, None],
        "table": table.ravel(),
        "waves": waves,
        "multiplicity": np.where(waves.any(axis=1), 2.0, 1.0),
        "planes": of_waves,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return OnGrid(grid, octaves=tuple(octaves), is_orthogonal=is_orthogonal, n_planes=(x, y, z), **tensors)


def _octaves(members: Sequence[Needs]) -> list[list[int]]:
    """Group the indices of basis functions by octave of width."""
    widths = np.array([width for width, _, _ in members])
    octave = np.floor(np.log2(widths / widths.min()))
    return [np.flatnonzero(octave == k).tolist() for k in np.unique(octave)]


def _n_waves(grid: Grid, lengths: np.ndarray, longest: float, way: float) -> tuple[int, int, int]:
    """K along each axis of a cell; artificial vectors may become longer or shorter by ``way`` Å."""
    found = []
    for length, n in zip(lengths, grid.n_periodic, strict=True):
        planes = n or (length - way) / grid.spacing
        # Every wave advances by less than half a turn between planes.
        found.append(min(int(longest * (length if n else length + way)), math.ceil(planes / 2) - 1))
    return found[0], found[1], found[2]


def _is_orthogonal(columns: np.ndarray) -> bool:
    gram = columns.T @ columns
    return bool(np.abs(gram - np.diag(gram.diagonal())).max() <= 1e-12 * np.abs(gram).max())


MOST_POINTS = 1 << 26
"""Grid points or waves of the largest mesh."""

_CUBE = 4
"""The edge of the cubes by which atoms are ordered, in grid spacings."""
