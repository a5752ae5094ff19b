"""Clean surfaces of the FG set's metals, and guesses of a molecule's placement on them.

Surfaces are close-packed, at the set's lattice constants, in its cells. Sites, orientations and heights are as in the
set, without clashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from ase import Atoms
from ase.build import bcc110, fcc111, hcp0001, make_supercell
from ase.data import covalent_radii
from scipy.spatial.transform import Rotation
from torch_geometric.data import Data

from molflt.data.record import make_data
from molflt.errors import InputError
from molflt.vocabulary import TAG_ADSORBATE, TAG_SUBSURFACE, TAG_SURFACE

CELL_HEIGHT = 20.0
"""Å: the period along the normal."""
_LAYERS = 4
_FREE_LAYERS = 2
"""Layers free to relax, counted from the top."""


@dataclass(frozen=True)
class _Slab:
    """Geometry of a clean slab of the set.

    Attributes:
        face: the close-packed face of the metal's lattice.
        a: Å, shortest period within a layer.
        heights: Å, of the second, third and fourth layer above the first, as relaxed without an adsorbate.
        cell: of twelve atoms a layer: oblique (2√3 × 2√3, turned by 30°) or rectangular.
    """

    face: Literal["fcc(111)", "hcp(0001)", "bcc(110)"]
    a: float
    heights: tuple[float, float, float]
    cell: Literal["oblique", "rectangular"] = "oblique"


# Read off the initial geometries of the FG set (Pablo-García et al., Nature Computational Science 2023; MIT,
# © 2022 iciq-tcc / nlopez-group): the lattice vectors, and the heights of the layers, which are flat.
_SLABS: Mapping[str, _Slab] = MappingProxyType(
    {
        "Ag": _Slab("fcc(111)", 2.932172, (2.39411, 4.74460, 7.10896)),
        "Au": _Slab("fcc(111)", 2.938781, (2.39950, 4.75805, 7.16569)),
        "Cd": _Slab("hcp(0001)", 3.030911, (2.89016, 5.76521, 8.59092)),
        "Co": _Slab("hcp(0001)", 2.491210, (2.01930, 4.09845, 6.05033), "rectangular"),
        "Cu": _Slab("fcc(111)", 2.569290, (2.09782, 4.15758, 6.21013)),
        "Fe": _Slab("bcc(110)", 2.828788, (2.00026, 4.04156, 6.05148), "rectangular"),
        "Ir": _Slab("fcc(111)", 2.737966, (2.23554, 4.41267, 6.61317)),
        "Ni": _Slab("fcc(111)", 2.487772, (2.03126, 4.04043, 6.04062)),
        "Os": _Slab("hcp(0001)", 2.739996, (2.19385, 4.37625, 6.47417)),
        "Pd": _Slab("fcc(111)", 2.785035, (2.27397, 4.52474, 6.79561)),
        "Pt": _Slab("fcc(111)", 2.805828, (2.29095, 4.54941, 6.84699)),
        "Rh": _Slab("fcc(111)", 2.703743, (2.20760, 4.35194, 6.52175)),
        "Ru": _Slab("hcp(0001)", 2.712096, (2.14396, 4.27205, 6.34142)),
        "Zn": _Slab("hcp(0001)", 2.715079, (2.35351, 4.74085, 7.14282)),
    }
)
METALS = tuple(_SLABS)

_CELLS = {
    "oblique": ([[2, 2, 0], [-2, 4, 0], [0, 0, 1]], -30.0),
    "rectangular": ([[3, 0, 0], [-2, 4, 0], [0, 0, 1]], 0.0),
}
"""Lattice vectors of the cell in terms of the primitive ones, and degrees of rotation to lay the first along x."""


@dataclass(frozen=True)
class Surface:
    """A clean surface and its adsorption sites.

    Attributes:
        metal: its symbol.
        face: such as ``fcc(111)``.
        atoms: 48 atoms in four layers, the lowest at z = 0, periodic in all directions, with OC20's tags.
        fixed: (48,) whether an atom keeps its place in a relaxation.
        sites: (2,) Å, x and y of one site of each kind, by ASE's names.
    """

    metal: str
    face: str
    atoms: Atoms
    fixed: np.ndarray
    sites: Mapping[str, np.ndarray]


def surface(metal: str) -> Surface:
    """Build the clean surface of a metal.

    Args:
        metal: its symbol, in any case of letters.

    Raises:
        InputError: it is not in ``METALS``.
    """
    symbol = metal.strip().capitalize()
    if symbol not in _SLABS:
        raise InputError(f"no surface is known for '{metal:.40}'; choose among {', '.join(METALS)}")
    slab = _SLABS[symbol]
    size = (1, 1, _LAYERS)
    # The layer distances are corrected below.
    if slab.face == "fcc(111)":
        atoms = fcc111(symbol, size, a=slab.a * np.sqrt(2))
    elif slab.face == "hcp(0001)":
        atoms = hcp0001(symbol, size, a=slab.a, c=2 * slab.a)
    else:
        atoms = bcc110(symbol, size, a=slab.a)
    known = atoms.info["adsorbate_info"]["sites"]
    atoms.info.clear()
    layers = np.argsort(atoms.positions[:, 2])
    atoms.positions[layers, 2] = [0.0, *slab.heights]
    free = np.zeros(_LAYERS, dtype=bool)
    free[layers[-_FREE_LAYERS:]] = True
    atoms.set_tags(np.where(free, TAG_SURFACE, TAG_SUBSURFACE))
    atoms.cell[2] = [0.0, 0.0, CELL_HEIGHT]
    atoms.pbc = True
    vectors, turn = _CELLS[slab.cell]
    atoms.rotate(turn, "z", rotate_cell=True)
    one, top = np.asarray(atoms.cell)[:2, :2], atoms.positions[layers[-1], :2].copy()
    atoms = make_supercell(atoms, vectors)
    sites = {name: top + np.asarray(place) @ one for name, place in known.items()}
    return Surface(symbol, slab.face, atoms, atoms.get_tags() == TAG_SUBSURFACE, MappingProxyType(sites))


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
CONTACT = (0.953, 1.022, 1.074, 1.130, 1.239)
"""Closest contact of molecule and metal, in sums of covalent radii, at the quantiles ``LEVELS`` of the initial
geometries of the FG set, slices 2 to 4. The two angles below are given at the same quantiles; values are drawn by
interpolation."""
ELEVATION = (0.1, 1.6, 6.3, 14.5, 31.5)
"""Angle between the molecule's longest axis and the surface, in degrees."""
ROLL = (0.1, 2.8, 11.6, 29.5, 81.5)
"""Rotation about the longest axis, away from the position with the second along the surface, in degrees."""
IMAGES_APART = 2.4
"""Å between the molecule and its periodic images: van der Waals contact of two hydrogens."""
HIGHEST = 15.0
"""Å: greatest z of the molecule's atoms, 5 Å under the next slab; none in the set is higher."""
_LOW = 0.5
"""Å above the lowest heavy atom, within which atoms may be put over a site."""
_TRIES = 5
"""Tries for each requested guess."""


