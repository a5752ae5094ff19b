"""Clean surfaces: close-packed ones as in the FG set, any plane of any crystal, and slabs as they are given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from ase import Atoms
from ase.build import bcc110, bulk, fcc111, hcp0001, make_supercell
from ase.data import atomic_numbers, reference_states

from molflt.adsorption.cutting import VACUUM, cut, enlarged, sites_of
from molflt.data.ase import to_atoms
from molflt.data.extras import held
from molflt.data.open import structures_of
from molflt.data.reading import ReadOptions
from molflt.data.slabs import heights_of
from molflt.errors import InputError
from molflt.vocabulary import TAG_SUBSURFACE, TAG_SURFACE

CELL_HEIGHT = 20.0
"""Å: the period along the normal, in the set."""
_LAYERS = 4
_FREE_LAYERS = 2
"""Layers free to relax, counted from the top."""
_OF_SET = 12
"""Surface atoms to one molecule in the set."""
APART = 4.8
"""Å between a molecule and its images, at least, along the surface."""
_ROOM = 9.0
"""Å above a slab, at least, beyond the extent of the molecule: for its contact, and 5 Å to the next slab."""
_NARROWEST = 8.0
"""Å, shortest lattice vector along a surface unless the coverage is given."""
_OUTERMOST = 1.0
"""Å below the highest atom of a slab that is given, within which atoms are on its surface."""
_CLOSEST = {"fcc": (1, 1, 1), "bcc": (1, 1, 0), "hcp": (0, 0, 1)}
"""Indices of the close-packed planes."""


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
        metal: its symbol, or the formula of an alloy or compound.
        face: such as ``fcc(111)`` or ``(211)``; of a slab that was given, its name.
        atoms: the lowest at z = 0, periodic in all directions, with OC20's tags.
        fixed: (n_atoms,) bool, atoms that keep their place in a relaxation.
        sites: (2,) Å, x and y of one site of each kind, by name.
        coverage: molecules to a surface atom, with one molecule in the cell.
        of_set: True for a surface of the FG set.
    """

    metal: str
    face: str
    atoms: Atoms
    fixed: np.ndarray
    sites: Mapping[str, np.ndarray]
    coverage: float = 1 / _OF_SET
    of_set: bool = True

    @property
    def name(self) -> str:
        """Metal and face, as in ``Pt(111)``."""
        return named(self.metal, self.face)


def named(metal: str, face: str) -> str:
    """Write metal and face without the lattice: ``Pt(111)``."""
    return metal + face[face.index("(") :]


def surface(metal: str) -> Surface:
    """Build the clean surface of a metal as in the FG set: 48 atoms in four layers.

    Args:
        metal: its symbol, in any case of letters.

    Raises:
        InputError: it is not in ``METALS``.
    """
    symbol = metal.strip().capitalize()
    if symbol not in _SLABS:
        raise InputError(f"'{metal:.40}' is not a metal with a known surface; choose among {', '.join(METALS)}")
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


