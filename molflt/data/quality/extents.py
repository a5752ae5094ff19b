"""Reject structures with impossible extents or densities, before memory is allocated.

The memory of a neighbour search depends on two numbers: a lattice vector of 0.01 Å makes millions of images of each
atom, and a distance in the wrong unit makes a box too large for its grid.
"""

from __future__ import annotations

import numpy as np

from molflt.errors import InputError

SHORTEST = 1e-6
"""Å. Shorter vectors are not lattice vectors, and shorter distances not those of two atoms."""
FARTHEST = 1e5
"""Å: 10 µm. Larger coordinates, extents and lattice vectors are in another unit, or wrong."""
LOWEST = 0.1
"""Å between two lattice planes. The shortest period of any matter is several times that."""
DENSEST = 10.0
"""Atoms per Å³: fifty times diamond."""
MOST_PAIRS, PAIRS_PER_ATOM = 1 << 26, 1000
"""Most neighbours in all, which take 150 bytes each, or per atom, whichever allows more."""
_BIN = 3.0
"""Å, edge of the cubes in which atoms are counted."""
_AXES = "xyz"


def check_extents(points: np.ndarray, lattice: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Refuse impossible coordinates, extents, cells and densities.

    Args:
        points: (n_atoms, 3), Å, finite.
        lattice: (3, 3), Å, lattice vectors as rows.
        periodic: (3,), bool.

    Returns:
        (3, 3): matrix that converts ``points``, multiplied from the right, to fractions of a period along periodic
        directions, and to lengths in Å at right angles to these along others.

    Raises:
        InputError: a number is impossible; the message gives it, and the remedy.
    """
    if len(points) == 0:
        return np.eye(3)
    remedy = f"at most {FARTHEST:,.0f} Å are possible: check the unit"
    low, high = points.min(), points.max()
    if not max(-low, high) <= FARTHEST:
        atom, axis = divmod(int(np.abs(points).argmax()), 3)
        raise InputError(
            f"atom {atom} lies {abs(points[atom, axis]):.3g} Å from the origin along {_AXES[axis]}; {remedy}, or "
            "move it"
        )
    # a rare case, so that one pass over all coordinates usually suffices
    if high - low > FARTHEST and (extents := np.ptp(points, axis=0)).max() > FARTHEST:
        axis = int(extents.argmax())
        raise InputError(f"the structure is {extents[axis]:.3g} Å long along {_AXES[axis]}; {remedy}, or split it")
    if not periodic.any():
        _refuse_density(points, np.eye(3), periodic, np.ones(3))
        return np.eye(3)
    if (longest := float(_lengths(lattice[periodic]).max())) > FARTHEST:
        raise InputError(f"a periodic lattice vector is {longest:.3g} Å long; {remedy}, or correct the cell or pbc")
    box = lattice.copy()
    box[~periodic] = open_directions(lattice, periodic)
    inverse = np.linalg.inv(box)
    height = 1.0 / _lengths(inverse.T)
    if (lowest := float(height[periodic].min())) < LOWEST:
        raise InputError(
            f"the planes of the lattice are {lowest:.3g} Å apart, at least {LOWEST} Å are possible: check the unit "
            "and the cell; a cell that is very oblique can be replaced by a reduced one"
        )
    _refuse_density(points, box, periodic, height)
    return np.asarray(inverse)


def check_pairs(points: np.ndarray, box: np.ndarray, periodic: np.ndarray, cutoff: float, height: np.ndarray) -> None:
    """Refuse a neighbour list that would exceed any memory.

    Args:
        points: (n_atoms, 3), Å.
        box: (3, 3), Å, the lattice, with other vectors at right angles to it along directions that are not periodic.
        periodic: (3,), bool.
        cutoff: Å.
        height: (3,) Å, of the box.

    Raises:
        InputError: too many neighbours are expected.
    """
    n = len(points)
    images = np.prod(2 * cutoff / height[periodic] + 1)
    if n * n * images <= MOST_PAIRS:
        return
    # Each atom is assumed to see the density of its own cell.
    counts, volume = _counts(points, box, periodic, max(_BIN, cutoff / np.sqrt(3)))
    refuse_pairs(n, float((counts.astype(np.float64) ** 2).sum()) * 4 / 3 * np.pi * cutoff**3 / volume, cutoff)


def refuse_pairs(n_atoms: int, n_pairs: float, cutoff: float) -> None:
    """Refuse too many pairs within a cutoff, Å, infinite if all atoms are neighbours.

    Raises:
        InputError: there are too many.
    """
    if n_pairs > max(MOST_PAIRS, PAIRS_PER_ATOM * n_atoms):
        within = f"within {cutoff:g} Å" if np.isfinite(cutoff) else "as all atoms are neighbours in this model"
        raise InputError(
            f"about {n_pairs:.1e} neighbours are expected {within}, {n_pairs / n_atoms:.0f} for each of {n_atoms:,} "
            "atoms, which takes too much memory: check the unit and the cell, or use a model of shorter reach"
        )


def heights(box: np.ndarray) -> np.ndarray:
    """(3,) Å: distances between the opposite faces of a box."""
    return np.asarray(1.0 / _lengths(np.linalg.inv(box).T))


def _lengths(vectors: np.ndarray) -> np.ndarray:
    """(n,) Å: lengths of (n, 3) vectors, without the overhead of ``np.linalg.norm``."""
    return np.asarray(np.sqrt((vectors * vectors).sum(axis=1)))


def open_directions(lattice: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Unit vectors that replace the lattice vectors of the directions that are not periodic.

    Those vectors are meaningless: they may be zero, or lean towards the periodic ones and mislead calculations
    with fractional coordinates.

    Args:
        lattice: (3, 3), Å, lattice vectors as rows.
        periodic: (3,), bool.

    Returns:
        (number of directions that are not periodic, 3), at right angles to each other and the periodic vectors.

    Raises:
        InputError: a periodic lattice vector is zero or not finite, or they are linearly dependent.
    """
    vectors = lattice[periodic]
    lengths = _lengths(vectors)
    if not (np.isfinite(lengths).all() and lengths.min(initial=1.0) >= SHORTEST):
        raise InputError("periodic along a lattice vector that is zero or not finite; correct the cell or pbc")
    units = vectors / lengths[:, None]
    # the volume that the unit vectors span, 1 at right angles: the product of their singular values
    if len(units) == 3:
        spanned = abs(np.linalg.det(units))
    else:
        spanned = np.prod(np.linalg.svd(units, compute_uv=False)) if len(units) else 1.0
    if spanned < 1e-6:
        raise InputError("the periodic lattice vectors are linearly dependent; correct the cell or pbc")
    if len(units) == 3:
        return np.empty((0, 3))
    return np.linalg.qr(vectors.T, mode="complete")[0][:, len(vectors) :].T


def _refuse_density(points: np.ndarray, box: np.ndarray, periodic: np.ndarray, height: np.ndarray) -> None:
    # so few atoms cannot exceed the density in any cube
    if len(points) <= DENSEST * _BIN**3 and height[periodic].min(initial=_BIN) >= _BIN:
        return
    counts, volume = _counts(points, box, periodic, _BIN)
    if (density := counts.max() / volume) > DENSEST:
        raise InputError(
            f"atoms lie as densely as {density:.3g} per Å³ ({counts.max():,} in {volume:.3g} Å³), at most "
            f"{DENSEST:.0f} are possible: check the unit of the positions and the cell"
        )


def _counts(points: np.ndarray, box: np.ndarray, periodic: np.ndarray, edge: float) -> tuple[np.ndarray, float]:
    """Atoms in each nonempty cell of a grid, and a cell's volume in Å³.

    Cells are at least ``edge`` wide. Along a periodic direction a whole number fills the period, one if it is short.
    """
    height = heights(box)
    n_cells = np.where(periodic, np.maximum(1.0, np.floor(height / edge)), height / edge)
    fractions = points @ np.linalg.inv(box)
    fractions = np.where(periodic, fractions - np.floor(fractions), fractions)
    places = np.floor(fractions * n_cells).astype(np.int64)
    _, counts = np.unique(places, axis=0, return_counts=True)
    return counts, float(abs(np.linalg.det(box)) / np.prod(n_cells))
