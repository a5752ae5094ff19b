"""Slabs cut from crystals along any plane, and the sites on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count, product
from typing import NamedTuple

import numpy as np
from ase import Atoms
from ase.build import make_supercell
from ase.build.general_surface import build
from ase.data import covalent_radii
from ase.geometry import minkowski_reduce
from scipy.spatial import Voronoi

from molflt.errors import InputError

THICKNESS, PLANES = 6.0, 4
"""Å between the outermost planes, and number of planes, that a slab has at least."""
VACUUM = 13.0
"""Å above a slab."""
_TINY = 1e-8
_PLANE = 0.1
"""Å: atoms at heights that differ by less are in one plane."""
_ENDS = 4
"""Most ways to end a crystal that are tried: those over the widest gaps, which break fewest bonds."""
_SAME = 0.05
"""Å: places and distances that differ by less are the same."""
_MOST_ATOMS = 400
"""Most atoms of a slab."""
_MARKS = 15
"""Distances to atoms of each element by which kinds of sites are told apart."""
_PROBE, _CARBON = 1.074, 6
"""The median contact of the FG set, in sums of covalent radii, of a carbon atom that probes the surface."""


def cut(crystal: Atoms, indices: Sequence[int]) -> list[Atoms]:
    """Cut a crystal parallel to a plane, once for each different plane of atoms that it can end in.

    Args:
        crystal: its unit cell.
        indices: Miller indices h, k, l of the plane in this cell.

    Returns:
        Slabs in their smallest cells along the surface, with the lowest atom at z = 0 and no cell along z; those
        over the widest gaps first, at most four. Their tags number the planes from 0, the lowest.
    """
    plain = Atoms(crystal.numbers, crystal.positions, cell=crystal.cell, pbc=True)
    basis = _basis(plain, np.array(indices) // math.gcd(*indices))
    period = float(build(plain, basis, 1, _TINY, True).cell[2, 2])
    atoms = build(plain, basis, math.ceil(THICKNESS / period) + 2 + PLANES, _TINY, True)
    atoms = atoms[np.argsort(atoms.positions[:, 2], kind="stable")]
    z = atoms.positions[:, 2]
    planes = np.cumsum(np.diff(z, prepend=z[0]) > _PLANE)
    heights = np.array([z[planes == k].mean() for k in range(planes[-1] + 1)])
    made = [atoms.symbols[planes == k].formula.format("hill") for k in range(len(heights))]
    # A plane that the cell's border divides is whole below.
    last = len(heights) - 2
    per_period = int((heights[last] - heights < period - _PLANE).sum()) - 1
    gaps = np.diff(heights)
    found: list[tuple[float, list[tuple[float, str]], Atoms]] = []
    for top in range(last, last - per_period, -1):
        below = [(float(gaps[top - k - 1]), made[top - k]) for k in range(per_period)]
        if any(_alike(below, other) for _, other, _ in found):
            continue
        low = next(k for k in count(top - PLANES + 1, -1) if heights[top] - heights[k] >= THICKNESS - _PLANE)
        slab = atoms[(planes >= low) & (planes <= top)]
        slab.set_tags(planes[(planes >= low) & (planes <= top)] - low)
        slab.positions[:, 2] -= slab.positions[:, 2].min()
        found.append((float(gaps[top]), below, _smallest(slab)))
    found.sort(key=lambda end: -round(end[0], 2))
    return [slab for _, _, slab in found[:_ENDS]]


def _basis(crystal: Atoms, indices: np.ndarray) -> np.ndarray:
    """Lattice vectors (3, 3), in terms of the cell's: two along a plane, and the third one plane up.

    They are right-handed, so that the slab is the crystal, not its mirror image, and its upper side that of the
    indices, which :func:`ase.build.surface` does not always respect.
    """
    most = int(np.abs(indices).max()) + 1
    box = np.array(list(product(range(-most, most + 1), repeat=3)))
    box = box[np.argsort(np.linalg.norm(box @ np.asarray(crystal.cell), axis=1), kind="stable")]
    along, up = box[box @ indices == 0][1:], box[box @ indices == 1][0]
    crossed = np.cross(along[0], along)
    second = along[(crossed == indices * np.sign(crystal.cell.handedness)).all(axis=1)][0]
    return np.array([along[0], second, up])


def _alike(one: Sequence[tuple[float, str]], other: Sequence[tuple[float, str]]) -> bool:
    return all(abs(a - b) < _SAME and of == like for (a, of), (b, like) in zip(one, other, strict=True))


def _smallest(slab: Atoms) -> Atoms:
    """Reduce a slab to its smallest cell along the surface."""
    scaled = np.linalg.solve(np.asarray(slab.cell).T, slab.positions.T).T
    codes = slab.numbers * len(slab) + slab.get_tags()
    kinds, counts = np.unique(codes, return_counts=True)
    own = scaled[codes == kinds[counts.argmin()]]
    shifts = [
        shift for shift in own - own[0] if abs(shift[2] * slab.cell[2, 2]) < _SAME and _repeats(slab, scaled, shift)
    ]
    steps = np.array([[*step, 0.0] for step in product((-1.0, 0.0, 1.0), repeat=2)])
    vectors = (np.array(shifts)[:, None] + steps).reshape(-1, 3) @ np.asarray(slab.cell)
    vectors[:, 2] = 0.0
    lengths = np.linalg.norm(vectors, axis=1)
    vectors = vectors[lengths > _SAME][np.argsort(lengths[lengths > _SAME], kind="stable")]
    areas = np.cross(vectors[0], vectors)[:, 2]
    second = vectors[np.abs(areas) > _SAME * lengths.max()][0]
    second = second if np.cross(vectors[0], second)[2] > 0 else -second
    small = slab.copy()
    small.set_cell([vectors[0], second, slab.cell[2]])
    places = np.linalg.solve(np.asarray(small.cell).T, small.positions.T).T
    new = [k for k in range(len(small)) if not _near(small, places[k], places[:k])[codes[:k] == codes[k]].any()]
    small = small[new]
    small.cell[2] = 0.0
    small.pbc = [True, True, False]
    return small


def _repeats(slab: Atoms, scaled: np.ndarray, shift: np.ndarray) -> bool:
    """True if a shift along the surface takes every atom to one of the same element."""
    return all(
        _near(slab, scaled[k] + shift, scaled)[slab.numbers == slab.numbers[k]].any() for k in range(len(scaled))
    )


def _near(slab: Atoms, place: np.ndarray, places: np.ndarray) -> np.ndarray:
    """(n,) bool: True for the scaled places that are at ``place``, or at an image of it along the surface."""
    apart = places - place
    apart[:, :2] -= np.round(apart[:, :2])
    near: np.ndarray = np.linalg.norm(apart @ np.asarray(slab.cell), axis=1) < _SAME
    return near


def enlarged(slab: Atoms, n: int | None, width: float) -> Atoms:
    """Repeat a slab along the surface, so that its images are as far apart as possible.

    Args:
        slab: in its smallest cell.
        n: number of cells; None: as few as make the shortest lattice vector along the surface at least ``width``.
        width: Å.

    Returns:
        The slab with the first lattice vector along x.

    Raises:
        InputError: it would have more than 400 atoms.
    """
    cell = np.array([slab.cell[0], slab.cell[1], [0.0, 0.0, 1.0]])
    # Of all lattices with this area the hexagonal one has the longest shortest vector.
    area = float(np.linalg.det(cell))
    fewest = n or max(1, math.ceil(math.sqrt(0.75) * width**2 / area - _SAME))
    for number in range(fewest, _MOST_ATOMS // len(slab) + 1):
        vectors, shape = _widest(cell, number)
        if n or np.linalg.norm(vectors[0]) >= width - _SAME:
            whole = make_supercell(slab, shape)
            # About the normal: from one vector to another, a half turn might take the surface down.
            whole.rotate(-math.degrees(math.atan2(whole.cell[0, 1], whole.cell[0, 0])), "z", rotate_cell=True)
            return whole
    what = f"{n} cells of {len(slab)} atoms" if n else f"a cell at least {width:.1f} Å wide"
    raise InputError(f"{what} would have more than {_MOST_ATOMS} atoms; make a slab of your own")


def _widest(cell: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the lattice of ``n`` cells whose shortest vector is longest, and then closest to rectangular.

    Returns:
        The lattice vectors (3, 3), and their integers in terms of the cell's.
    """
    found = []
    for d in (d for d in range(1, n + 1) if n % d == 0):
        for b in range(d):
            shape = np.array([[n // d, b, 0], [0, d, 0], [0, 0, 1]])
            vectors, change = minkowski_reduce(shape @ cell, pbc=[True, True, False])
            first, second = sorted(vectors[:2].tolist(), key=np.linalg.norm)
            skew = abs(np.dot(first, second)) / np.linalg.norm(first) / np.linalg.norm(second)
            found.append(((round(np.linalg.norm(first), 3), -round(skew, 3)), vectors, change @ shape))
    _, vectors, shape = max(found, key=lambda one: one[0])
    order = np.argsort(np.linalg.norm(vectors[:2], axis=1), kind="stable").tolist()
    vectors, shape = vectors[[*order, 2]], shape[[*order, 2]]
    sign = np.sign(np.linalg.det(shape))
    return vectors * [[1], [sign], [1]], np.rint(shape * [[1], [sign], [1]]).astype(int)


class Site(NamedTuple):
    """A place to adsorb.

    Attributes:
        kind: ``ontop``, ``bridge`` or ``hollow``.
        place: (2,) Å, x and y.
        touched: sorted symbols of the surface atoms next to it, all equally far along the surface.
    """

    kind: str
    place: np.ndarray
    touched: tuple[str, ...]


def all_sites(slab: Atoms) -> list[Site]:
    """Find the adsorption sites in the cell of a slab: Voronoi's diagram of its exposed atoms, seen from above.

    An atom is exposed if a carbon atom that comes down over it touches it first. Sites are the exposed atoms, the
    middle between two that no third is as near to, and the corners of the diagram, where three or more are equally
    near.
    """
    points, _ = _images(slab)
    # The images of the cell come one after another, the atoms of each in the same order.
    of = np.flatnonzero(np.tile(_exposed(slab), len(points) // len(slab)))
    seen = points[of, :2]
    diagram = Voronoi(seen)
    middles = seen[diagram.ridge_points].mean(axis=1)
    inverse = np.linalg.inv(plane_of(slab))
    found: list[Site] = []
    for kind, candidates in (("ontop", seen), ("hollow", diagram.vertices), ("bridge", middles)):
        # With a margin, for places on the border; images of those that are kept are left out below.
        scaled = candidates @ inverse
        for place in candidates[((scaled > -0.01) & (scaled < 1.01)).all(axis=1)]:
            apart = np.array([one.place - place for one in found]).reshape(-1, 2) @ inverse
            if (np.linalg.norm((apart - np.round(apart)) @ plane_of(slab), axis=1) < 2 * _SAME).any():
                continue
            distances = np.linalg.norm(seen - place, axis=1)
            near = of[distances < distances.min() + 2 * _SAME] % len(slab)
            if (kind, len(near)) in (("ontop", 1), ("bridge", 2)) or (kind == "hollow" and len(near) > 2):
                found.append(Site(kind, place, tuple(sorted(slab.symbols[near]))))
    return found


def sites_of(slab: Atoms) -> dict[str, np.ndarray]:
    """Choose one of each kind of the sites on a slab, those with the same distances to the atoms of each element.

    Returns:
        (2,) Å, x and y, by name: ``ontop``, ``bridge`` or ``hollow``, with the elements next to it if there are
        several, as in ``bridge Au-Cu``, and a number if there are several kinds of a name.
    """
    points, numbers = _images(slab)
    height, elements = slab.positions[:, 2].max(), np.unique(slab.numbers)
    kinds: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for site in all_sites(slab):
        apart = np.linalg.norm(points - [*site.place, height], axis=1)
        marks = np.concatenate([np.sort(apart[numbers == z])[:_MARKS] for z in elements])
        name = site.kind if len(elements) == 1 else f"{site.kind} {'-'.join(dict.fromkeys(site.touched))}"
        known = kinds.setdefault(name, [])
        if not any(np.abs(marks - other).max() < _SAME for _, other in known):
            known.append((site.place, marks))
    return {
        name if len(some) == 1 else f"{name} {k}": place
        for name, some in kinds.items()
        for k, (place, _) in enumerate(some, 1)
    }


def plane_of(slab: Atoms) -> np.ndarray:
    """Return the shortest lattice vectors along the surface, (2, 2) Å."""
    vectors: np.ndarray = minkowski_reduce(slab.cell, pbc=[True, True, False])[0][:2, :2]
    return vectors


def _images(slab: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Positions (25 n_atoms, 3) and atomic numbers of the atoms in the cell, first, and those around it."""
    plane, inside = plane_of(slab), slab.positions.copy()
    inside[:, :2] -= np.floor(inside[:, :2] @ np.linalg.inv(plane)) @ plane
    steps = np.array(sorted(product(range(-2, 3), repeat=2), key=lambda step: step != (0, 0)))
    shifts = np.pad(steps @ plane, ((0, 0), (0, 1)))
    return (shifts[:, None] + inside).reshape(-1, 3), np.tile(slab.numbers, len(shifts))


def _exposed(slab: Atoms) -> np.ndarray:
    """(n_atoms,) bool: True if a carbon atom that comes down over an atom touches it before any other."""
    points, numbers = _images(slab)
    reach = _PROBE * (covalent_radii[_CARBON] + covalent_radii[numbers])
    flat = np.linalg.norm(points[: len(slab), None, :2] - points[:, :2], axis=-1)
    stops = np.where(flat < reach, points[:, 2] + np.sqrt(np.clip(reach**2 - flat**2, 0.0, None)), -np.inf)
    own = slab.positions[:, 2] + reach[: len(slab)]
    exposed: np.ndarray = own > stops.max(axis=1) - _SAME
    return exposed
