"""Tags of a slab that has none, from where its atoms are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from ase import Atoms

from molflt import vocabulary
from molflt.data.extents import open_directions
from molflt.errors import InputError

_NONMETALS = (1, 2, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 34, 35, 36, 53, 54)
_VACUUM = 4.0
"""Å between two images of a slab, at least."""
_LAYER = 1.0
"""Å below the highest metal atom that count as the surface."""
_BELOW = 0.5
"""Å by which an atom of an adsorbate may lie below the highest metal atom."""


def refuse_untagged(fields: Mapping[str, np.ndarray], where: str) -> None:
    """Refuse a relaxation in a cell whose tags are all zero, of which nothing can be learnt about adsorbates.

    Raises:
        InputError: it is one.
    """
    if fields["pbc"].any() and not fields["tags"].any() and {"positions_relaxed", "y_relaxed"} & fields.keys():
        raise InputError(
            f"{where}: has a relaxation but no tags, so the adsorbate cannot be told from the surface. Read with "
            "tags='layers' (--tags layers, in training data.tags=layers) to take non-metals on a metal as the "
            "adsorbate, or set the tags in the file: 0 sub-surface, 1 surface, 2 adsorbate"
        )


def tags_of_slab(atoms: Atoms, fixed: np.ndarray, where: str) -> np.ndarray:
    """OC20's tags of molecules on a metal.

    Non-metals are the adsorbate. Metal atoms that may move are the surface, as in OC20; where none or all are
    ``fixed``, (n_atoms,) bool, the highest are. The third lattice vector leads out of the surface, with vacuum.

    Returns:
        (n_atoms,) int64.

    Raises:
        InputError: no surface, or non-metals in it, so that tags cannot be told.
    """
    remedy = "set the tags in the file: 0 sub-surface, 1 surface, 2 adsorbate"
    metal = ~np.isin(atoms.numbers, _NONMETALS)
    if not atoms.pbc[:2].all() or not metal.any():
        raise InputError(f"{where}: has no surface (a periodic slab with metal atoms) that --tags layers could tag")
    try:
        open_directions(np.asarray(atoms.cell), atoms.pbc)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    heights = _heights(atoms)
    if heights is None:
        raise InputError(f"{where}: has no surface: there is no vacuum along the third lattice vector; {remedy}")
    top = float(heights[metal].max())
    if (heights[~metal] < top - _BELOW).any():
        raise InputError(f"{where}: non-metals lie below the highest metal atom, so tags cannot be told; {remedy}")
    tags = np.where(metal, vocabulary.TAG_SUBSURFACE, vocabulary.TAG_ADSORBATE).astype(np.int64)
    held = fixed & metal
    surface = metal & ~fixed if held.any() and not held[metal].all() else metal & (heights > top - _LAYER)
    tags[surface] = vocabulary.TAG_SURFACE
    return tags


def _heights(atoms: Atoms) -> np.ndarray | None:
    """Å along the normal, counted from above the vacuum; None: there is none."""
    first, second, third = np.asarray(atoms.cell)
    normal = np.cross(first, second)
    normal /= np.linalg.norm(normal)
    if not atoms.pbc[2]:
        return atoms.positions @ normal * (1.0 if not third.any() or third @ normal > 0 else -1.0)
    length = abs(float(third @ normal))
    along = (np.linalg.solve(np.asarray(atoms.cell).T, atoms.positions.T)[2] % 1.0) * length
    order = np.sort(along)
    gaps = np.diff([*order, order[0] + length])
    widest = int(gaps.argmax())
    if gaps[widest] < _VACUUM:
        return None
    return (along - order[(widest + 1) % len(order)]) % length
