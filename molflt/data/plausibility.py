"""Whether energies can be what they are said to be: totals in another unit, totals for energies of adsorption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from ase import units

from molflt.choices import Per
from molflt.data.labels import ENERGY_UNITS, LabelSpec
from molflt.errors import InputError
from molflt.vocabulary import MAX_ATOMIC_NUMBER

_CLOSE = 0.12
"""Relative difference to the sum over free atoms up to which energies are totals of all electrons. Bonds and
relativity make a few per cent, and the next unit is a factor of four away."""
_MOST = 0.9
"""Share of structures that must agree."""
_PER_ATOM, _LARGE = 2.0, 30.0
"""eV per atom and eV: energies of adsorption are smaller, 0.4 and 7 at the median of atoms in monolayers on slabs."""
_SPREAD = {"energy": (0.015, 1.5), "adsorption": (0.015, 0.55)}
"""eV: what is left per √atom after an energy per element, in sets of many compositions: 0.17 in QM7 and 0.19 in
perovskites, 0.04 to 0.30 for adsorption. A wrong unit is a factor of 23 at least."""
_MANY_COMPOSITIONS, _MANY_ELEMENTS = 20, 3


def free_atoms() -> np.ndarray:
    """(119,) eV: energies of free atoms with all their electrons, to about one per cent from carbon on.

    The semi-classical series of Schwinger (Phys. Rev. A 24, 2353, 1981); hydrogen exactly.
    """
    z = np.arange(MAX_ATOMIC_NUMBER + 1, dtype=np.float64)
    energies = -units.Hartree * (0.768745 * z ** (7 / 3) - 0.5 * z**2 + 0.269900 * z ** (5 / 3))
    energies[1] = -units.Hartree / 2
    return energies


def doubts(spec: LabelSpec, energies: np.ndarray, compositions: np.ndarray, source: str) -> list[str]:
    """What looks wrong with the energies of a set, with the remedy.

    Args:
        spec: what they are said to be.
        energies: (n_structures,) eV, as read by ``spec``.
        compositions: (n_structures, 119) atoms of each atomic number.
        source: of the structures, for messages.

    Returns:
        Doubts, of which none says for certain that something is wrong.

    Raises:
        InputError: they are total energies in another unit, or of atoms instead of structures, or no energies of
            adsorption. Only energies that agree with the sum over free atoms, all electrons counted, are refused.
    """
    if len(energies) == 0:
        return []
    n_atoms = compositions.sum(axis=1)
    adsorption = spec.target != "energy"
    median = float(np.median(energies))
    found = _total(spec, energies, compositions)
    if found is not None:
        unit, per = found
        wanted = [f"data.unit={unit}"] if unit != spec.unit else []
        wanted += [f"data.per={per}"] if per != spec.per else []
        options = " ".join(f"--{key.removeprefix('data.').replace('=', ' ')}" for key in wanted)
        wanted += ["data.target=energy"] if adsorption else []
        if wanted:
            what = f"total energies in {unit}" + (" per atom" if per == "atom" else "")
            where = f" (evaluate: {options})" if options else ""
            raise InputError(
                f"{source}: the labels '{spec.name}', read as {_read_as(spec)} (median {median:.6g} eV), are {what}: "
                f"they agree with the sum over free atoms. Give {' '.join(wanted)}{where}"
            )
        return []
    per_atom = float(np.median(np.abs(energies) / n_atoms))
    if adsorption and per_atom > _PER_ATOM and abs(median) > _LARGE:
        return [
            f"{source}: the labels '{spec.name}' look like total energies, not energies of adsorption: median "
            f"{median:.4g} eV, {per_atom:.2g} eV per atom. If they are, give data.target=energy, or subtract surface "
            f"and molecule; if their unit is not {spec.unit}, give data.unit"
        ]
    return _spread(spec, energies, compositions, "adsorption" if adsorption else "energy", source)


def _read_as(spec: LabelSpec) -> str:
    what = "energies" if spec.target == "energy" else f"energies of adsorption ({spec.target})"
    return f"{what} in {spec.unit}" + (" per atom" if spec.per == "atom" else "")


def _total(spec: LabelSpec, energies: np.ndarray, compositions: np.ndarray) -> tuple[str, Per] | None:
    """Unit and kind in which the energies are totals of all electrons; None: they are none."""
    # Hydrogen and helium alone say too little: their energies are as small as those of valence electrons.
    heavy = compositions[:, 3:].sum(axis=1) > 0
    if not heavy.any():
        return None
    n_atoms = compositions[heavy].sum(axis=1)
    ratio = energies[heavy] / (compositions[heavy] @ free_atoms())
    kinds: Sequence[Per] = (spec.per, *(per for per in get_args(Per) if per != spec.per))
    for per in kinds:
        scale = 1 if per == spec.per else n_atoms if per == "atom" else 1 / n_atoms
        for unit in (spec.unit, *(unit for unit in ENERGY_UNITS if unit != spec.unit)):
            factor = ENERGY_UNITS[unit] / spec.energy_factor
            if float(np.mean(np.abs(ratio * scale * factor - 1) < _CLOSE)) >= _MOST:
                return unit, per
    return None


def _spread(spec: LabelSpec, energies: np.ndarray, compositions: np.ndarray, kind: str, source: str) -> list[str]:
    present = np.flatnonzero(compositions.any(axis=0))
    n_compositions = len(np.unique(compositions, axis=0))
    # In a series of homologues the elements explain nearly all.
    if n_compositions < max(_MANY_COMPOSITIONS, 3 * len(present)) or len(present) < _MANY_ELEMENTS:
        return []
    counts = compositions[:, present].astype(np.float64)
    left = energies - counts @ np.linalg.lstsq(counts, energies, rcond=None)[0]
    spread = float(np.mean(np.abs(left) / np.sqrt(counts.sum(axis=1))))
    low, high = _SPREAD[kind]
    if low <= spread <= high or spread < 1e-9:
        return []
    usual = np.sqrt(low * high)
    unit = min(ENERGY_UNITS, key=lambda u: abs(np.log(spread * ENERGY_UNITS[u] / spec.energy_factor / usual)))
    return [
        f"{source}: the labels '{spec.name}', read as {_read_as(spec)}, spread "
        f"{'less' if spread < low else 'more'} than such energies do: {spread:.2g} eV per √atom are left after an "
        f"energy for each element, where {low:g} to {high:g} are usual. If they are stored in another unit, such as "
        f"{unit}, give data.unit={unit} (evaluate: --unit {unit})"
    ]