@dataclass(frozen=True)
class Guess:
    """A molecule on a surface.

    Attributes:
        structure: under the vocabulary, with the adsorbate's atoms last.
        site: the site under it.
        conformer: its index.
    """

    structure: Data
    site: str
    conformer: int


def guesses(surface: Surface, conformers: Sequence[Atoms], n: int, name: str, seed: int = 0) -> list[Guess]:
    """Place conformers of a molecule on a surface.

    Sites take turns. The conformer, the orientation, and the atom over the site (one of the lowest heavy atoms, or
    their centre) are drawn; so is the closest contact, which determines the height.

    Args:
        surface: the clean surface.
        conformers: of one molecule; only numbers and positions are read.
        n: number of guesses.
        name: of the molecule.
        seed: of the random draws; the same seed gives the same guesses.

    Returns:
        At most ``n`` guesses, fewer if the molecule hardly fits.

    Raises:
        InputError: it does not fit into the cell in any way that was tried.
    """
    random = np.random.default_rng(seed)
    frames = [_lying(atoms.positions) for atoms in conformers]
    found: list[Guess] = []
    for _ in range(_TRIES * n):
        if len(found) == n:
            break
        site = list(surface.sites)[len(found) % len(surface.sites)]
        conformer = int(random.integers(len(conformers)))
        numbers = conformers[conformer].numbers
        positions = frames[conformer] @ _orientation(random).as_matrix().T
        if _distance_of_images(positions, surface) < IMAGES_APART:
            continue
        positions[:, :2] += surface.sites[site] - _anchor(positions, numbers, random)
        contact = float(np.interp(random.uniform(LEVELS[0], LEVELS[-1]), LEVELS, CONTACT))
        positions[:, 2] += _height(positions, numbers, surface, contact)
        if positions[:, 2].max() > HIGHEST:
            continue
        title = f"{name} on {surface.metal}, guess {len(found)}"
        found.append(Guess(_structure(surface, numbers, positions, title), site, conformer))
    if not found:
        across = max(float(np.ptp(frame[:, 0])) for frame in frames)
        a, b = surface.atoms.cell.lengths()[:2]
        raise InputError(
            f"{name}: the molecule is {across:.1f} Å long and does not fit into the cell of {surface.metal}, "
            f"{a:.1f} Å × {b:.1f} Å, without coming close to its own images or the next slab"
        )
    return found


