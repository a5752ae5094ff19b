"""Structures whose energies or forces are out of line with those of all others of a set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_SIGMAS = 20.0
"""Robust standard deviations: QM7, perovskites, adsorbates on metals, dynamics of acetylacetone and clusters have 3
to 10 at most, and sets of 20 to 200 structures drawn from them up to 9."""
_FLOOR = 0.05
"""eV per √atom, or eV of adsorption: a standard deviation is taken to be no smaller."""
_SURE = 16
"""Degrees of freedom from which a spread is known well enough; with fewer, more of it is asked for."""
_GROUP, _LARGE = 3, 6
"""Structures of one composition from which they are compared with each other, and from which by their own spread."""
_FITTED, _ROUNDS = 5_000, 40
_FEW, _SHARE = 3, 0.05
"""Structures, or their share of a set, that may be out of line; more are a distribution with long tails."""
_NAMED = 3
_FORCE = 15.0
"""eV/Å: root mean square component of a structure up to which nothing is said; molecules at 1,200 K have 2."""


@dataclass(frozen=True)
class Outliers:
    """What is out of line, the worst first.

    Attributes:
        places: in the arrays that were given.
        sizes: by how much: eV from what is expected, or eV/Å.
        others: the largest of the same among all others.
    """

    places: np.ndarray
    sizes: np.ndarray
    others: float

    def doubts(self, what: str, source: str, name: Callable[[int], str]) -> list[str]:
        """Name the first three, and count the others.

        Args:
            what: their energies or forces are, with places for ``size`` and ``others``.
            source: of the structures, for messages.
            name: gives the name of the structure at a place.
        """
        words = [what.format(size=_number(size), others=_number(self.others)) for size in self.sizes[:_NAMED]]
        said = [f"{name(int(k))}: {text}" for k, text in zip(self.places, words, strict=False)]
        if (more := len(self.places) - _NAMED) > 0:
            said.append(f"{source}: {more:,} more structures are as far out of line")
        return said


def energies_out_of_line(
    energies: np.ndarray, kinds: np.ndarray, compositions: np.ndarray, additive: bool
) -> Outliers:
    """Energies far from what composition explains, by the spread of the others.

    Structures of a composition that several have are compared with its median; others with a sum of energies of the
    elements that is fitted to all by least absolute deviations, on which one structure has no pull. Free atoms are
    left aside.

    Args:
        energies: (n,) eV.
        kinds: (n,) which composition each structure has.
        compositions: (n_compositions, 119) atoms of each atomic number.
        additive: whether energies are totals, to which every atom adds; energies of adsorption are compared with the
            median of all.
    """
    if not additive:
        deviations = energies - np.median(energies)
        spread = _spread(deviations, len(energies) - 1)
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
    inner = _spread(within[grouped[kinds]], int((members[grouped] - 1).sum()))
    own = np.maximum(1.4826 * _of_groups(within, kinds, members, upper=True), inner)
    # A fit meets as many compositions as there are elements, whatever their energies.
    outer = _spread(medians[bound], int(bound.sum() - np.linalg.matrix_rank(counts[bound].T @ counts[bound])))
    outer = max(outer, inner) if grouped.any() else outer
    small = (members < _LARGE) & np.isfinite(outer)
    scales = np.where(grouped, np.where(small, np.maximum(own, outer), own), outer)
    # Of elements that only free atoms or structures beyond the fit have, it knows nothing.
    unknown = counts[:, ~counts[kinds[fitted]].any(axis=0)].any(axis=1)
    scales[~grouped & (~bound | unknown)] = np.inf
    sizes = np.where(grouped[kinds], within, np.abs(left))
    return _beyond(sizes * root, sizes / scales[kinds])


def _element_energies(energies: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(n_elements,) eV: least absolute deviations per √atom, by least squares that are weighted anew."""
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
    """(n_groups,) the median of each group, of an even number the mean or the upper of the two in the middle."""
    ordered = values[np.lexsort((values, kinds))]
    begins = np.cumsum(members) - members
    high = ordered[begins + members // 2]
    return high if upper else (high + ordered[begins + (members - 1) // 2]) / 2


def forces_out_of_line(sizes: np.ndarray) -> Outliers:
    """Forces that are implausibly large where those of the other structures are not.

    Args:
        sizes: (n,) eV/Å, root mean square component of each structure.
    """
    usual = float(np.median(sizes)) if len(sizes) else 0.0
    return _beyond(sizes, sizes / max(_FORCE / _SIGMAS, usual))


def _beyond(sizes: np.ndarray, ratios: np.ndarray) -> Outliers:
    beyond = ratios > _SIGMAS
    if beyond.sum() > max(_FEW, _SHARE * len(ratios)):
        beyond[:] = False
    found = np.flatnonzero(beyond)
    found = found[np.argsort(-sizes[found], kind="stable")]
    # A ratio of zero: equal to what is expected, or not judged.
    return Outliers(found, sizes[found], float(sizes[~beyond & (ratios > 0)].max(initial=0.0)))


def _spread(deviations: np.ndarray, freedom: int) -> float:
    """A standard deviation by the median of as many deviations as a fit leaves free; infinite of none."""
    if freedom < 1:
        return np.inf
    middle = np.sort(np.abs(deviations))[len(deviations) - freedom + freedom // 2]
    return float(max(1.4826 * middle, _FLOOR) * max(1.0, _SURE / freedom))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
