"""Clean close-packed surfaces of the metals of the FG set, at its lattice constants, in its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from ase import Atoms
from ase.build import bcc110, fcc111, hcp0001, make_supercell

from molflt.errors import InputError
from molflt.vocabulary import TAG_SUBSURFACE, TAG_SURFACE

CELL_HEIGHT = 20.0
"""Å: the period along the normal."""
_LAYERS = 4
_FREE_LAYERS = 2
"""Counted from the top; the others keep their places in a relaxation."""


@dataclass(frozen=True)
class _Slab:
    """What a clean slab of the set is made of.

    Attributes:
        face: the close-packed one of the metal's lattice.
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
"""Lattice vectors of the cell in those of one atom, and the turn that lays the first along x, in degrees."""


@dataclass(frozen=True)
class Surface:
    """A clean surface, and where something may sit on it.

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
        InputError: it is none of ``METALS``.
    """
    symbol = metal.strip().capitalize()
    if symbol not in _SLABS:
        raise InputError(f"'{metal:.40}' is no metal with a known surface; choose among {', '.join(METALS)}")
    slab = _SLABS[symbol]
    size = (1, 1, _LAYERS)
    # The distance of layers is put right below.
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
