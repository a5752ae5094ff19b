"""Where the grid of a particle mesh lies: planes, waves and the order of atoms, decided on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from molflt.attention.far.images import open_directions, padded_cell
from molflt.attention.places import Movable
from molflt.errors import InputError

NODES = 6
"""Grid points per axis that an atom is spread over. With more the grid can be coarser, but spreading grows with their
cube; with this number spreading and waves cost about the same."""

COARSEST = 1.05
"""How much wider than its tolerance asks for the spacing of a held grid may become before a new one is taken: its
error falls with the seventh power of the spacing, and stays below the stated ε, of which it uses two thirds."""
LARGEST = 2.0
"""How many times the grid points of one along the present axes a held grid may need, when its structure has turned or
an atom has left it, before a new one is taken."""


@dataclass(frozen=True)
class MeshMember:
    """What one member of f needs of a mesh.

    Attributes:
        width: Å, of the Gaussian that needs the same grid.
        longest: 1/Å, up to which it has waves.
        padding: Å by which artificial cell vectors are longer than a structure.
    """

    width: float
    longest: float
    padding: float

    @staticmethod
    def covering(members: Sequence[MeshMember]) -> MeshMember:
        """One that needs as much as any of some."""
        return MeshMember(
            min(m.width for m in members), max(m.longest for m in members), max(m.padding for m in members)
        )


@dataclass(frozen=True)
class Grid:
    """Where a grid lies. It is chosen and not differentiated, and kept while its atoms move.

    Attributes:
        n_atoms: how many there are; of a structure in pieces each has a grid of its own.
        directions: (3, 3) unit vectors along which they do not repeat, zero for axes along which they do.
        n_periodic: (3,) planes along each vector along which they repeat, zero for the others.
        spacing: Å between planes in the other directions.
    """

    n_atoms: int
    directions: np.ndarray
    n_periodic: np.ndarray
    spacing: float

    def points(self, positions: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions in units of the spacing, (n, 3), and how many units an ångström may be along each axis, (3,)."""
        periodic = self.n_periodic[:, None]
        steps = np.where(periodic > 0, cell / np.maximum(periodic, 1), self.spacing * self.directions)
        inverse = np.linalg.inv(steps)
        return positions @ inverse, np.linalg.norm(inverse, axis=0)

    def planes(self, positions: np.ndarray, cell: np.ndarray, way: float) -> list[np.ndarray]:
        """Along each axis, the planes that atoms are spread over, also after a way of so many Å; ascending."""
        points, scale = self.points(positions, cell)
        found = []
        for along, far, n in zip(points.T, way * scale, self.n_periodic, strict=True):
            first = np.unique(np.floor(along - far).astype(np.int64))
            some = np.unique(first[:, None] + np.arange(1 - NODES, math.ceil(2 * far) + 1))
            found.append(np.unique(some % n) if n else some)
        return found


@dataclass(frozen=True)
class Octave(Movable):
    """Members of f that share their waves.

    In open directions the widest member decides how far apart images have to be, and so how close waves are, and the
    finest how many there are. With a band for every octave, each member has what it needs and not much more.

    Attributes:
        chosen: (n_members,) their indices; None: all there are.
        needs: what they need together.
        n_waves: K along each axis, up to the end of all transforms, or what the grid can hold.
    """

    chosen: Tensor | None
    needs: MeshMember
    n_waves: tuple[int, int, int]


@dataclass(frozen=True)
class OnGrid(Movable):
    """Atoms on a grid. Axes are those of the cell; k are the wave numbers of all octaves, axis after axis.

    Attributes:
        grid: where it lies.
        octaves: the members of f.
        is_orthogonal: whether the vectors of the waves' cells are.
        n_planes: along each axis, how many planes atoms are spread over.
        directions: see :class:`Grid`.
        turns: (3,) of the first wave from one plane to the next where structures repeat; zero elsewhere.
        paddings: (n_octaves, 1) Å.
        nodes: (3, NODES) what is taken off the floor of a coordinate for the number of every node of an atom.
        periods: (3, 1) planes after which numbers repeat; more than there are where they do not.
        starts: (3, 1) where the axes start in ``table``.
        table: (3 · width,) int32, the share in the index of a grid point of every plane.
        waves: (n_k, 3 · n_octaves) k in the column of its axis and octave, zero in the others.
        multiplicity: (n_k,) 1 for k = 0, else 2: for −k.
        planes: (n_k, most planes) the planes of its axis.
    """

    grid: Grid
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


@dataclass(frozen=True)
class Piece(Movable):
    """Atoms of a structure that do not feel those of its other pieces.

    Attributes:
        atoms: (n,) their indices. On a grid in order of place: neighbours in space read the same grid points, which
            are then still in a processor's cache.
        on_grid: where they lie; None for a few, which are summed on pairs.
    """

    atoms: Tensor
    on_grid: OnGrid | None


