"""Periodic images: neighbour lists in the vocabulary's convention, and nearest images of atoms that have moved."""

from __future__ import annotations

import numpy as np
import torch
from ase.data import chemical_symbols
from ase.geometry import complete_cell, find_mic, minkowski_reduce
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data
from vesin import NeighborList

from molflt.data.extents import SHORTEST, check_extents, check_pairs, heights, open_directions, refuse_pairs
from molflt.errors import InputError

_MOST_CELLS = 50_000.0
"""Of the usual search's grid. Beyond twice that it merges cells, and divides by zero where one direction has few."""
_EXACT = "donot_use_mm_for_euclid_dist"
"""torch.cdist loses small distances where it multiplies matrices."""


def neighbour_list(
    positions: ArrayLike | Tensor, cell: ArrayLike | Tensor, pbc: ArrayLike | Tensor, cutoff: float
) -> tuple[Tensor, Tensor]:
    """Every ordered pair of atoms, images included, closer than a cutoff.

    An atom is not its own neighbour, but its periodic images are. Lattice vectors along directions that are not
    periodic play no part. The order is fixed: by receiver, sender, translation.

    Args:
        positions: (n_atoms, 3), Å, anywhere in space.
        cell: (3, 3) or (1, 3, 3), Å, lattice vectors as rows.
        pbc: (3,) or (1, 3), bool.
        cutoff: Å, positive.

    Returns:
        edge_index: (2, n_edges) int64; (i, j): atom j sends to atom i.
        cell_offsets: (n_edges, 3) int32; Δ_ij = r_i − r_j − cell_offsets @ cell.

    Raises:
        InputError: a number is not finite, two atoms coincide, the periodic lattice vectors are dependent, or the
            structure is none: see :mod:`molflt.data.extents`.
    """
    points = np.asarray(positions, dtype=np.float64).reshape(-1, 3)
    lattice = np.asarray(cell, dtype=np.float64).reshape(3, 3)
    periodic = np.asarray(pbc, dtype=bool).reshape(3)
    if not (np.isfinite(cutoff) and cutoff > 0):
        raise InputError(f"the cutoff must be a positive length in Å, not {cutoff}")
    if len(bad := np.flatnonzero(~np.isfinite(points).all(axis=1))):
        raise InputError(f"atom {bad[0]} has a position that is not finite: {points[bad[0]]}")
    if len(points) == 0:
        return torch.zeros((2, 0), dtype=torch.int64), torch.zeros((0, 3), dtype=torch.int32)
    pairs, shifts, distances = search(points, lattice, periodic, cutoff)
    if len(close := np.flatnonzero(distances < SHORTEST)):
        first = close[np.lexsort((pairs[close, 1], pairs[close, 0]))[0]]
        i, j = pairs[first]
        raise InputError(f"atoms {i} and {j} coincide (distance {distances[first]:.1e} Å); remove one of them")
    edge_index, shifts = pairs.T.astype(np.int64, order="C"), shifts.astype(np.int64)
    order = _order(edge_index, shifts, len(points))
    # There are many edges, and translations by small numbers.
    offsets = shifts.astype(np.int32).take(order, axis=0)
    return torch.from_numpy(edge_index.take(order, axis=1)), torch.from_numpy(offsets)


def near_pairs(data: Data, cutoff: float) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of :func:`neighbour_list` in any order, (n_pairs, 2), and their distances, (n_pairs,) Å.

    Raises:
        InputError: the structure is none: see :mod:`molflt.data.extents`.
    """
    pairs, _, distances = search(data.positions.numpy(), data.cell[0].numpy(), data.pbc[0].numpy(), cutoff)
    return pairs, distances


def search(
    points: np.ndarray, lattice: np.ndarray, periodic: np.ndarray, cutoff: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs (n_pairs, 2) closer than a cutoff, their shifts (n_pairs, 3) and distances (n_pairs,) Å, in any order.

    Shifts along directions that are not periodic mean nothing.

    Raises:
        InputError: the structure is none: see :mod:`molflt.data.extents`.
    """
    check_extents(points, lattice, periodic)
    # far from the origin, digits that the distances need would be lost
    points = points - points.mean(axis=0)
    box = _bounding_box(points, lattice, periodic, cutoff)
    check_pairs(points, box, periodic, cutoff)
    if np.prod(np.maximum(heights(box) / cutoff, 1.0)) > _MOST_CELLS:
        return _search_by_tree(points, box, cutoff)
    # one thread: DataLoader workers already use the cores
    search = NeighborList(cutoff=cutoff, full_list=True, n_threads=1)
    pairs, shifts, distances = search.compute(points, box, True, "PSd")
    # Unsigned, they do not fit into what counts them.
    return pairs.astype(np.int64), shifts, distances


