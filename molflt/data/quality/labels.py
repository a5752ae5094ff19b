"""Energies and forces that cannot be what they are said to be, or that are out of line with all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from ase import units
from scipy.spatial.distance import cdist, pdist
from torch_geometric.data import Data

from molflt.data.images import shortest_images
from molflt.data.labels import ENERGY_UNITS, FORCE_UNITS, LabelSpec
from molflt.errors import InputError
from molflt.vocabulary import MAX_ATOMIC_NUMBER, Per

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

_FORCE = 15.0
"""eV/Å: a root mean square component above it, at the median, is doubted; molecules at 1,200 K have 2."""

_KEPT_ATOMS, _KEPT = 50_000, 200
"""Atoms in all, and structures of the same atoms, that are compared."""

_NEAR, _DESCRIBED = 0.5, 64
"""Å that an atom may be moved between two geometries, and atoms by whose distances the nearest are found."""

_FEWEST_PAIRS, _CORRELATED, _OFF = 5, 0.85, 1.7
"""Pairs of geometries, how well work and energy must agree to say anything, and the factor between them from which
something is wrong: units are a factor of 1.9 apart at least. Of acetylacetone at 300 K it is 1.0 to 1.1."""


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


class ForceCheck:
    """Whether forces fit the energies: what they do between two geometries of the same atoms is the difference.

    For a quadratic energy E_a − E_b = ½(F_a + F_b)·(r_b − r_a) is exact. Geometries that are near each other are
    compared, once molecules are turned onto each other and atoms of a crystal moved to the nearest image.
    """

    def __init__(self, spec: LabelSpec) -> None:
        self.spec = spec
        self._alike: dict[tuple[bytes, ...], list[tuple[int, Data]]] = {}
        self._n_kept = 0
        self._sizes: list[float] = []

    def add(self, place: int, data: Data) -> None:
        """Another structure, with its label and forces, and its place in the set."""
        self._sizes.append(float(data.forces.square().mean().sqrt()))
        self._keep(tuple(data[name].numpy().tobytes() for name in ("atomic_numbers", "cell", "pbc")), place, data)

    def merge(self, later: ForceCheck) -> None:
        """Add what was found in structures that come later in the set."""
        self._sizes += later._sizes
        for key, some in later._alike.items():
            for place, data in some:
                self._keep(key, place, data)

    def _keep(self, key: tuple[bytes, ...], place: int, data: Data) -> None:
        alike = self._alike.setdefault(key, [])
        if len(alike) < _KEPT and self._n_kept < _KEPT_ATOMS:
            alike.append((place, data))
            self._n_kept += data.num_nodes

    def _compared(self, without: Collection[int]) -> tuple[np.ndarray, np.ndarray]:
        """Work in eV from every geometry to the nearest of the same atoms, and the energy it should have cost."""
        found: list[tuple[float, float]] = []
        for kept in self._alike.values():
            alike = [data for place, data in kept if place not in without]
            if len(alike) > 1 and len(alike[0].positions) > 1:
                shapes = [_shape(data, alike[0]) for data in alike]
                distances = cdist(shapes, shapes)
                np.fill_diagonal(distances, np.inf)
                nearest = distances.argmin(axis=1)
                pairs = {(min(k, other), max(k, other)) for k, other in enumerate(nearest.tolist())}
                found += [work for a, b in sorted(pairs) if (work := self._work(alike[a], alike[b])) is not None]
        pairwise = np.array(found, dtype=np.float64).reshape(-1, 2)
        return pairwise[:, 0], pairwise[:, 1]

    def _work(self, a: Data, b: Data) -> tuple[float, float] | None:
        """None where the geometries are too far apart."""
        (r_a, f_a), (r_b, f_b) = ((data.positions.numpy(), data.forces.numpy()) for data in (a, b))
        if bool(a.pbc.any()):
            moved = _moved(a, b)
        else:
            r_a, r_b = r_a - r_a.mean(axis=0), r_b - r_b.mean(axis=0)
            turn = _turning(r_b, r_a)
            moved, f_b = r_b @ turn - r_a, f_b @ turn
        if np.linalg.norm(moved, axis=1).max() > _NEAR:
            return None
        target = self.spec.target
        return float(((f_a + f_b) * moved).sum()) / 2, float(a[target]) - float(b[target])

    def doubts(self, source: str, without: Collection[int] = ()) -> list[str]:
        """What looks wrong with the forces, with the remedy; ``source`` as in :func:`doubts`.

        Structures at some places are left aside: one whose own forces or energy are wrong says nothing of the others.
        """
        work, difference = self._compared(without)
        sizes = float(np.linalg.norm(work)), float(np.linalg.norm(difference))
        if len(work) >= _FEWEST_PAIRS and min(sizes) > 0:
            agreement = float(work @ difference) / (sizes[0] * sizes[1])
            if abs(agreement) > _CORRELATED:
                return self._disagree(float(np.sign(agreement)) * sizes[1] / sizes[0], source)
        typical = float(np.median(self._sizes)) if self._sizes else 0.0
        if typical <= _FORCE:
            return []
        return [
            f"{source}: forces, read as {self._read_as}, have components of {typical:.3g} eV/Å (root mean square, "
            "median of structures), where 1 is usual. If they are stored in another unit, give --force-unit or, in "
            f"training, data.force_unit, such as {self._nearest(1 / typical)}"
        ]

    @property
    def _read_as(self) -> str:
        return self.spec.force_unit or f"{self.spec.unit}/Ang"

    def _nearest(self, factor: float) -> str:
        """The unit in which forces would be as many times what they are now."""
        now = self.spec.force_factor
        return min(FORCE_UNITS, key=lambda unit: abs(np.log(FORCE_UNITS[unit] / now / factor)))

    def _disagree(self, slope: float, source: str) -> list[str]:
        found = []
        if slope < 0:
            found.append("have the wrong sign, as derivatives of the energy would; store them with the other")
        if not 1 / _OFF < abs(slope) < _OFF:
            factor, unit = max(abs(slope), 1 / abs(slope)), self._nearest(abs(slope))
            found.append(
                f"are {'smaller' if abs(slope) > 1 else 'larger'} by a factor of {factor:.3g} than they should be; "
                f"if the energies are in {self.spec.unit}, give --force-unit or, in training, data.force_unit={unit}"
            )
        if not found:
            return []
        return [
            f"{source}: the forces, read as {self._read_as}, do not fit the energies: by differences of energy "
            f"between geometries of the same atoms they {' and '.join(found)}"
        ]


def _shape(data: Data, first: Data) -> np.ndarray:
    """Numbers by whose distance geometries of the same atoms are near or far, unchanged when a molecule turns."""
    if bool(data.pbc.any()):
        return _moved(first, data).ravel()
    shape: np.ndarray = pdist(data.positions[:_DESCRIBED].numpy())
    return shape


def _moved(a: Data, b: Data) -> np.ndarray:
    """(n, 3) Å: how far the atoms of ``a`` are moved in ``b``, to the nearest image."""
    return shortest_images((b.positions - a.positions).numpy(), a.cell[0].numpy(), a.pbc[0].numpy())[0]


def _turning(positions: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """(3, 3) rotation R with positions @ R nearest to others, both (n, 3) and centred (Kabsch 1976)."""
    u, _, v = np.linalg.svd(positions.T @ onto)
    rotation: np.ndarray = u @ np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ v)) or 1.0]) @ v
    return rotation


_SIGMAS = 20.0
"""Robust standard deviations: QM7, perovskites, adsorbates on metals, dynamics of acetylacetone and clusters have 3
to 10 at most, and sets of 20 to 200 structures drawn from them up to 9."""

_FLOOR = 0.05
"""eV per √atom, or eV of adsorption: a standard deviation is taken to be no smaller."""

_SURE = 16
"""Degrees of freedom from which a spread is known well enough; with fewer, more of it is asked for."""

_GROUP, _LARGE_GROUP = 3, 6
"""Structures of one composition from which they are compared with each other, and from which by their own spread."""

_FITTED, _ROUNDS = 5_000, 40

_FEW, _SHARE = 3, 0.05
"""Structures, or their share of a set, that may be out of line; more are a distribution with long tails."""

_NAMED = 3

_LARGEST_FORCE = 15.0
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
    # A fit meets as many compositions as there are elements, whatever their energies.
    outer = _robust_spread(medians[bound], int(bound.sum() - np.linalg.matrix_rank(counts[bound].T @ counts[bound])))
    outer = max(outer, inner) if grouped.any() else outer
    small = (members < _LARGE_GROUP) & np.isfinite(outer)
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
    return _beyond(sizes, sizes / max(_LARGEST_FORCE / _SIGMAS, usual))


def _beyond(sizes: np.ndarray, ratios: np.ndarray) -> Outliers:
    beyond = ratios > _SIGMAS
    if beyond.sum() > max(_FEW, _SHARE * len(ratios)):
        beyond[:] = False
    found = np.flatnonzero(beyond)
    found = found[np.argsort(-sizes[found], kind="stable")]
    # A ratio of zero: equal to what is expected, or not judged.
    return Outliers(found, sizes[found], float(sizes[~beyond & (ratios > 0)].max(initial=0.0)))


def _robust_spread(deviations: np.ndarray, freedom: int) -> float:
    """A standard deviation by the median of as many deviations as a fit leaves free; infinite of none."""
    if freedom < 1:
        return np.inf
    middle = np.sort(np.abs(deviations))[len(deviations) - freedom + freedom // 2]
    return float(max(1.4826 * middle, _FLOOR) * max(1.0, _SURE / freedom))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
