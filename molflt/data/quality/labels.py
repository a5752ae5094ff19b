"""Checks for energies of another unit or kind than stated, and for outliers among labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from ase import units

from molflt.data.labels import ENERGY_UNITS, LabelSpec
from molflt.errors import InputError
from molflt.vocabulary import MAX_ATOMIC_NUMBER, Per

_CLOSE = 0.12
"""Relative deviation from the sum over free atoms within which energies are totals of all electrons. Bonds and
relativity make a few per cent, and the next unit is a factor of four away."""
_MOST = 0.9
"""Share of structures that must agree."""
_PER_ATOM, _LARGE = 2.0, 30.0
"""eV per atom and eV: adsorption energies are smaller, at the median 0.4 and 7 for atoms in monolayers on slabs."""
_SPREAD = {"energy": (0.015, 1.5), "adsorption": (0.015, 0.55)}
"""eV per √atom: residual spread after a fit of an energy per element, in sets of many compositions: 0.17 in QM7 and
0.19 in perovskites, 0.04 to 0.30 for adsorption. A wrong unit is a factor of 23 at least."""
_MANY_COMPOSITIONS, _MANY_ELEMENTS = 20, 3


def free_atoms() -> np.ndarray:
    """Energies of free atoms with all electrons, (119,) eV, to about 1 % from carbon on.

    The semi-classical series of Schwinger (Phys. Rev. A 24, 2353, 1981); hydrogen exactly.
    """
    z = np.arange(MAX_ATOMIC_NUMBER + 1, dtype=np.float64)
    energies = -units.Hartree * (0.768745 * z ** (7 / 3) - 0.5 * z**2 + 0.269900 * z ** (5 / 3))
    energies[1] = -units.Hartree / 2
    return energies


def doubts(spec: LabelSpec, energies: np.ndarray, compositions: np.ndarray, source: str) -> list[str]:
    """Warnings about the energies of a set, with the remedy.

    Args:
        spec: their declaration.
        energies: (n_structures,) eV, as read by ``spec``.
        compositions: (n_structures, 119) atoms of each atomic number.
        source: of the structures, for messages.

    Returns:
        Warnings, none of which is certain.

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
    """Unit and kind in which the energies are totals of all electrons; None if they are not."""
    # Hydrogen and helium alone are inconclusive: their energies are as small as those of valence electrons.
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
    # In a series of homologues the elements explain nearly everything.
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


_SIGMAS = 20.0
"""Robust standard deviations: QM7, perovskites, adsorbates on metals, dynamics of acetylacetone and clusters have at
most 3 to 10, and sets of 20 to 200 structures drawn from them up to 9."""
_FLOOR = 0.05
"""eV per √atom, or eV of adsorption: the least standard deviation assumed."""
_SURE = 16
"""Degrees of freedom for a reliable spread; with fewer, the threshold is higher."""
_GROUP, _LARGE_GROUP = 3, 6
"""Fewest structures of one composition for a comparison with each other, and for a spread of their own."""
_FITTED, _ROUNDS = 5_000, 40
_FEW, _SHARE = 3, 0.05
"""Most outliers, as a number or share of a set; more are a distribution with long tails."""
_NAMED = 3
_LARGEST_FORCE = 15.0
"""eV/Å: largest unsuspicious root mean square component of a structure; molecules at 1,200 K have 2."""


@dataclass(frozen=True)
class Outliers:
    """Outliers among structures, the worst first.

    Attributes:
        places: their indices in the given arrays.
        sizes: their deviations from the expected energy, eV, or their forces, eV/Å.
        others: the largest of the same among all others.
    """

    places: np.ndarray
    sizes: np.ndarray
    others: float

    def doubts(self, what: str, source: str, name: Callable[[int], str]) -> list[str]:
        """Name the first three, and count the others.

        Args:
            what: text about their energies or forces, with places for ``size`` and ``others``.
            source: of the structures, for messages.
            name: gives the name of the structure at an index.
        """
        words = [what.format(size=_number(size), others=_number(self.others)) for size in self.sizes[:_NAMED]]
        said = [f"{name(int(k))}: {text}" for k, text in zip(self.places, words, strict=False)]
        if (more := len(self.places) - _NAMED) > 0:
            said.append(f"{source}: {more:,} more structures are as far out of line")
        return said