def _search_by_tree(points: np.ndarray, box: np.ndarray, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the usual search finds, for a box that is nearly empty: no grid is laid through it.

    Args:
        points: (n_atoms, 3), Å.
        box: (3, 3), Å, periodic in all directions.
        cutoff: Å.

    Returns:
        Pairs i, j (n_pairs, 2); shifts (n_pairs, 3), by which the distance is |r_j − r_i + shift @ box|; distances.
    """
    fractions = points @ np.linalg.inv(box)
    base = np.floor(fractions)
    home = fractions - base
    reach = cutoff / heights(box)
    # all images that come within the cutoff of the cell, one direction after the other
    images, atoms, shifts = home, np.arange(len(points)), np.zeros((len(points), 3))
    for k in range(3):
        most = int(np.ceil(reach[k]))
        steps = np.arange(-most, most + 1.0)
        image, step = np.nonzero(np.abs(images[:, k, None] + steps - 0.5) <= 0.5 + reach[k])
        images, atoms, shifts = images[image], atoms[image], shifts[image]
        images[:, k] += steps[step]
        shifts[:, k] += steps[step]
    found = cKDTree(home @ box).sparse_distance_matrix(cKDTree(images @ box), cutoff, output_type="ndarray")
    i, image = found["i"], found["j"]
    j = atoms[image]
    other = (i != j) | shifts[image].any(axis=1)
    i, j, image = i[other], j[other], image[other]
    return np.column_stack([i, j]), shifts[image] + base[i] - base[j], found["v"][other]


def _order(edge_index: np.ndarray, shifts: np.ndarray, n_atoms: int) -> np.ndarray:
    """(n_edges,) int64: the order of edges (2, n_edges) by receiver, sender and translation (n_edges, 3)."""
    reach = int(np.abs(shifts).max(initial=0))
    width = 2 * reach + 1
    i, j, a, b, c = *edge_index, *shifts.T
    if n_atoms**2 * width**3 >= 1 << 62:
        return np.lexsort((c, b, a, j, i))
    # one number an edge is sorted far faster than five; no two are the same, so any sort gives the same order
    numbers = i * n_atoms + j
    for shift in (a, b, c):
        numbers = numbers * width + (shift + reach)
    return np.argsort(numbers)


def attach_neighbours(data: Data, cutoff: float, all_pairs_if_isolated: bool = False) -> Data:
    """Set ``edge_index`` and ``cell_offsets`` on a structure.

    Args:
        data: a structure under the vocabulary; changed in place.
        cutoff: Å.
        all_pairs_if_isolated: connect every ordered pair of different atoms, whatever their distance, when no
            direction is periodic.

    Returns:
        The same structure.

    Raises:
        InputError: as ``neighbour_list``, with the structure's name and the elements.
    """
    try:
        if all_pairs_if_isolated and not bool(data.pbc.any()):
            edge_index = _all_pairs(data.positions)
            offsets = torch.zeros((edge_index.shape[1], 3), dtype=torch.int32)
        else:
            edge_index, offsets = neighbour_list(data.positions, data.cell, data.pbc, cutoff)
    except InputError as error:
        raise _of_structure(data, error) from error
    data.edge_index, data.cell_offsets = edge_index, offsets
    return data


def _of_structure(data: Data, error: InputError) -> InputError:
    elements = ", ".join(sorted({chemical_symbols[z] for z in data.atomic_numbers.tolist()}))
    return InputError(f"{data.get('name', 'structure')} ({elements}): {error}")


def _all_pairs(positions: Tensor) -> Tensor:
    if not bool(torch.isfinite(positions).all()):
        raise InputError("an atom has a position that is not finite")
    refuse_pairs(len(positions), len(positions) ** 2, float("inf"))
    close = torch.triu(torch.cdist(positions, positions, compute_mode=_EXACT) < SHORTEST, diagonal=1)
    if len(pairs := close.nonzero()):
        raise InputError(f"atoms {int(pairs[0, 0])} and {int(pairs[0, 1])} coincide; remove one of them")
    return (~torch.eye(len(positions), dtype=torch.bool)).nonzero().T.contiguous()


def _bounding_box(points: np.ndarray, lattice: np.ndarray, periodic: np.ndarray, cutoff: float) -> np.ndarray:
    """A box, periodic in all directions, with the neighbours of the given one.

    Along a direction that is not periodic the lattice vector (perhaps zero, perhaps shorter than the
    structure) is replaced by one at right angles to the periodic vectors, and long enough that no image of
    an atom along it comes within the cutoff. One search then serves every kind of boundary.
    """
    normals = open_directions(lattice, periodic)
    box = lattice.copy()
    if not periodic.all():
        extents = np.ptp(points @ normals.T, axis=0)
        box[~periodic] = normals * (extents + cutoff + 1.0)[:, None]
    return box


def nearest_image(
    positions: np.ndarray, moved: np.ndarray, cell: np.ndarray, pbc: np.ndarray, where: str
) -> np.ndarray:
    """The periodic image of ``moved`` nearest to ``positions``, atom by atom.

    Args:
        positions: (n_atoms, 3), Å.
        moved: (n_atoms, 3), Å.
        cell: (3, 3), Å, lattice vectors as rows.
        pbc: (3,), bool.
        where: file and record, for messages.

    Returns:
        (n_atoms, 3), Å: ``positions`` plus the minimum-image displacement, exact for skewed cells.

    Raises:
        InputError: a number is not finite, the periodic lattice vectors are zero or dependent, or the structure is
            none: see :mod:`molflt.data.extents`.
    """
    if not (np.isfinite(positions).all() and np.isfinite(moved).all() and np.isfinite(cell).all()):
        raise InputError(f"{where}: positions or cell hold NaN or infinity; correct or remove the record")
    try:
        check_extents(positions, cell, pbc)
        check_extents(moved, np.zeros((3, 3)), np.zeros(3, dtype=bool))
        if not pbc.any():
            return moved
        full = cell.copy()
        full[~pbc] = open_directions(cell, pbc)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    displacements = moved - positions
    if not _are_shortest(displacements, full):
        displacements, _ = shortest_images(displacements, full, pbc)
    return positions + displacements


def shortest_images(vectors: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The shortest periodic image of each vector, (n, 3) Å, and its length, (n,) Å.

    ASE's ``find_mic`` takes a vector that is shorter than half of every lattice vector for its own shortest image,
    which is right in a reduced cell alone. Rows of the (3, 3) cell that are not periodic may be zero.
    """
    reduced, _ = minkowski_reduce(complete_cell(cell), pbc)
    images, lengths = find_mic(vectors, reduced, pbc)
    return images, lengths


def _are_shortest(displacements: np.ndarray, cell: np.ndarray) -> bool:
    """Whether no lattice vector can shorten any of the displacements; False: not told by their lengths alone."""
    # a lattice vector is at least as long as the smallest distance between two planes of the lattice
    spacing = 1.0 / np.sqrt((np.linalg.inv(cell) ** 2).sum(axis=0).max())
    return bool((displacements**2).sum(axis=1).max(initial=0.0) < (0.5 * spacing) ** 2)


_BONDED = 1.6
"""Å. A molecule whose parts are no further apart hangs together; a longer bond costs a look at the images."""


def whole(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """The images, (n_atoms, 3) Å, in which a molecule hangs together, wherever a border of the (3, 3) cell cut it.

    Atoms are joined one by one along the shortest distances between images; the first stays where it is.
    """
    n = len(positions)
    if n < 2 or not pbc.any():
        return positions
    i, j = np.triu_indices(n, 1)
    vectors = positions[j] - positions[i]
    as_given = csr_array((np.linalg.norm(vectors, axis=1), (i, j)), shape=(n, n))
    if minimum_spanning_tree(as_given).data.max() < _BONDED:
        return positions
    vectors, lengths = shortest_images(vectors, cell, pbc)
    tree = minimum_spanning_tree(csr_array((lengths, (i, j)), shape=(n, n)))
    order, before = breadth_first_order(tree, 0, directed=False)
    step = np.zeros((n, n, 3))
    step[i, j], step[j, i] = vectors, -vectors
    found = positions.copy()
    for atom in order[1:]:
        found[atom] = found[before[atom]] + step[before[atom], atom]
    return found
