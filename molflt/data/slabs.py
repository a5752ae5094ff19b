"""Slabs with adsorbates: tags of their atoms, and relaxed positions beside initial ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from ase import Atoms
from scipy.optimize import linear_sum_assignment

from molflt import vocabulary
from molflt.data.images import nearest_image, shortest_images
from molflt.data.quality.contacts import NONMETALS
from molflt.data.quality.extents import open_directions
from molflt.errors import InputError
from molflt.vocabulary import TagConvention

_VACUUM = 4.0
"""Least Å between two images of a slab."""
_LAYER = 1.0
"""Å below the highest metal atom that count as the surface."""
_BELOW = 0.5
"""Å by which an adsorbate atom may lie below the highest metal atom."""


def refuse_untagged(fields: Mapping[str, np.ndarray], where: str) -> None:
    """Refuse a relaxation in a cell whose tags are all zero: it lacks adsorbates to learn from.

    Raises:
        InputError: the structure is such a relaxation.
    """
    if fields["pbc"].any() and not fields["tags"].any() and {"positions_relaxed", "y_relaxed"} & fields.keys():
        raise InputError(
            f"{where}: has a relaxation but no tags, so the adsorbate cannot be told from the surface. Read with "
            "tags='layers' (--tags layers, in training data.tags=layers) to take non-metals on a metal as the "
            "adsorbate, or set the tags in the file: 0 sub-surface, 1 surface, 2 adsorbate"
        )


def tags_of_slab(atoms: Atoms, fixed: np.ndarray, where: str) -> np.ndarray:
    """Determine OC20's tags of molecules on a metal.

    Non-metals are the adsorbate. Metal atoms that may move are the surface, as in OC20; if none or all are
    ``fixed``, (n_atoms,) bool, the highest are. The third lattice vector points out of the surface, with vacuum.

    Returns:
        (n_atoms,) int64.

    Raises:
        InputError: no surface, or non-metals in it, so that tags are ambiguous.
    """
    remedy = "set the tags in the file: 0 sub-surface, 1 surface, 2 adsorbate"
    metal = ~np.isin(atoms.numbers, NONMETALS)
    if not atoms.pbc[:2].all() or not metal.any():
        raise InputError(f"{where}: has no surface (a periodic slab with metal atoms) that --tags layers could tag")
    try:
        open_directions(np.asarray(atoms.cell), atoms.pbc)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    heights = heights_of(atoms)
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


def heights_of(atoms: Atoms) -> np.ndarray | None:
    """Heights along the normal, Å, counted from above the vacuum; None without a vacuum."""
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


def tags_of(atoms: Atoms, fixed: np.ndarray, name: str, convention: TagConvention) -> np.ndarray:
    """Convert ASE's tags to OC20's, (n_atoms,) int64, by the convention of the input.

    Raises:
        InputError: they are ambiguous or out of range, or there is no surface.
    """
    tags = np.asarray(atoms.arrays.get("tags", np.zeros(len(atoms))))
    if tags.dtype.kind not in "iuf" or not (np.isfinite(tags) & (tags == np.floor(tags))).all():
        raise InputError(f"{name}: tags must be whole numbers")
    tags = tags.astype(np.int64)
    if convention == "layers" and not tags.any():
        return tags_of_slab(atoms, fixed, name)
    if convention == "layers":
        table = {0: vocabulary.TAG_ADSORBATE, 1: vocabulary.TAG_SURFACE}
        return np.array([table.get(tag, vocabulary.TAG_SUBSURFACE) for tag in tags.tolist()], dtype=np.int64)
    out_of_range = len(tags) > 0 and (tags.min() < 0 or tags.max() >= vocabulary.N_TAGS)
    if out_of_range or (convention == "auto" and _look_like_layers(atoms, tags)):
        found = ", ".join(map(str, np.unique(tags)))
        raise InputError(
            f"{name}: tags {found} look like ASE's layer numbers (1 the top layer, 0 the adsorbate), but molflt "
            "uses OC20's: 0 sub-surface, 1 surface, 2 adsorbate. Read with tags='layers' (--tags layers, "
            "in training data.tags=layers) to translate them, with tags='oc20' to take them as they are, or set the "
            "tags in the file"
        )
    return tags


def _look_like_layers(atoms: Atoms, tags: np.ndarray) -> bool:
    """True if tag 2 is wholly below tag 1, and tag 1 below tag 0, along the surface normal.

    In OC20's convention the order is the reverse.
    """
    if len(np.unique(tags)) < 2 or not (tags == 1).any():
        return False
    first, second = np.asarray(atoms.cell[0]), np.asarray(atoms.cell[1])
    normal = np.cross(first, second) if np.any(np.cross(first, second)) else np.array([0.0, 0.0, 1.0])
    if not (np.isfinite(atoms.positions).all() and np.isfinite(normal).all()):
        return False
    heights = [atoms.positions[tags == tag] @ normal for tag in (2, 1, 0)]
    return all(low.max() < high.min() for low, high in pairwise(h for h in heights if len(h)))


_SUSPICIOUS = 1.0
"""Å, mean over the atoms: relaxations move them by tenths, and only one in a hundred by so much."""
_ABSURD = 5.0
"""Å, mean over the atoms, that is impossible."""
_MOST_ATOMS = 1000
"""Most atoms for which another order is tested."""


def relaxed_positions(
    numbers: np.ndarray, positions: np.ndarray, relaxed: np.ndarray, cell: np.ndarray, pbc: np.ndarray, where: str
) -> np.ndarray:
    """Find the images of the relaxed positions nearest to the initial ones, (n_atoms, 3) Å.

    Arguments have the shapes and units of those of :func:`molflt.data.images.nearest_image`.

    Raises:
        InputError: as ``nearest_image``; atoms of an element in another order; or impossibly large displacements.
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
    """Refuse a pair with different atomic numbers, or the same in another order.

    Raises:
        InputError: they differ.
    """
    if np.array_equal(initial, relaxed):
        return
    if np.array_equal(np.sort(initial), np.sort(relaxed)):
        raise InputError(f"{where}: initial and relaxed have their elements in another order; sort both files alike")
    raise InputError(
        f"{where}: initial and relaxed differ in their atoms ({len(initial)} and {len(relaxed)}); match them again"
    )


def _best_order(
    numbers: np.ndarray, positions: np.ndarray, moved: np.ndarray, cell: np.ndarray, pbc: np.ndarray
) -> float:
    """Mean displacement, Å, in the best order of the atoms of each element."""
    total = 0.0
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        between = (moved[own][:, None] - positions[own][None]).reshape(-1, 3)
        _, lengths = shortest_images(between, cell, pbc) if pbc.any() else (between, np.linalg.norm(between, axis=1))
        table = lengths.reshape(len(own), len(own))
        total += float(table[linear_sum_assignment(table)].sum())
    return total / len(numbers)