def surfaces(
    on: str | os.PathLike[str] | Atoms, coverage: str | float | None = None, width: float = 0.0
) -> list[Surface]:
    """Build the surfaces that a text names, or take a slab.

    Args:
        on: a metal, for its close-packed face; a metal or a file of a crystal with Miller indices, as ``Pt:211``,
            ``Pt(211)``, ``Ru:10-10`` or ``alloy.cif:111``, once for each plane of atoms that it can end in; a file
            with a slab, or ASE's ``Atoms`` of one. The close-packed faces of ``METALS`` are as in the FG set.
        coverage: molecules to an atom of the outermost plane, such as ``1/4``. By default the cell of the set, and
            for other surfaces a cell that keeps the images of a molecule apart.
        width: Å, longest extent of the molecule.

    Raises:
        InputError: no such crystal, plane or coverage, or a file that cannot be used.
    """
    n = None if coverage is None else _atoms_to_a_molecule(coverage)
    if isinstance(on, Atoms):
        return [_given(on, on.get_chemical_formula(), n)]
    text = os.fspath(on).strip()
    match = None if os.path.exists(text) else _WITH_INDICES.fullmatch(text)
    source, indices = (match["source"], _indices(match["a"] or match["b"], text)) if match else (text, None)
    if os.path.exists(source):
        atoms = _only(source)
        if indices is None:
            return [_given(atoms, Path(source).name, n)]
        if not atoms.pbc.all():
            raise InputError(f"{source}: to be cut, a crystal is periodic along all three lattice vectors")
        return _cut(atoms, "", indices, n, width)
    symbol = source.capitalize()
    if symbol not in atomic_numbers or symbol == "X":
        raise InputError(
            f"'{text:.200}' is neither a metal nor a file; write Pt, Pt:211, or for a file of a crystal alloy.cif:111"
        )
    lattice, crystal = _crystal(symbol)
    indices = indices or _CLOSEST.get(lattice)
    if indices is None:
        raise InputError(f"{symbol}: its lattice has no close-packed plane; name one, as {symbol}:100")
    if symbol in _SLABS and n in (None, _OF_SET) and _is_closest(lattice, indices):
        return [surface(symbol)]
    return _cut(crystal, lattice, indices, n, width)


def _is_closest(lattice: str, indices: Sequence[int]) -> bool:
    """True for a close-packed plane of any orientation."""
    if lattice == "hcp":
        return not any(indices[:2])
    return sorted(map(abs, indices)) == sorted(_CLOSEST[lattice])


_WITH_INDICES = re.compile(r"(?P<source>.+?)(?:\((?P<a>(?:-?\d){3,4})\)|:(?P<b>(?:-?\d){3,4}))")


def _atoms_to_a_molecule(coverage: str | float) -> int:
    try:
        share = float(Fraction(str(coverage)))
        n = round(1 / share)
    except (ValueError, ZeroDivisionError, OverflowError):
        n = 0
    if n < 1 or abs(n * share - 1) > 0.02:
        raise InputError(f"coverage {coverage}: write one molecule to how many surface atoms, as 1/4 or 0.25")
    return n


