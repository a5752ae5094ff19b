"""Items of a CIF block with their lines, and checks of its declarations against its atoms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.data import atomic_masses, atomic_numbers, chemical_symbols
from ase.formula import Formula
from ase.units import _amu
from gemmi import cif

from molflt.errors import InputError

DEUTERIUM = "D and T are read as hydrogen"
"""Remark on deuterium."""


class Items:
    """Items by name, in lower case with underscores: ``_cell.length_a`` is ``_cell_length_a``.

    Args:
        block: block of a CIF document.

    Raises:
        InputError: a duplicate item, or atoms in a save frame.
    """

    def __init__(self, block: cif.Block) -> None:
        self.block = block
        self._found: dict[str, tuple[cif.Item, int]] = {}
        spelt = set()
        for item in block:
            tags = item.loop.tags if item.loop else _pair(item)[:1]
            for place, tag in enumerate(tags):
                name = tag.lower().replace(".", "_")
                if name in self._found:
                    raise InputError(f"line {item.line_number}: {tag} occurs twice; delete one of them")
                self._found[name] = item, place
                spelt.add(tag.lower())
            if item.frame and any(Items(item.frame).starting("_atom_site_")):
                raise InputError(f"line {item.line_number}: atoms in a save frame; move them into a data block")
        self.is_mmcif = "_atom_site.cartn_x" in spelt and any(
            tag.startswith(("_atom_site.label_", "_atom_site.auth_")) for tag in spelt
        )

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def starting(self, start: str) -> list[str]:
        """Return all names that begin with ``start``."""
        return [name for name in self._found if name.startswith(start)]

    def line(self, name: str) -> int:
        """Return the line on which an item, or its loop, begins."""
        return int(self._found[name][0].line_number)

    def column(self, name: str, n: int = 0) -> Sequence[str]:
        """Return all values of an item; unknown ones, ``?`` or ``.``, are empty.

        A missing item has ``n`` empty values.

        Raises:
            InputError: there are not ``n`` of them.
        """
        if name not in self._found:
            return [""] * n
        item, place = self._found[name]
        values = item.loop.values[place :: item.loop.width()] if item.loop else _pair(item)[1:]
        if n and len(values) != n:
            raise InputError(f"line {item.line_number}: {name} has {len(values)} values for {n} atoms")
        return ["" if cif.is_null(value) else cif.as_string(value) for value in values]

    def text(self, name: str) -> str:
        """Return the value of an item, empty if it is missing or unknown."""
        column = self.column(name)
        return " ".join(column[0].split()) if len(column) == 1 else ""

    def number(self, name: str) -> float | None:
        """Return a value without its uncertainty; None if it is missing, unknown or not a number."""
        value = cif.as_number(self.text(name) or "?")
        return value if value == value else None


def _pair(item: cif.Item) -> list[str]:
    """Name and value of an item outside loops; comments and frames have neither."""
    pair: Any = item.pair
    return list(pair or ())


_PART = re.compile(r"([A-Z][a-z]?)(\d+(?:\.\d*)?|\.\d+)?")
_DEUTERIUM = 2.014
_DENSITY, _WEIGHT = 0.05, 0.03
"""Relative tolerances of density and weight: they are rounded, and measured at other temperatures."""
_MULTIPLICITIES = ("_atom_site_site_symmetry_multiplicity", "_atom_site_symmetry_multiplicity")


def check_declared(
    items: Items, atoms: Atoms, orders: np.ndarray, site: np.ndarray, names: list[str], deuterium: np.ndarray
) -> None:
    """Compare the atoms with the declared formula, density and multiplicities.

    Args:
        items: of the block.
        atoms: all atoms of the cell.
        orders: (n_sites,), of the symmetry of each site.
        site: (n_atoms,), of each atom.
        names: of the sites.
        deuterium: (n_atoms,), bool.

    InputError: they differ; the message gives both numbers.
        InputError: they differ; both numbers are named.
    """
    _check_multiplicities(items, orders, np.bincount(site, minlength=len(orders)), names)
    counts = Counter(chemical_symbols[z] for z in atoms.numbers)
    units = items.number("_cell_formula_units_z")
    formula = _composition(items.text("_chemical_formula_sum"))
    if formula:
        _check_formula(items, counts, formula, units)
    mass = float(np.where(deuterium, _DEUTERIUM, atomic_masses[atoms.numbers]).sum())
    weight = items.number("_chemical_formula_weight")
    if weight and units and not formula and abs(mass / (weight * units) - 1) > _WEIGHT:
        raise InputError(
            f"its atoms weigh {mass:.1f} u, and {units:g} formula units of {weight:g} u each are declared; "
            + _missing(items, counts)
        )
    density = items.number("_exptl_crystal_density_diffrn")
    here = mass * _amu * 1e27 / atoms.get_volume()
    if density and abs(here / density - 1) > _DENSITY:
        raise InputError(
            f"its {len(atoms)} atoms in {atoms.get_volume():.1f} Å³ have a density of {here:.3f} g/cm³, and "
            f"{density:g} is declared; " + _missing(items, counts)
        )


def _check_multiplicities(items: Items, orders: np.ndarray, counts: np.ndarray, names: list[str]) -> None:
    tag = next((tag for tag in _MULTIPLICITIES if tag in items), "")
    if not tag:
        return
    texts = items.column(tag, len(names))
    declared = [float(text) if text.replace(".", "", 1).isdecimal() else None for text in texts]
    wrong = [[k for k, n in enumerate(declared) if n is not None and n != there[k]] for there in (counts, orders)]
    # SHELX wrote the order of the site symmetry under this name
    if wrong[0] and wrong[1]:
        k = wrong[0][0]
        raise InputError(
            f"site {names[k]} is said to have a multiplicity of {texts[k]}, and symmetry makes {counts[k]} atoms of "
            "it; correct the symmetry, or the coordinates of a site on a special position"
        )


def _check_formula(
    items: Items, counts: Counter[str], formula: dict[str, tuple[float, float]], units: float | None
) -> None:
    heavy = [element for element in formula if element != "H"] or list(formula)
    scales = [units] if units else [max(1.0, sum(counts[e] for e in heavy) / sum(formula[e][0] for e in heavy))]
    if units and _is_of_cell(items, formula, units):
        scales.append(1.0)
    wrong = []
    for scale in scales:
        elements = {*counts, *formula}
        wrong = [
            element
            for element in sorted(elements)
            if abs(counts[element] - formula.get(element, (0.0, 0.0))[0] * scale)
            > 0.01 + formula.get(element, (0.0, 0.0))[1] * scale
        ]
        if not wrong:
            return
    element, scale = wrong[0], scales[0]
    expected = formula.get(element, (0.0, 0.0))[0] * scale
    times = f"{units:g} times " if units else f"{scale:.4g} times (no _cell_formula_units_Z) "
    said = f"its sites and its symmetry make {counts[element]} atoms of {element} in the cell, and {expected:g} are "
    said += f"declared, {times}{items.text('_chemical_formula_sum')}; "
    raise InputError(said + _missing(items, counts, wrong == ["H"] and counts["H"] < expected))


def _missing(items: Items, counts: Counter[str], only_hydrogen: bool = False) -> str:
    """Advise on atoms that may be missing."""
    if items.starting("_platon_squeeze") or items.starting("_smtbx_masks"):
        return "solvent was masked (SQUEEZE), so atoms are missing: choose a structure with all its atoms"
    if only_hydrogen:
        return "hydrogens are missing, as they often are from diffraction: add them in a program for crystals"
    carbon = "C" in counts and "H" not in counts
    return (
        "correct the symmetry, the sites or what is declared"
        + (", or add the hydrogens that are missing" if carbon else "")
        + "; a wrong value can be deleted"
    )


def _composition(text: str) -> dict[str, tuple[float, float]]:
    """Counts by element with their rounding, as in C6 H12 O6; D is H; empty for other text."""
    found: dict[str, tuple[float, float]] = {}
    if _PART.sub("", text).strip():
        return {}
    for part in _PART.finditer(text):
        element, digits = {"D": "H", "T": "H"}.get(part[1], part[1]), part[2] or "1"
        if atomic_numbers.get(element, 0) == 0:
            return {}
        number, rounding = found.get(element, (0.0, 0.0))
        decimals = len(digits.partition(".")[2])
        found[element] = number + float(digits), rounding + (0.5 * 10.0**-decimals if decimals else 0.0)
    return found


def _is_of_cell(items: Items, formula: dict[str, tuple[float, float]], units: float) -> bool:
    """True if the sum formula is the cell's, as pymatgen writes it beside the reduced one."""
    try:
        reduced = Formula(items.text("_chemical_formula_structural")).count()
    except ValueError:
        return False
    return bool(reduced) and {element: n * units for element, n in reduced.items()} == {
        element: n for element, (n, _) in formula.items()
    }
