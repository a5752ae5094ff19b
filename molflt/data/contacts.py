"""Atoms that are closer than any two atoms are: refused wherever a structure comes in."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from torch_geometric.data import Data

from molflt.data.extents import check_extents
from molflt.data.neighbours import search
from molflt.errors import InputError

_FEW = 256
"""Atoms up to which to measure all distances is faster than a neighbour search."""
_LATER, _EARLIER = np.tril_indices(_FEW, -1)
"""All pairs of so many atoms; those of the first n come first."""
_REMEDY = "remove one of them, or check the unit of the positions and the cell"


def check_geometry(data: Data) -> None:
    """Check the positions and the cell of a structure that was changed since it was read.

    Raises:
        InputError: from ``check_extents`` and ``check_contacts``, with the structure's name.
    """
    points, lattice, periodic = data.positions.numpy(), data.cell[0].numpy(), data.pbc[0].numpy()
    try:
        check_contacts(
            points, lattice, periodic, data.atomic_numbers.numpy(), check_extents(points, lattice, periodic)
        )
    except InputError as error:
        raise InputError(f"{data.get('name', 'structure')}: {error}") from error


def check_contacts(
    points: np.ndarray,
    lattice: np.ndarray,
    periodic: np.ndarray,
    numbers: np.ndarray,
    inverse: np.ndarray,
    called: Callable[[int], str] | None = None,
    remedy: str = _REMEDY,
) -> None:
    """Refuse two atoms, images included, that are closer than half the sum of their covalent radii.

    Args:
        points: (n_atoms, 3), Å.
        lattice: (3, 3), Å, lattice vectors as rows.
        periodic: (3,), bool.
        numbers: (n_atoms,), atomic numbers.
        inverse: (3, 3), what :func:`molflt.data.extents.check_extents` returns for this structure.
        called: what the message calls an atom, by its index; None: by index and element.
        remedy: what to do.

    Raises:
        InputError: it names the two atoms for which it is worst, and says what to do.
    """
    n, radii = len(points), covalent_radii[numbers]
    largest = float(radii.max(initial=0.0))
    reach = largest * np.sqrt((inverse * inverse).sum(axis=0))
    if n <= _FEW and reach[periodic].max(initial=0.0) < 0.5:
        # no period is so short that several images of an atom can be near another: the nearest by fractions is it
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
        f"sum of their covalent radii, is no distance between two atoms; {remedy}"
    )
