"""Neighbour lists in the vocabulary's convention, and checks for overlapping atoms."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping

import numpy as np
import torch
from ase.data import chemical_symbols, covalent_radii
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree
from torch import Tensor
from torch_geometric.data import Data
from vesin import NeighborList
from vesin._c_api import VesinCPU, VesinDevice, VesinOptions

from molflt.data.quality.extents import SHORTEST, check_extents, check_pairs, heights, open_directions, refuse_pairs
from molflt.errors import InputError

_MOST_CELLS = 50_000.0
"""Most cells of the search's grid. Beyond twice that it merges cells, and may divide by zero in a thin grid."""
_EXACT = "donot_use_mm_for_euclid_dist"
"""torch.cdist loses accuracy at small distances when it multiplies matrices."""


def neighbour_list(
    positions: ArrayLike | Tensor,
    cell: ArrayLike | Tensor,
    pbc: ArrayLike | Tensor,
    cutoff: float,
    checked: bool = False,
) -> tuple[Tensor, Tensor]:
    """Find every ordered pair of atoms, images included, closer than a cutoff.

    An atom is not its own neighbour, but its periodic images are. Lattice vectors along directions that are not
    periodic are ignored. The order is fixed: by receiver, sender, translation.

    Args:
        positions: (n_atoms, 3), Å, anywhere in space.
        cell: (3, 3) or (1, 3, 3), Å, lattice vectors as rows.
        pbc: (3,) or (1, 3), bool.
        cutoff: Å, positive.
        checked: whether :mod:`molflt.data.quality.extents` has checked the structure, perhaps with its atoms
            elsewhere by some hundredths of an Å.

    Returns:
        edge_index: (2, n_edges) int64; (i, j): atom j sends to atom i.
        cell_offsets: (n_edges, 3) int32; Δ_ij = r_i − r_j − cell_offsets @ cell.

    Raises:
        InputError: a number is not finite, two atoms coincide, the periodic lattice vectors are dependent, or the
            structure is invalid: see :mod:`molflt.data.quality.extents`.
    """
    points = np.asarray(positions, dtype=np.float64).reshape(-1, 3)
    lattice = np.asarray(cell, dtype=np.float64).reshape(3, 3)
    periodic = np.asarray(pbc, dtype=bool).reshape(3)
    if not (np.isfinite(cutoff) and cutoff > 0):
        raise InputError(f"the cutoff must be a positive length in Å, not {cutoff}")
    if not checked and len(bad := np.flatnonzero(~np.isfinite(points).all(axis=1))):
        raise InputError(f"atom {bad[0]} has a position that is not finite: {points[bad[0]]}")
    if len(points) == 0:
        return torch.zeros((2, 0), dtype=torch.int64), torch.zeros((0, 3), dtype=torch.int32)
    pairs, shifts, distances = search(points, lattice, periodic, cutoff, checked)
    if len(close := np.flatnonzero(distances < SHORTEST)):
        (i, j), distance = min(zip(np.sort(pairs[close]).tolist(), distances[close], strict=True))
        raise InputError(f"atoms {i} and {j} coincide (distance {distance:.1e} Å); remove one of them")
    edge_index, offsets = _both_ways(pairs, shifts, len(points))
    return torch.from_numpy(edge_index), torch.from_numpy(offsets)


