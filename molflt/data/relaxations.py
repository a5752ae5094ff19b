"""Relaxed positions beside initial ones: the same atoms, in the nearest images, and not impossibly far."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from molflt.data.neighbours import nearest_image, shortest_images
from molflt.errors import InputError

_SUSPICIOUS = 1.0
"""Å, mean over the atoms: relaxations move them by tenths, and no more than one in a hundred by so much."""
_ABSURD = 5.0
"""Å, mean over the atoms."""
_MOST_ATOMS = 1000
"""Up to which another order is looked for."""


def relaxed_positions(
    numbers: np.ndarray, positions: np.ndarray, relaxed: np.ndarray, cell: np.ndarray, pbc: np.ndarray, where: str
) -> np.ndarray:
    """(n_atoms, 3) Å: the images of the relaxed positions, which may be in any, nearest to the initial ones.

    Arguments have the shapes and units of those of :func:`molflt.data.neighbours.nearest_image`.

    Raises:
        InputError: as ``nearest_image``; atoms of an element in another order; or atoms that move absurdly far.
    """
    nearest = nearest_image(positions, relaxed, cell, pbc, where)
    moved = float(np.linalg.norm(nearest - positions, axis=1).mean())
    if moved <= _SUSPICIOUS:
        return nearest
    if len(numbers) <= _MOST_ATOMS and _best_order(numbers, positions, nearest, cell, pbc) < 0.3 * moved:
        raise InputError(
            f"{where}: the relaxed positions are in another order than the initial ones (atoms move by {moved:.1f} Å "
            "on average, far less with atoms of an element exchanged); sort both files alike"
        )
    if moved > _ABSURD:
        raise InputError(
            f"{where}: atoms move by {moved:.1f} Å on average from the initial to the relaxed positions; are these "
            "of the same structure, in the same cell and in Å?"
        )
    return nearest


def same_atoms(initial: np.ndarray, relaxed: np.ndarray, where: str) -> None:
    """Refuse a pair with other atomic numbers, or the same in another order.

    Raises:
        InputError: they are not the same.
    """
    if np.array_equal(initial, relaxed):
        return
    if np.array_equal(np.sort(initial), np.sort(relaxed)):
        raise InputError(f"{where}: initial and relaxed have their elements in another order; sort both files alike")
    raise InputError(
        f"{where}: initial and relaxed are not of the same atoms ({len(initial)} and {len(relaxed)}); match them anew"
    )


def _best_order(
    numbers: np.ndarray, positions: np.ndarray, moved: np.ndarray, cell: np.ndarray, pbc: np.ndarray
) -> float:
    """Å that atoms move on average in the best order of those of the same element."""
    total = 0.0
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        between = (moved[own][:, None] - positions[own][None]).reshape(-1, 3)
        _, lengths = shortest_images(between, cell, pbc) if pbc.any() else (between, np.linalg.norm(between, axis=1))
        table = lengths.reshape(len(own), len(own))
        total += float(table[linear_sum_assignment(table)].sum())
    return total / len(numbers)
