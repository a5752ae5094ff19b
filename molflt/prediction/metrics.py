"""Error metrics of energies and forces, over a set and by element, adsorbate or size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ase.data import chemical_symbols

from molflt.model.scale_shift import mean_absolute_deviation

if TYPE_CHECKING:
    from molflt.prediction.evaluate import Evaluation

EWT_THRESHOLD = 0.02
"""eV; an energy counts as within threshold below it (OC20)."""
_SIZE_RANGES = 8


@dataclass(frozen=True)
class EnergyMetrics:
    """Errors of predicted energies on one labelled set.

    Attributes:
        n: structures.
        energy_mae: mean absolute error, eV.
        energy_rmse: root mean square error, eV.
        ewt: share of errors below 0.02 eV.
        mad: mean absolute deviation of the targets, less reference energies, from their mean, eV: nearly the error of
            the best constant.
        mae_over_mad: ``energy_mae`` divided by ``mad``; 1 is no better than a constant.
    """

    n: int
    energy_mae: float
    energy_rmse: float
    ewt: float
    mad: float
    mae_over_mad: float


@dataclass(frozen=True)
class ForceMetrics:
    """Errors of predicted force components on one labelled set; NaN if no atom is free to move.

    Attributes:
        force_mae: mean absolute error, eV/Å.
        force_rmse: root mean square error, eV/Å.
        force_rms: root mean square of the labels, eV/Å: the error of predicting no forces.
    """

    force_mae: float
    force_rmse: float
    force_rms: float


def force_metrics(predicted: np.ndarray, target: np.ndarray) -> ForceMetrics:
    """Compare components of forces, (n, 3) eV/Å, with their targets."""
    if not target.size:
        return ForceMetrics(*[float("nan")] * 3)
    error = predicted - target
    return ForceMetrics(float(np.abs(error).mean()), *(float(np.sqrt((x**2).mean())) for x in (error, target)))


def energy_metrics(predicted: np.ndarray, target: np.ndarray, references: np.ndarray | float = 0.0) -> EnergyMetrics:
    """Compare energies with their targets, both (n,) eV.

    ``references``, (n,) eV, are subtracted before the mean absolute deviation is taken.
    """
    error = np.abs(np.asarray(predicted, dtype=np.float64) - np.asarray(target, dtype=np.float64))
    mad = mean_absolute_deviation(target - references)
    mae = float(error.mean())
    return EnergyMetrics(
        n=len(error),
        energy_mae=mae,
        energy_rmse=float(np.sqrt((error**2).mean())),
        ewt=float((error < EWT_THRESHOLD).mean()),
        mad=mad,
        mae_over_mad=mae / mad if mad > 0 else float("nan"),
    )


@dataclass(frozen=True)
class GroupErrors:
    """One mean absolute error for each group of structures in each set.

    Attributes:
        groups: their names, in the order of display.
        sets: names of the sets.
        mae: (n_sets, n_groups) eV; NaN where a set has no such structure.
        n: (n_sets, n_groups) structures.
    """

    groups: list[str]
    sets: list[str]
    mae: np.ndarray
    n: np.ndarray

    def arranged(self, groups: Sequence[str]) -> GroupErrors:
        """Return the groups in another order; names that are not groups are ignored."""
        place = [self.groups.index(name) for name in groups if name in self.groups]
        return GroupErrors([self.groups[k] for k in place], self.sets, self.mae[:, place], self.n[:, place])

    def hardest_first(self) -> GroupErrors:
        """Sort the groups by their error over all sets, the largest first."""
        pooled = np.nansum(self.mae * self.n, axis=0) / self.n.sum(axis=0)
        return self.arranged([name for _, name in sorted(zip(-pooled, self.groups, strict=True))])


def by_element(sets: Sequence[Evaluation]) -> GroupErrors:
    """Errors of the structures that contain each element; the hardest element first."""
    return _grouped(sets, lambda s: [[chemical_symbols[z] for z in zs] for zs in s.table.elements]).hardest_first()


def by_adsorbate(sets: Sequence[Evaluation]) -> GroupErrors | None:
    """Errors of the structures with each adsorbate; the hardest first.

    Sets in which a structure names no adsorbate are left out; None if no set is left.
    """
    named = [s for s in sets if all(s.table.adsorbates)]
    if not named:
        return None
    return _grouped(named, lambda s: [[name] for name in s.table.adsorbates]).hardest_first()


def by_size(sets: Sequence[Evaluation]) -> GroupErrors:
    """Errors over ranges of sizes with about equally many structures; the smallest first."""
    edges = size_edges(np.concatenate([s.table.sizes for s in sets]))
    pairs = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), strict=True)
    ranges = [str(low) if low == high else f"{low}–{high}" for low, high in pairs]

    def groups(s: Evaluation) -> Iterable[list[str]]:
        return [[ranges[k]] for k in np.searchsorted(edges, s.table.sizes, side="right") - 1]

    return _grouped(sets, groups).arranged(ranges)


def size_edges(sizes: np.ndarray) -> np.ndarray:
    """Bounds e_0 < e_1 < ... of size groups: group k has at least e_k and below e_{k+1} atoms."""
    inner = np.quantile(sizes, np.linspace(0, 1, _SIZE_RANGES + 1)[1:-1], method="higher")
    edges: np.ndarray = np.unique(np.concatenate([[sizes.min()], inner, [sizes.max() + 1]]).astype(np.int64))
    return edges


def _grouped(sets: Sequence[Evaluation], groups: Callable[[Evaluation], Iterable[list[str]]]) -> GroupErrors:
    """Errors of groups in order of occurrence; ``groups`` names those of each structure."""
    errors: dict[str, list[list[float]]] = {}
    for k, evaluation in enumerate(sets):
        for names, error in zip(groups(evaluation), np.abs(evaluation.error), strict=True):
            for name in names:
                errors.setdefault(name, [[] for _ in sets])[k].append(error)
    n = np.array([[len(some) for some in of_sets] for of_sets in errors.values()]).T
    mae = np.array([[np.mean(some) if some else np.nan for some in of_sets] for of_sets in errors.values()]).T
    return GroupErrors(list(errors), [s.name for s in sets], mae, n)
