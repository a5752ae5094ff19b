"""Guesses of a molecule's placement on a surface.

Orientations and heights are as in the initial geometries of the FG set, without clashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from scipy.spatial.transform import Rotation
from torch_geometric.data import Data

from molflt.adsorption.cutting import plane_of
from molflt.adsorption.surfaces import Surface
from molflt.data.record import make_data
from molflt.errors import InputError
from molflt.vocabulary import TAG_ADSORBATE

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
UNDER = 5.0
"""Å from the molecule's highest atom to the next slab, at least; in the set no less."""
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
    frames = [lying(atoms.positions) for atoms in conformers]
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
        # Where nothing is below it, a molecule falls without end.
        if not 0.0 < positions[:, 2].max() <= surface.atoms.cell[2, 2] - UNDER:
            continue
        title = f"{name} on {surface.name if not surface.of_set else surface.metal}, guess {len(found)}"
        found.append(Guess(_structure(surface, numbers, positions, title), site, conformer))
    if not found:
        across = max(float(np.ptp(frame[:, 0])) for frame in frames)
        a, b = surface.atoms.cell.lengths()[:2]
        raise InputError(
            f"{name}: the molecule is {across:.1f} Å long and does not fit into the cell of {surface.name}, "
            f"{a:.1f} Å × {b:.1f} Å, without coming close to its own images or the next slab, or falling through"
        )
    return found


def lying(positions: np.ndarray) -> np.ndarray:
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
    return np.asarray(shifts @ plane_of(surface.atoms))


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
    cell = plane_of(surface.atoms)
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
