"""Crystals from CIF files, with symmetry applied, and checked against all declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np
from ase import Atoms
from ase.cell import Cell
from ase.data import atomic_numbers
from gemmi import cif

from molflt.data.cif import DEUTERIUM, Items, check_declared
from molflt.data.macromolecules import mmcif_frames
from molflt.data.neighbours import check_contacts
from molflt.data.symmetry import NO_SYMMETRY, Symmetry, expand
from molflt.data.text import Notes
from molflt.errors import InputError

_AT = re.compile(r"^string:(\d+)\S*:? ")
_LETTERS = re.compile(r"[A-Za-z]+")
_FULL = 0.999
_CELL = [f"_cell_{name}" for name in ("length_a", "length_b", "length_c", "angle_alpha", "angle_beta", "angle_gamma")]
_OPERATIONS = ("_space_group_symop_operation_xyz", "_symmetry_equiv_pos_as_xyz")
_NAMES = ("_space_group_name_h-m_alt", "_symmetry_space_group_name_h-m", "_space_group_name_h-m_full")
_NUMBERS = ("_space_group_it_number", "_symmetry_int_tables_number")
_OTHERS = {
    "_space_group_symop_magn": "a magnetic structure; give its crystal structure without moments",
    "_cell_modulation_dimension": "a modulated structure; give a commensurate approximant",
    "_chem_comp_atom": "a component of a dictionary; give the molecule as SDF or mol2",
}
"""Contents other than a structure, by the beginning of an item's name."""


class _Site(NamedTuple):
    """A row of the atoms' loop, with its name for messages."""

    name: str
    number: int
    fraction: np.ndarray
    deuterium: bool


def cif_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms | InputError]:
    """Yield every crystal of a CIF file or model of an mmCIF file, or errors in their place.

    Raises:
        InputError: not CIF at all.
    """
    try:
        # repeated names of blocks are allowed: each is a structure; repeated items are detected below
        document = cif.read_string(stream.read(), 0)
    except (ValueError, RuntimeError) as error:
        reason = _AT.sub(r"line \1: ", str(error))
        raise InputError(f"{where}: {reason}; not valid CIF, correct it") from error
    index = 0
    for block in document:
        record = f"{where}#{index}"
        try:
            items = Items(block)
            if items.is_mmcif:
                frames: Iterator[Atoms | InputError] = mmcif_frames(items, where, index, notes)
            elif any(f"_atom_site_{kind}_x" in items for kind in ("fract", "cartn")):
                frames = iter([_crystal(items, record, notes)])
            else:
                for start, what in _OTHERS.items():
                    if items.starting(start):
                        raise InputError(f"holds {what}")
                if "_cell_length_a" in items:
                    notes.add("a data block with a cell and without atoms is ignored", f"data_{block.name}")
                continue
            for frame in frames:
                index += 1
                yield frame
        except InputError as error:
            index += 1
            yield InputError(f"{record}: data_{block.name}: {error}")


def _crystal(items: Items, record: str, notes: Notes) -> Atoms:
    for start in ("_space_group_symop_magn", "_cell_modulation_dimension"):
        if items.starting(start):
            raise InputError(f"holds {_OTHERS[start]}")
    lattice = _lattice(items)
    sites = _sites(items, lattice, record, notes)
    symmetry = _symmetry(items)
    if symmetry == Symmetry():
        notes.add(NO_SYMMETRY, record)
    found, wrong = [], []
    candidates = symmetry.candidates(lattice)
    for name, operations in candidates:
        try:
            found.append((name, _expanded(items, sites, operations, lattice)))
        except InputError as error:
            wrong.append(InputError(f"in setting {name}: {error}") if len(candidates) > 1 else error)
    if not found:
        raise wrong[0]
    if len(found) > 1:
        settings = " or ".join(name for name, _ in found)
        raise InputError(
            f"the space group may be meant in setting {settings}, and the file does not say which; write the setting "
            "into its name, or list the operations of symmetry as _space_group_symop_operation_xyz"
        )
    if wrong:
        notes.add(f"of several settings only {found[0][0]} agrees with the rest of the file, and is taken", record)
    return found[0][1]


def _expanded(items: Items, sites: list[_Site], operations: np.ndarray, lattice: np.ndarray) -> Atoms:
    fractions, site, orders = expand(
        np.array([s.fraction for s in sites]), operations, lattice, lambda k: f"site {sites[k].name}"
    )
    numbers = np.array([s.number for s in sites])[site]
    atoms = Atoms(numbers=numbers, scaled_positions=fractions, cell=lattice, pbc=True)
    check_declared(items, atoms, orders, site, [s.name for s in sites], np.array([s.deuterium for s in sites])[site])
    remedy = (
        "list each site once, one of several alternatives, and coordinates with more digits (1/3 as 0.33333); or "
    )
    remedy += "the cell or the symmetry is wrong"
    check_contacts(atoms.positions, lattice, atoms.pbc, numbers, lambda k: f"site {sites[site[k]].name}", remedy)
    return atoms


def _lattice(items: Items) -> np.ndarray:
    values = [items.number(tag) for tag in _CELL]
    for tag, value in zip(_CELL, values, strict=True):
        if value is None or not 0 < value < 1e6:
            raise InputError(f"{tag} is {items.text(tag) or 'missing'}; give the cell")
    try:
        lattice = np.asarray(Cell.fromcellpar(values))
    except AssertionError:
        lattice = np.full((3, 3), np.nan)
    if not np.isfinite(lattice).all() or abs(np.linalg.det(lattice)) < 1e-6:
        raise InputError("no cell has such angles; correct them")
    return lattice