def piece_of(
    atoms: np.ndarray,
    positions: np.ndarray,
    cell: np.ndarray,
    pbc: np.ndarray,
    spacing: float,
    members: Sequence[MeshMember],
    held: Sequence[Grid],
    way: float,
) -> Piece:
    """Some atoms, (n,) indices, of a structure.

    Args:
        atoms: their indices in the structure.
        positions: (n, 3) Å, of these atoms.
        cell: (3, 3) Å.
        pbc: (3,) bool.
        spacing: Å between planes.
        members: of f.
        held: grids of the structure that are kept if they fit.
        way: Å that atoms may move, seen from their mean.

    Raises:
        InputError: the grid would not fit into the memory of a usual machine.
    """
    n, positions = len(atoms), positions - positions.mean(axis=0)
    counts = np.maximum(NODES, np.ceil(np.linalg.norm(cell, axis=1) / spacing)).astype(np.int64)
    grid = Grid(n, open_directions(positions, cell, pbc), np.where(pbc, counts, 0), spacing)
    planes = grid.planes(positions, cell, way)
    for other in held:
        if other.n_atoms == n and other.spacing <= spacing and (other.n_periodic * COARSEST >= grid.n_periodic).all():
            some = other.planes(positions, cell, way)
            if math.prod(map(len, some)) <= LARGEST * math.prod(map(len, planes)):
                grid, planes = other, some
    cubes = (grid.points(positions, cell)[0] // _CUBE).astype(np.int64)
    order = np.lexsort(cubes.T[::-1])
    return Piece(torch.from_numpy(atoms[order]), _on_grid(grid, planes, positions, cell, pbc, members, way))


def _on_grid(
    grid: Grid,
    planes: list[np.ndarray],
    positions: np.ndarray,
    cell: np.ndarray,
    pbc: np.ndarray,
    members: Sequence[MeshMember],
    way: float,
) -> OnGrid:
    n_planes, octaves, is_orthogonal = tuple(map(len, planes)), [], True
    for some in [range(len(members))] if pbc.all() else _octaves(members):
        needs = MeshMember.covering([members[t] for t in some])
        box = padded_cell(positions, cell, pbc, grid.directions, needs.padding)
        is_orthogonal &= _is_orthogonal(np.linalg.inv(box))
        n_waves = _n_waves(grid, np.linalg.norm(box, axis=1), needs.longest, way)
        (u, v, w), (x, y, z) = (2 * k + 2 for k in n_waves), n_planes
        if max(x * y * z, u * y * z, u * v * z, u * v * w) > MOST_POINTS:
            raise InputError(
                f"a structure of {len(positions):,} atoms needs a mesh of more than {MOST_POINTS:,} points; "
                "look for atoms that are far from all others"
            )
        octaves.append(Octave(None if pbc.all() else torch.tensor(some), needs, n_waves))
    lowest = [0 if repeats else int(some[0]) for repeats, some in zip(pbc, planes, strict=True)]
    width = 1 + max(int(some[-1]) - low for some, low in zip(planes, lowest, strict=True))
    table = np.zeros((3, width), dtype=np.int32)
    for axis, some in enumerate(planes):
        table[axis, some - lowest[axis]] = np.arange(len(some)) * math.prod(n_planes[axis + 1 :])
    numbers = [np.arange(octave.n_waves[axis] + 1.0) for axis in range(3) for octave in octaves]
    waves = np.zeros((sum(map(len, numbers)), len(numbers)))
    all_planes, first = np.zeros((len(waves), max(n_planes))), 0
    for column, k in enumerate(numbers):
        rows, some = slice(first, first + len(k)), planes[column // len(octaves)]
        waves[rows, column], all_planes[rows, : len(some)] = k, some
        first += len(k)
    arrays = {
        "directions": grid.directions,
        "turns": np.where(pbc, 1 / np.maximum(grid.n_periodic, 1), 0.0),
        "paddings": np.array([[octave.needs.padding] for octave in octaves]),
        "nodes": np.array(lowest)[:, None] + np.arange(float(NODES)),
        "periods": np.where(pbc, grid.n_periodic, 1 << 40)[:, None].astype(np.float64),
        "starts": width * np.arange(3.0)[:, None],
        "table": table.ravel(),
        "waves": waves,
        "multiplicity": np.where(waves.any(axis=1), 2.0, 1.0),
        "planes": all_planes,
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return OnGrid(grid, tuple(octaves), is_orthogonal, n_planes, **tensors)


def _octaves(members: Sequence[MeshMember]) -> list[list[int]]:
    """Indices of the members of each octave of widths."""
    widths = np.array([member.width for member in members])
    octave = np.floor(np.log2(widths / widths.min()))
    return [np.flatnonzero(octave == k).tolist() for k in np.unique(octave)]


def _n_waves(grid: Grid, lengths: np.ndarray, longest: float, way: float) -> tuple[int, int, int]:
    """K along each axis of a cell; artificial vectors may become longer or shorter by ``way`` Å."""
    found = []
    for length, n in zip(lengths, grid.n_periodic, strict=True):
        planes = n or (length - way) / grid.spacing
        # From plane to plane, every wave turns by less than a half.
        found.append(min(int(longest * (length if n else length + way)), math.ceil(planes / 2) - 1))
    return found[0], found[1], found[2]


def _is_orthogonal(columns: np.ndarray) -> bool:
    gram = columns.T @ columns
    return bool(np.abs(gram - np.diag(gram.diagonal())).max() <= 1e-12 * np.abs(gram).max())


def spacing_in_widths(tolerance: float) -> float:
    """The h/σ at which a grid of spacing h represents a Gaussian of width σ to ``tolerance``."""
    return _SPACING_AT_ONE * tolerance**_SPACING_POWER


_SPACING_AT_ONE, _SPACING_POWER = 1.62, 0.135
"""h/σ = 0.64 at ε = 1e-3, 0.47 at 1e-4, 0.34 at 1e-5: measured with a margin. Tests compare with the image sum."""

MOST_POINTS = 1 << 26
"""Grid points or waves of the largest mesh."""

FEW = 50
"""Atoms of a piece that is summed over pairs instead of on a mesh."""

_CUBE = 4
"""The edge of the cubes by which atoms are ordered, in grid spacings."""