def _lying(positions: np.ndarray) -> np.ndarray:
    """Centre and align, the longest axis along x, the second along y: flat on the surface."""
    centred = positions - positions.mean(axis=0)
    axes = np.linalg.svd(centred)[2]
    # A rotation, not a reflection, which would invert a chiral molecule.
    axes[2] *= np.sign(np.linalg.det(axes))
    lying: np.ndarray = centred @ axes.T
    return lying


def _orientation(random: np.random.Generator) -> Rotation:
    """Draw a rotation: a roll about the longest axis, its elevation, a turn about the normal."""
    roll, elevation = (np.interp(random.uniform(LEVELS[0], LEVELS[-1]), LEVELS, q) for q in (ROLL, ELEVATION))
    roll = random.choice([-roll, roll]) + random.choice([0.0, 180.0])
    elevation = random.choice([-elevation, elevation])
    # Extrinsic: about the fixed axes of the surface, one after the other.
    return Rotation.from_euler("xyz", [roll, elevation, random.uniform(0.0, 360.0)], degrees=True)


def _anchor(positions: np.ndarray, numbers: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw the point (2,) to put over a site: a low heavy atom, or the centre of these."""
    heavy = numbers > 1 if (numbers > 1).any() else np.ones(len(numbers), dtype=bool)
    low = positions[heavy & (positions[:, 2] < positions[heavy, 2].min() + _LOW), :2]
    choices: np.ndarray = np.concatenate([low, low.mean(axis=0, keepdims=True)])
    return random.choice(choices)


def _images(surface: Surface) -> np.ndarray:
    """Translations (9, 2) along the surface to the cell itself, first, and its neighbours."""
    shifts = np.array([(i, j) for i in (0, -1, 1) for j in (0, -1, 1)])
    translations: np.ndarray = shifts @ np.asarray(surface.atoms.cell)[:2, :2]
    return translations


def _distance_of_images(positions: np.ndarray, surface: Surface) -> float:
    """Distance from the molecule to its nearest periodic image along the surface, Å."""
    shifts = np.pad(_images(surface)[1:], ((0, 0), (0, 1)))
    vectors = positions[:, None, None] - positions[:, None] - shifts
    return float(np.linalg.norm(vectors, axis=-1).min())


def _height(positions: np.ndarray, numbers: np.ndarray, surface: Surface, contact: float) -> float:
    """Find the height at which the closest contact, in sums of covalent radii, is as requested.

    An atom touches another if its height above it is the leg of a right triangle, with the wanted distance as the
    hypotenuse and the distance along the surface as the other leg; the pair that touches first decides.
    """
    cell = np.asarray(surface.atoms.cell)[:2, :2]
    metal = surface.atoms.positions
    vectors = positions[:, None, :2] - metal[:, :2]
    vectors -= np.round(vectors @ np.linalg.inv(cell)) @ cell
    squared = ((vectors[:, :, None] + _images(surface)) ** 2).sum(axis=-1).min(axis=-1)
    wanted = contact * (covalent_radii[numbers][:, None] + covalent_radii[surface.atoms.numbers])
    legs = np.sqrt(np.clip(wanted**2 - squared, 0.0, None))
    lifts = np.where(squared < wanted**2, metal[:, 2] + legs - positions[:, 2:], -np.inf)
    return float(lifts.max())


def _structure(surface: Surface, numbers: np.ndarray, positions: np.ndarray, name: str) -> Data:
    slab, n = surface.atoms, len(numbers)
    fields = {
        "atomic_numbers": np.concatenate([slab.numbers, numbers]),
        "positions": np.concatenate([slab.positions, positions]),
        "cell": np.asarray(slab.cell)[None],
        "pbc": np.ones((1, 3), dtype=bool),
        "tags": np.concatenate([slab.get_tags(), np.full(n, TAG_ADSORBATE)]),
        "fixed": np.concatenate([surface.fixed, np.zeros(n, dtype=bool)]),
    }
    return make_data(fields, name, name)