def near_pairs(data: Data, cutoff: float, checked: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Find the pairs of :func:`neighbour_list`, each once, (n_pairs, 2), in any order.

    Their distances, (n_pairs,) Å, are returned as well.

    Raises:
        InputError: the structure is invalid: see :mod:`molflt.data.quality.extents`.
    """
    pairs, _, distances = search(data.positions.numpy(), data.cell[0].numpy(), data.pbc[0].numpy(), cutoff, checked)
    return pairs, distances


def search(
    points: np.ndarray, lattice: np.ndarray, periodic: np.ndarray, cutoff: float, checked: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find pairs (n_pairs, 2) closer than a cutoff, their shifts (n_pairs, 3) and distances.

    Of (i, j, S) and (j, i, −S) one is found. The order is arbitrary, and so are shifts along directions that are not
    periodic. Distances are (n_pairs,) Å. With ``checked`` the structure is taken for valid.

    Raises:
        InputError: the structure is invalid: see :mod:`molflt.data.quality.extents`.
    """
    if not checked:
        check_extents(points, lattice, periodic)
    # far from the origin, the distances would lose digits
    points = points - points[:1]
    box = _bounding_box(points, lattice, periodic, cutoff)
    height = heights(box)
    check_pairs(points, box, periodic, cutoff, height)
    if np.prod(np.maximum(height / cutoff, 1.0)) > _MOST_CELLS:
        return _search_by_tree(points, box, cutoff)
    return _search_on_grid(points, box, cutoff)


def _search_on_grid(points: np.ndarray, box: np.ndarray, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Search by vesin's library; arguments and results are those of :func:`_search_by_tree`.

    vesin's own wrapper makes a ctypes type for every number of pairs: each takes 0.1 ms and 15 kB, for ever.
    """
    # One thread: DataLoader workers already use the cores.
    options = VesinOptions(cutoff=cutoff, n_threads=1, return_shifts=True, return_distances=True)
    search, message = NeighborList(cutoff=cutoff, full_list=False), ctypes.c_char_p()
    # It frees them when it is deleted.
    found = search._neighbors
    double, periodic = ctypes.POINTER(ctypes.c_double), (ctypes.c_bool * 3)(True, True, True)
    points, box = np.ascontiguousarray(points), np.ascontiguousarray(box)
    data = points.ctypes.data_as(double), len(points), box.ctypes.data_as(double), periodic
    if search._lib.vesin_neighbors(*data, VesinDevice(VesinCPU, 0), options, ctypes.byref(found), message):
        raise RuntimeError(message.value)
    n = found.length
    pairs, shifts, distances = (
        np.frombuffer(ctypes.string_at(start, n * row) if n else b"", dtype)
        for start, row, dtype in ((found.pairs, 16, "i8"), (found.shifts, 12, "i4"), (found.distances, 8, "f8"))
    )
    return pairs.reshape(n, 2), shifts.reshape(n, 3), distances


def _search_by_tree(points: np.ndarray, box: np.ndarray, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Search in a nearly empty box without a grid.

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
    # all images within the cutoff of the cell, one direction after the other
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
    a, b, c = shifts[image].T
    other = (i < j) | ((i == j) & ((a > 0) | ((a == 0) & ((b > 0) | ((b == 0) & (c > 0))))))
    i, j, image = i[other], j[other], image[other]
    return np.column_stack([i, j]), shifts[image] + base[i] - base[j], found["v"][other]


def _both_ways(pairs: np.ndarray, shifts: np.ndarray, n_atoms: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges (2, n_edges) and translations of pairs in both directions, by receiver, sender and translation.

    An edge is packed into one number, which is sorted faster than five, and the faster the shorter it is.
    """
    i, j = np.ascontiguousarray(pairs.T)
    reach = int(max(shifts.max(initial=0), -shifts.min(initial=0)))
    of_atom, of_shift = max(n_atoms - 1, 1).bit_length(), (2 * reach).bit_length()
    if (n_bits := 2 * of_atom + 3 * of_shift) > 62:
        edge_index = np.stack([np.concatenate([i, j]), np.concatenate([j, i])])
        offsets = np.concatenate([shifts, -shifts]).astype(np.int32)
        order = np.lexsort((*offsets.T[::-1], *edge_index[::-1]))
        return edge_index.take(order, axis=1), offsets.take(order, axis=0)
    kind = np.int32 if n_bits < 32 else np.int64
    i, j, (a, b, c) = i.astype(kind), j.astype(kind), shifts.T.astype(kind)
    translation = (((a << of_shift) + b) << of_shift) + c
    packed = np.concatenate([i << of_atom | j, j << of_atom | i])
    packed <<= 3 * of_shift
    packed += ((reach << of_shift) + reach << of_shift) + reach
    packed[: len(i)] += translation
    packed[len(i) :] -= translation
    packed.sort()
    edge_index, offsets = np.empty((2, len(packed)), dtype=np.int64), np.empty((len(packed), 3), dtype=np.int32)
    for axis in range(3):
        offsets[:, axis] = (packed >> (2 - axis) * of_shift & (1 << of_shift) - 1) - reach
    packed >>= 3 * of_shift
    edge_index[0], edge_index[1] = packed >> of_atom, packed & (1 << of_atom) - 1
    return edge_index, offsets


def attach_neighbours(data: Data, cutoff: float, all_pairs_if_isolated: bool = False, checked: bool = False) -> Data:
    """Set ``edge_index`` and ``cell_offsets`` on a structure.

    Args:
        data: a structure under the vocabulary; changed in place.
        cutoff: Å.
        all_pairs_if_isolated: connect every ordered pair of different atoms, whatever their distance, when no
            direction is periodic.
        checked: as for ``neighbour_list``.

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
            edge_index, offsets = neighbour_list(data.positions, data.cell, data.pbc, cutoff, checked)
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
    """Build a box, periodic in all directions, with the neighbours of the given one.

    Along a direction that is not periodic the lattice vector (perhaps zero, perhaps shorter than the
    structure) is replaced by one at right angles to the periodic vectors, and long enough that no image of
    an atom along it comes within the cutoff. One search then handles every kind of boundary.
    """
    box = lattice.copy()
    if not periodic.all():
        normals = open_directions(lattice, periodic)
        extents = np.ptp(points @ normals.T, axis=0)
        box[~periodic] = normals * (extents + cutoff + 1.0)[:, None]
    return box


_FEW = 256
"""Most atoms for which all distances are faster than a neighbour search."""
_LATER, _EARLIER = np.tril_indices(_FEW, -1)
"""All pairs of so many atoms; those of the first n come first."""
_REMEDY = "remove one of them, or check the unit of the positions and the cell"


def check_geometry(structure: Data | Mapping[str, Tensor], where: str) -> None:
    """Check positions and cell of a structure, by its fields; ``where`` is for messages.

    Raises:
        InputError: from :func:`check_contacts`.
    """
    names = ("positions", "cell", "pbc", "atomic_numbers")
    points, lattice, periodic, numbers = (structure[name].numpy() for name in names)
    try:
        check_contacts(points, lattice[0], periodic[0], numbers)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def check_contacts(
    points: np.ndarray,
    lattice: np.ndarray,
    periodic: np.ndarray,
    numbers: np.ndarray,
    called: Callable[[int], str] | None = None,
    remedy: str = _REMEDY,
) -> None:
    """Refuse two atoms, images included, closer than half the sum of their covalent radii.

    Args:
        points: (n_atoms, 3), Å.
        lattice: (3, 3), Å, lattice vectors as rows.
        periodic: (3,), bool.
        numbers: (n_atoms,), atomic numbers.
        called: name of an atom in the message, by its index; None: its index and element.
        remedy: advice for the message.

    Raises:
        InputError: as :func:`molflt.data.quality.extents.check_extents`, or there are such atoms: the worst pair is
            named, with the remedy.
    """
    inverse = check_extents(points, lattice, periodic)
    n, radii = len(points), covalent_radii[numbers]
    largest = float(radii.max(initial=0.0))
    reach = largest * np.sqrt((inverse * inverse).sum(axis=0))
    if n <= _FEW and reach[periodic].max(initial=0.0) < 0.5:
        # no period is so short that several images of an atom can be near another: the nearest by fractions suffices
        n_pairs = n * (n - 1) // 2
        i, j = _EARLIER[:n_pairs], _LATER[:n_pairs]
        fractions = (points @ inverse).T.copy()
        # half the time of [:, i]
        apart = fractions.take(i, axis=1)
        apart -= fractions.take(j, axis=1)
        shifts = np.rint(apart) if periodic.any() else np.zeros((3, n_pairs))
        shifts[~periodic] = 0.0
        apart -= shifts
        vectors = (lattice if periodic.all() else np.linalg.inv(inverse)).T @ apart
        squares = np.einsum("ij,ij->j", vectors, vectors)
    else:
        pairs, shifts, distances = search(points, lattice, periodic, largest)
        (i, j), shifts, squares = pairs.T, shifts.T, distances**2
    least = radii.take(i)
    least += radii.take(j)
    least *= 0.5
    if not (squares < least * least).any():
        return
    worst = int(np.argmin(squares / least**2))
    first, second = sorted((int(i[worst]), int(j[worst])))
    names = [called(k) if called else f"atom {k} ({chemical_symbols[numbers[k]]})" for k in (first, second)]
    if names[0] == names[1]:
        names[1] = "its own image"
    elif shifts[periodic, worst].any():
        names[1] = f"an image of {names[1]}"
    distance, half = np.sqrt(squares[worst]), least[worst]
    raise InputError(
        f"{names[0]} and {names[1]} are {distance:.3g} Å apart, and less than {half:.2f} Å, half the "
        f"sum of their covalent radii, is not a possible distance between two atoms; {remedy}"
    )
