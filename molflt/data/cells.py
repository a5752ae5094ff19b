"""Lattices with directions that are not periodic."""

from __future__ import annotations

import numpy as np

from molflt.errors import InputError

SHORTEST = 1e-6
"""Å. What is shorter is no lattice vector, and no distance between two atoms."""


def open_directions(lattice: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Unit vectors that replace the lattice vectors of the directions that are not periodic.

    Those vectors mean nothing: they may be zero, or lean towards the periodic ones and mislead whatever works
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
    lengths = np.linalg.norm(vectors, axis=1)
    if not np.isfinite(vectors).all() or np.any(lengths < SHORTEST):
        raise InputError("a periodic lattice vector is zero or not finite; correct the cell or pbc")
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