def _indices(text: str, where: str) -> tuple[int, int, int]:
    """Read Miller indices, of which hexagonal ones may be four."""
    numbers = [int(number) for number in re.findall(r"-?\d", text)]
    if len(numbers) == 4 and numbers[0] + numbers[1] + numbers[2]:
        raise InputError(f"{where}: of four indices the first three add up to zero, as in 10-10")
    indices = np.array([numbers[0], numbers[1], numbers[-1]])
    if not indices.any():
        raise InputError(f"{where}: one of the indices must not be zero")
    h, k, l = (indices // np.gcd.reduce(indices)).tolist()  # noqa: E741 (their names)
    return h, k, l


def _crystal(symbol: str) -> tuple[str, Atoms]:
    """Lattice and conventional cell of an element: constants of the set where it has them, else ASE's."""
    if symbol in _SLABS:
        slab = _SLABS[symbol]
        lattice = slab.face[:3]
        # The two lowest layers are at bulk distance.
        sizes = {
            "fcc": {"a": slab.a * np.sqrt(2)},
            "bcc": {"a": slab.a},
            "hcp": {"a": slab.a, "c": 2 * slab.heights[0]},
        }
        return lattice, bulk(symbol, lattice, cubic=lattice != "hcp", **sizes[lattice])
    lattice = (reference_states[atomic_numbers[symbol]] or {}).get("symmetry", "")
    try:
        return lattice, bulk(symbol, cubic=lattice in ("fcc", "bcc", "diamond"))
    except (ValueError, RuntimeError, NotImplementedError, KeyError) as error:
        raise InputError(f"{symbol}: ASE has no crystal of it ({error}); give a file, as {symbol}.cif:100") from error


def _only(path: str) -> Atoms:
    """Read the one structure of a file."""
    found = structures_of(path, path, ReadOptions(tags="oc20", allow_charged=True))
    if len(found) != 1:
        raise InputError(f"{path}: holds {len(found)} structures; a surface is made of one")
    return to_atoms(found[0])


def _cut(crystal: Atoms, lattice: str, indices: Sequence[int], n: int | None, width: float) -> list[Surface]:
    """Cut slabs, with the lower half of their planes fixed."""
    h, k, l = indices  # noqa: E741
    metal = _formula(crystal)
    plane = f"{lattice}({h}{k}{-h - k}{l})" if lattice == "hcp" else f"{lattice}({h}{k}{l})"
    slabs = cut(crystal, indices)
    outermost = [slab[slab.get_tags() == slab.get_tags().max()] for slab in slabs]
    ends = [_formula(atoms) for atoms in outermost]
    found = []
    for place, (slab, end) in enumerate(zip(slabs, ends, strict=True), 1):
        face = plane if len(slabs) == 1 else f"{plane} end {end if ends.count(end) == 1 else place}"
        per_cell = len(outermost[place - 1])
        if n is not None and n % per_cell:
            raise InputError(
                f"{named(metal, face)}: its smallest cell has {per_cell} surface atoms, so the coverage can be "
                f"1/{per_cell}, 1/{2 * per_cell}, 1/{3 * per_cell} and so on"
            )
        whole = enlarged(slab, None if n is None else n // per_cell, max(_NARROWEST, width + APART))
        planes = whole.get_tags()
        fixed = planes < (planes.max() + 1) // 2
        found.append(_surface(metal, face, whole, fixed, 1 / int((planes == planes.max()).sum()), width))
    return found


def _formula(atoms: Atoms) -> str:
    return str(atoms.symbols.formula.reduce()[0].format("metal"))


def _given(atoms: Atoms, name: str, n: int | None) -> Surface:
    """Take a slab as it is; its lower half is fixed unless it says what is."""
    if n is not None:
        raise InputError(f"{name}: a slab has the coverage that its size gives; leave the coverage out")
    heights = heights_of(atoms) if atoms.pbc[:2].all() else None
    if heights is None:
        raise InputError(
            f"{name}: no slab, which is periodic along its first two lattice vectors with vacuum along the third; to "
            f"cut a crystal, name a plane, as {name}:111"
        )
    first, second, third = np.asarray(atoms.cell)
    normal = np.cross(first, second) / np.linalg.norm(np.cross(first, second))
    up = -normal if third @ normal < 0 else normal
    positions = atoms.positions - atoms.positions[heights.argmin()]
    if atoms.pbc[2]:
        # In one piece, with all atoms on the same side of the vacuum.
        turns = np.rint((heights - heights.min() - positions @ up) / (third @ up))
        positions += turns[:, None] * third
    axes = np.array([first / np.linalg.norm(first), np.cross(up, first / np.linalg.norm(first)), up])
    cell = np.array([first, second, np.zeros(3)]) @ axes.T
    cell[1] *= np.sign(cell[1, 1])
    slab = Atoms(atoms.numbers, positions @ axes.T, cell=cell)
    z = slab.positions[:, 2]
    fixed = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        if (indices := held(constraint)) is not None:
            fixed[indices] = True
    if fixed.all() or not fixed.any():
        fixed = z < z.max() / 2
    return _surface(_formula(atoms), f"({name})", slab, fixed, 1 / int((z > z.max() - _OUTERMOST).sum()))


def _surface(metal: str, face: str, slab: Atoms, fixed: np.ndarray, coverage: float, width: float = 0.0) -> Surface:
    slab.cell[2] = [0.0, 0.0, slab.positions[:, 2].max() + max(VACUUM, width + _ROOM)]
    slab.pbc = True
    slab.set_tags(np.where(fixed, TAG_SUBSURFACE, TAG_SURFACE))
    return Surface(metal, face, slab, fixed, MappingProxyType(sites_of(slab)), coverage, of_set=False)