def energies_out_of_line(
    energies: np.ndarray, kinds: np.ndarray, compositions: np.ndarray, additive: bool
) -> Outliers:
    """Find energies far from the prediction by composition, relative to the others' spread.

    Structures whose composition occurs several times are compared with its median; others with a sum of energies of
    the elements, fitted to all by least absolute deviations, which a single structure cannot distort. Free atoms are
    ignored.

    Args:
        energies: (n,) eV.
        kinds: (n,) index of each structure's composition.
        compositions: (n_compositions, 119) atoms of each atomic number.
        additive: whether energies are totals, to which every atom adds; adsorption energies are compared with the
            median of all.
    """
    if not additive:
        deviations = energies - np.median(energies)
        spread = _robust_spread(deviations, len(energies) - 1)
        return _beyond(np.abs(deviations), np.abs(deviations) / spread)
    n_atoms, members = compositions.sum(axis=1), np.bincount(kinds, minlength=len(compositions))
    counts = compositions[:, compositions.any(axis=0)].astype(np.float64)
    bound, grouped = n_atoms > 1, members >= _GROUP
    fitted = np.flatnonzero(bound[kinds])
    fitted = fitted[:: max(1, len(fitted) // _FITTED)]
    root = np.sqrt(n_atoms)[kinds]
    left = (energies - counts[kinds] @ _element_energies(energies[fitted], counts[kinds[fitted]])) / root
    medians = _of_groups(left, kinds, members)
    within = np.abs(left - medians[kinds])
    inner = _robust_spread(within[grouped[kinds]], int((members[grouped] - 1).sum()))
    own = np.maximum(1.4826 * _of_groups(within, kinds, members, upper=True), inner)
    # A fit can match as many compositions as there are elements, whatever their energies.
    outer = _robust_spread(medians[bound], int(bound.sum() - np.linalg.matrix_rank(counts[bound].T @ counts[bound])))
    outer = max(outer, inner) if grouped.any() else outer
    small = (members < _LARGE_GROUP) & np.isfinite(outer)
    scales = np.where(grouped, np.where(small, np.maximum(own, outer), own), outer)
    # The fit knows nothing about elements that occur only in free atoms or in structures not used for it.
    unknown = counts[:, ~counts[kinds[fitted]].any(axis=0)].any(axis=1)
    scales[~grouped & (~bound | unknown)] = np.inf
    sizes = np.where(grouped[kinds], within, np.abs(left))
    return _beyond(sizes * root, sizes / scales[kinds])


def _element_energies(energies: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n_elements,) eV: least absolute deviations per √atom, by reweighted least squares."""
    root = np.sqrt(counts.sum(axis=1))
    rows, values = counts / root[:, None], energies / root
    found = np.linalg.lstsq(rows, values, rcond=None)[0]
    for _ in range(_ROUNDS if len(rows) else 0):
        left = values - rows @ found
        sizes = np.abs(left)
        weighted = rows / (sizes + 1e-3 * np.median(sizes) + 1e-9)[:, None]
        found = found + np.linalg.lstsq(rows.T @ weighted, weighted.T @ left, rcond=None)[0]
    return found


def _of_groups(values: np.ndarray, kinds: np.ndarray, members: np.ndarray, upper: bool = False) -> np.ndarray:
    """(n_groups,) median of each group; if even, the mean or the upper of the middle two."""
    ordered = values[np.lexsort((values, kinds))]
    begins = np.cumsum(members) - members
    high = ordered[begins + members // 2]
    return high if upper else (high + ordered[begins + (members - 1) // 2]) / 2


def forces_out_of_line(sizes: np.ndarray) -> Outliers:
    """Find implausibly large forces among structures whose other forces are smaller.

    Args:
        sizes: (n,) eV/Å, root mean square component of each structure.
    """
    usual = float(np.median(sizes)) if len(sizes) else 0.0
    return _beyond(sizes, sizes / max(_LARGEST_FORCE / _SIGMAS, usual))


def _beyond(sizes: np.ndarray, ratios: np.ndarray) -> Outliers:
    beyond = ratios > _SIGMAS
    if beyond.sum() > max(_FEW, _SHARE * len(ratios)):
        beyond[:] = False
    found = np.flatnonzero(beyond)
    found = found[np.argsort(-sizes[found], kind="stable")]
    # A ratio of zero: equal to the expected value, or not judged.
    return Outliers(found, sizes[found], float(sizes[~beyond & (ratios > 0)].max(initial=0.0)))


def _robust_spread(deviations: np.ndarray, freedom: int) -> float:
    """Standard deviation estimated from the median; infinite without degrees of freedom."""
    if freedom < 1:
        return np.inf
    middle = np.sort(np.abs(deviations))[len(deviations) - freedom + freedom // 2]
    return float(max(1.4826 * middle, _FLOOR) * max(1.0, _SURE / freedom))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
