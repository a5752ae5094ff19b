"""Errors of energies and forces, over a set and by element, adsorbate or size, beside their predicted uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.data import chemical_symbols

from molflt.errors import InputError
from molflt.model.config import LEVELS, Uncertainty
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


FEWEST = 19
"""Fewest structures for which the largest error is the quantile of the highest level."""
_HALVINGS = 20
_FLOORS = np.geomspace(0.01, 100.0, 81)
"""Floors to try, in units of the mean spread."""


@dataclass(frozen=True)
class Calibration:
    """Comparison of errors with their predicted spread.

    Attributes:
        n: structures.
        factor: √⟨error²/std²⟩, by which the spread must be multiplied: the scale of maximum likelihood under a normal
            distribution. Above 1, the ensemble is overconfident, as ensembles usually are.
        coverage: share of errors within the central interval of each probability of ``LEVELS``, with the spread as
            it is.
        calibrated_coverage: the same with the spread multiplied by ``factor``.
        nll: mean negative log likelihood, for energies in eV, with the spread as it is.
        calibrated_nll: the same with the spread multiplied by ``factor``.
        rank_correlation: Spearman's, of std and |error|: high if the spread shows which structures are hard; NaN if
            all are equal.
    """

    n: int
    factor: float
    coverage: tuple[float, ...]
    calibrated_coverage: tuple[float, ...]
    nll: float
    calibrated_nll: float
    rank_correlation: float

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name, with the probabilities of the coverages."""
        return {**asdict(self), "levels": LEVELS}

    def lines(self) -> list[str]:
        """Describe the numbers in words, a line each."""
        return [
            f"  spread × {self.factor:.2f} would fit the errors of {self.n:,} structures",
            f"  {'within the interval of':<26}" + "  ".join(f"{level:>6.1%}" for level in LEVELS),
            f"  {'  as predicted':<26}" + "  ".join(f"{share:>6.1%}" for share in self.coverage),
            f"  {'  multiplied':<26}" + "  ".join(f"{share:>6.1%}" for share in self.calibrated_coverage),
            *(
                []
                if np.isnan(rank := self.rank_correlation)
                else [f"  rank correlation of spread and error {rank:.2f}"]
            ),
        ]


def calibrate(predicted: np.ndarray, std: np.ndarray, expected: np.ndarray) -> Calibration:
    """Compare errors with their predicted spread.

    Args:
        predicted: (n,) eV, means.
        std: (n,) eV, standard deviations.
        expected: (n,) eV, labels.

    Raises:
        InputError: fewer than two structures, or members that agree exactly.
    """
    # Takes a second to import, and a single model does not need it.
    from scipy.stats import norm, spearmanr

    error = np.asarray(predicted, dtype=np.float64) - np.asarray(expected, dtype=np.float64)
    std = np.asarray(std, dtype=np.float64)
    if len(error) < 2:
        raise InputError("calibration needs at least two labelled structures, preferably hundreds")
    if not np.all(std > 0):
        raise InputError("calibration needs members that differ: their predictions agree exactly")
    factor = float(np.sqrt(((error / std) ** 2).mean()))
    # Perfect predictions leave the spread as it is.
    calibrated = std * factor if factor > 0 else std

    def coverage(spread: np.ndarray) -> tuple[float, ...]:
        return tuple(float((np.abs(error / spread) <= norm.ppf((1 + level) / 2)).mean()) for level in LEVELS)

    constant = len(np.unique(std)) == 1 or len(np.unique(np.abs(error))) == 1
    return Calibration(
        n=len(error),
        factor=factor,
        coverage=coverage(std),
        calibrated_coverage=coverage(calibrated),
        nll=float(-norm.logpdf(error, scale=std).mean()),
        calibrated_nll=float(-norm.logpdf(error, scale=calibrated).mean()),
        rank_correlation=float("nan") if constant else float(spearmanr(std, np.abs(error)).statistic),
    )


def measure(
    predicted: np.ndarray, spread: np.ndarray, expected: np.ndarray, n_members: int, data: str
) -> Uncertainty:
    """Measure intervals that contain the errors, see :mod:`molflt.model.config`.

    The floor is that of maximum likelihood under a Laplace distribution whose scale is proportional to floor +
    spread.

    Args:
        predicted: (n,) eV, for structures not used in training.
        spread: (n,) eV, standard deviations over the members; zeros for one model.
        expected: (n,) eV, labels.
        n_members: number of models whose mean is predicted.
        data: description of the structures, for people.

    Raises:
        InputError: fewer than 19 structures.
    """
    error, spread = np.abs(np.asarray(predicted) - np.asarray(expected)), np.asarray(spread, dtype=np.float64)
    if len(error) < FEWEST:
        raise InputError(
            f"{data}: {len(error)} labelled structures are too few to measure an uncertainty; give {FEWEST}"
        )
    floor, multiples = fit_intervals(error, spread)
    return Uncertainty(
        n_members=n_members,
        floor=floor,
        multiples=multiples,
        coverage=cross_fitted(error, spread).mean(axis=0).tolist(),
        data=data,
        n_structures=len(error),
    )


def cross_fitted(error: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(n, n_levels) rates at which intervals fitted to other structures contain each error.

    Intervals fitted to one half of the structures are tested on the other, in both directions, for 20 random halves.

    Args:
        error: (n,) eV, absolute.
        spread: (n,) eV.
    """
    random, inside = np.random.default_rng(0), np.zeros((len(error), len(LEVELS)))
    for _ in range(_HALVINGS):
        order = random.permutation(len(error))
        for half, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            floor, multiples = fit_intervals(error[half], spread[half])
            inside[other] += error[other, None] <= np.outer(floor + spread[other], multiples)
    return inside / _HALVINGS


def fit_intervals(error: np.ndarray, spread: np.ndarray) -> tuple[float, list[float]]:
    """Fit the floor, eV, and the multiples of floor + spread that bound shares ``LEVELS`` of errors.

    Args:
        error: (n,) eV, absolute.
        spread: (n,) eV.
    """
    floor = 1.0
    if spread.any():
        floors = _FLOORS * spread.mean()
        scales = floors[:, None] + spread
        floor = float(floors[(np.log(scales).mean(axis=1) + np.log((error / scales).mean(axis=1))).argmin()])
    # One more than there are, so that a new error is below with at least that probability.
    ranks = np.minimum(np.ceil(np.multiply(LEVELS, len(error) + 1)), len(error)).astype(int)
    # Perfect predictions have widths above zero, too.
    return floor, np.maximum(np.sort(error / (floor + spread))[ranks - 1], 1e-12).tolist()
