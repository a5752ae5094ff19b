"""Images in reach, waves of a lattice, artificial cell vectors and distant pieces.

All of this is decided on the host, before the device computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from molflt.errors import InputError


class Structure(NamedTuple):
    """Positions and cell of a structure on the host.

    Attributes:
        positions: (n, 3) Å.
        cell: (3, 3) Å, rows are lattice vectors.
        pbc: (3,) bool, which of them are periodic.
    """

    positions: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray


Needs = tuple[float, float, float]
"""Needs of a basis function of f on a mesh: the width of the Gaussian that needs the same grid, Å; the cutoff of its
waves, 1/Å; the length by which artificial cell vectors exceed a structure, Å."""


def covering_needs(members: Sequence[Needs]) -> Needs:
    """Return the joint needs of some basis functions."""
    widths, longest, paddings = zip(*members, strict=True)
    return min(widths), max(longest), max(paddings)


def images(structure: Structure, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pairs nearer than ``reach`` Å, images included.

    These are receivers and senders, (n_pairs,), and translations of the senders, (n_pairs, 3).
    """
    positions, cell, pbc = structure
    n, rows = len(positions), np.flatnonzero(pbc)
    i, j = (index.ravel() for index in np.indices((n, n)))
    lattice = cell[rows]
    dual = np.linalg.pinv(lattice)
    delta = positions[i] - positions[j]
    nearest = np.round(delta @ dual)
    delta -= nearest @ lattice
    # Only separations within the span of the lattice count: perpendicular to it all images are equally far.
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
"""Pairs and images whose distances are computed together."""


def expected_images(structure: Structure, radius: float) -> float:
    """Estimate by volume the lattice translations in a ball of ``radius`` Å; at least one."""
    lattice = structure.cell[structure.pbc]
    measure = math.sqrt(abs(np.linalg.det(lattice @ lattice.T))) if len(lattice) else 1.0
    return max(1.0, (1.0, 2 * radius, math.pi * radius**2, 4 / 3 * math.pi * radius**3)[len(lattice)] / measure)


def open_directions(structure: Structure) -> np.ndarray:
    """Return orthogonal unit vectors (3, 3) of the axes that do not repeat; zero for the rest.

    They are orthogonal to the periodic axes, too: for a slab the normal; else the principal axes of
    Σ (r − r̄)(r − r̄)ᵀ, longest first, perpendicular to the periodic axis if there is one. They point where the third
    moment is positive, and so rotate with the structure. Where two axes are equally long, or a structure is its own
    mirror image, they are not unique.
    """
    positions, cell, pbc = structure
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
        # The periodic axis comes last, its eigenvalue far below the others.
        tensor = centred.T @ centred
        _, axes = np.linalg.eigh(tensor - (1 + np.trace(tensor)) * np.outer(axis, axis))
        rows = axes.T[:0:-1]
    else:
        rows = np.linalg.eigh(centred.T @ centred)[1].T[::-1]
    sense = ((centred @ rows.T) ** 3).sum(axis=0)
    found[~pbc] = np.where(sense < 0, -1.0, 1.0)[:, None] * rows
    return found


def padded_cell(structure: Structure, directions: np.ndarray, padding: float) -> np.ndarray:
    """Return the cell (3, 3) Å with artificial vectors so long that their images vanish."""
    positions, cell, pbc = structure
    if pbc.all():
        return cell
    box = np.where(pbc[:, None], cell, 0.0)
    heights = (positions - positions.mean(axis=0)) @ directions.T
    for axis in np.flatnonzero(~pbc):
        box[axis] = (_bound(heights[:, axis]) + _bound(-heights[:, axis]) + padding) * directions[axis]
    return box


def _bound(lengths: np.ndarray) -> float:
    """Return slightly more than ``smooth_max`` on the device."""
    largest = float(lengths.max())
    return largest + math.log(float(np.exp(4.0 * (lengths - largest)).sum())) / 4.0 + 1e-9


def half_lattice(cell: np.ndarray, longest: float) -> np.ndarray:
    """(K, 3) integers n with |n·A⁻ᵀ| ≤ longest: zero, then one of each pair ±n.

    Raises:
        InputError: they would not fit into the memory of a typical machine.
    """
    reach = np.floor(longest * np.sqrt((cell * cell).sum(axis=1)) + 1e-9).astype(int)
    if (n_tried := float(np.prod(2.0 * reach + 1))) > _MOST_TRIED:
        raise InputError(
            f"a cell of {abs(np.linalg.det(cell)):.3g} Å³ has about {n_tried:.1e} lattice waves; use "
            "frequencies=auto, or look for atoms that are far from all others"
        )
    first, second, third = reach.tolist()
    a, b, c = np.linalg.inv(cell)[:, :, None].transpose(1, 0, 2)
    a, b, c = a * np.arange(first + 1), b * np.arange(-second, second + 1), c * np.arange(-third, third + 1)
    # One coordinate of all waves at a time takes the least memory.
    squares: np.ndarray | float = 0.0
    for x, y, z in zip(a, b, c, strict=True):
        wave = (x[:, None] + y)[..., None] + z
        wave *= wave
        squares = squares + wave
    found = np.asarray(squares <= longest**2)
    found[0, :second] = False
    found[0, second, :third] = False
    return np.argwhere(found) - [0, second, third]


_MOST_TRIED = 1 << 24
"""Most wave vectors that are tried; each takes some hundred bytes. A cell with a million atoms has half as many."""


def longest_wave(cell: np.ndarray) -> float:
    """1/|ξ| of the shortest vector of the reciprocal lattice of ``cell`` (3, 3) Å."""
    few = np.arange(-3, 4)
    xi = np.stack(np.meshgrid(few, few, few, indexing="ij"), axis=-1).reshape(-1, 3) @ np.linalg.inv(cell).T
    length = np.linalg.norm(xi, axis=1)
    return float(1 / length[length > 0].min())


def far_apart(structure: Structure, distance: float) -> list[np.ndarray]:
    """Split a structure into pieces farther apart than ``distance`` Å.

    Each piece is the indices of its atoms. Structures with a periodic axis are one piece.
    """
    positions = structure.positions - structure.positions.mean(axis=0)
    everything = np.arange(len(positions))
    if structure.pbc.any() or np.ptp(positions, axis=0).max() <= distance:
        return [everything]
    tiles, tile = np.unique((positions // distance).astype(np.int64), axis=0, return_inverse=True)
    # Tiles that touch, even at a corner, belong to one piece.
    touching = cKDTree(tiles).query_pairs(1.5, p=np.inf, output_type="ndarray")
    # With indices of 64 bits SciPy 1.11 prints an error and finds no piece at all.
    touching = touching.astype(np.int32)
    graph = coo_array((np.ones(len(touching)), touching.T), shape=(len(tiles), len(tiles)))
    n_pieces, piece = connected_components(graph, directed=False)
    of_atom = piece[tile.ravel()]
    return [everything[of_atom == k] for k in range(n_pieces)]
