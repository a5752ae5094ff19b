"""Calibration of an ensemble's spread, and the widths of intervals that contain the errors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from molflt.errors import InputError
from molflt.model.uncertainty import LEVELS, Uncertainty

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
        raise InputError("calibration needs at least two labelled structures, better hundreds")
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
    """Measure intervals that contain the errors, see :mod:`molflt.model.uncertainty`.

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
    floor, multiples = _fit(error, spread)
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
            floor, multiples = _fit(error[half], spread[half])
            inside[other] += error[other, None] <= np.outer(floor + spread[other], multiples)
    return inside / _HALVINGS


def _fit(error: np.ndarray, spread: np.ndarray) -> tuple[float, list[float]]:
    """The floor, eV, and the multiples of floor + spread that bound shares ``LEVELS`` of errors."""
    floor = 1.0
    if spread.any():
        floors = _FLOORS * spread.mean()
        scales = floors[:, None] + spread
        floor = float(floors[(np.log(scales).mean(axis=1) + np.log((error / scales).mean(axis=1))).argmin()])
    # One more than there are, so that a new error is below with at least that probability.
    ranks = np.minimum(np.ceil(np.multiply(LEVELS, len(error) + 1)), len(error)).astype(int)
    # Perfect predictions have widths above zero, too.
    return floor, np.maximum(np.sort(error / (floor + spread))[ranks - 1], 1e-12).tolist()