def _symmetry(items: Items) -> Symmetry:
    number = next((value for tag in _NUMBERS if (value := items.number(tag))), 0)
    return Symmetry(
        operations=next((tuple(column) for tag in _OPERATIONS if (column := items.column(tag))), ()),
        hall=items.text("_space_group_name_hall") or items.text("_symmetry_space_group_name_hall"),
        name=next((name for tag in _NAMES if (name := items.text(tag))), ""),
        number=int(number),
        setting=items.text("_space_group_it_coordinate_system_code"),
    )


def _sites(items: Items, lattice: np.ndarray, record: str, notes: Notes) -> list[_Site]:
    kind = "fract" if "_atom_site_fract_x" in items else "cartn"
    tags = [f"_atom_site_{kind}_{axis}" for axis in "xyz"]
    columns = [items.column(tag) for tag in tags]
    n = len(columns[0])
    if n == 0 or any(len(column) != n for column in columns):
        raise InputError(f"line {items.line(tags[0])}: {', '.join(tags)} are not all in one loop")
    labels, symbols, occupancies, flags = (
        items.column(f"_atom_site_{name}", n) for name in ("label", "type_symbol", "occupancy", "calc_flag")
    )
    frame = None if kind == "fract" else _cartesian(items, lattice, record, notes)
    found = []
    for k in range(n):
        label = labels[k] or symbols[k]
        name = f"{label} (row {k + 1} of the loop at line {items.line(tags[0])})"
        if flags[k].lower() == "dum":
            raise InputError(f"site {name} is a dummy atom; remove it")
        place = np.array([cif.as_number(column[k]) for column in columns])
        if not np.isfinite(place).all():
            raise InputError(
                f"site {name} has coordinates {', '.join(column[k] or '?' for column in columns)}; give three "
                "numbers, or remove it where it stands for atoms that were not located"
            )
        occupancy = cif.as_number(occupancies[k]) if occupancies[k] else 1.0
        if not _FULL <= occupancy <= 2.0 - _FULL:
            raise InputError(f"site {name} is partly occupied ({occupancies[k]}); choose an ordered structure")
        symbol = _element(symbols[k], label, name)
        if frame is not None:
            place = frame[0] @ place + frame[1]
        found.append(_Site(name, atomic_numbers.get(symbol, 1), place, symbol == "D"))
        if symbol in ("D", "T"):
            notes.add(DEUTERIUM, record)
    _refuse_alternatives(items, [site.name for site in found])
    return found


def _refuse_alternatives(items: Items, names: list[str]) -> None:
    """Refuse sites that exclude each other by disorder groups, whatever their occupancies."""
    assemblies, groups = (items.column(f"_atom_site_disorder_{what}", len(names)) for what in ("assembly", "group"))
    first: dict[str, tuple[str, str]] = {}
    for name, assembly, group in zip(names, assemblies, groups, strict=True):
        other = first.setdefault(assembly, (group, name)) if group else (group, name)
        if group.startswith("-") or other[0] != group:
            raise InputError(
                f"site {name} is one of several alternatives (disorder group {group}); choose an ordered structure"
            )


def _element(symbol: str, label: str, name: str) -> str:
    """Element of a site, from its symbol, which may have a charge, or its label; also D and T."""
    if symbol:
        letters = _LETTERS.match(symbol)
        found = letters[0].capitalize() if letters else ""
        if found in ("D", "T") or atomic_numbers.get(found, 0) > 0:
            return found
        raise InputError(
            f"site {name} is of type '{symbol:.20}', which is not an element; correct _atom_site_type_symbol"
        )
    start = _LETTERS.match(label)
    letters_of_label = start[0] if start else "?"
    one, two = letters_of_label[0], letters_of_label[:2]
    readings = [one] if len(letters_of_label) == 1 or letters_of_label[1].isupper() else []
    if len(two) == 2 and not letters_of_label[2:3].islower():
        readings.append(two.capitalize())
    elements = [reading for reading in readings if reading in ("D", "T") or atomic_numbers.get(reading, 0) > 0]
    if len(elements) != 1:
        raise InputError(
            f"site {name} may be {' or '.join(elements) or 'anything'}; name its element in _atom_site_type_symbol"
        )
    return elements[0]


def _cartesian(items: Items, lattice: np.ndarray, record: str, notes: Notes) -> tuple[np.ndarray, np.ndarray]:
    """Matrix (3, 3) and vector (3,) that convert Cartesian to fractional coordinates."""
    matrix = [[items.number(f"_atom_sites_fract_tran_matrix_{i}{j}") for j in (1, 2, 3)] for i in (1, 2, 3)]
    if all(value is not None for row in matrix for value in row):
        vector = [items.number(f"_atom_sites_fract_tran_vector_{i}") or 0.0 for i in (1, 2, 3)]
        return np.array(matrix, dtype=np.float64), np.array(vector)
    if np.abs(lattice - np.diag(np.diag(lattice))).max() > 1e-6:
        notes.add("Cartesian coordinates are taken to have x along a, and y in the plane of a and b", record)
    return np.linalg.inv(lattice).T, np.zeros(3)
