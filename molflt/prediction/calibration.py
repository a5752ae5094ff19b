"""Is the spread of an ensemble as large as its errors?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from molflt.errors import InputError

LEVELS = (0.5, 0.683, 0.9, 0.95)
"""Probabilities of the central intervals that are checked."""


@dataclass(frozen=True)
class Calibration:
    """Errors compared with the spread that was predicted for them.

    Attributes:
        n: structures.
        factor: what the spread must be multiplied by: √⟨error²/std²⟩, the scale of largest likelihood under a
            normal distribution. Above 1, the ensemble is too sure of itself, as ensembles are.
        coverage: share of errors within the central interval of each probability of ``LEVELS``, with the spread as
            it is.
        calibrated_coverage: the same with the spread multiplied by ``factor``.
        nll: eV-based mean negative log likelihood with the spread as it is.
        calibrated_nll: the same, multiplied.
        rank_correlation: Spearman's, of std and |error|: whether it knows which structures are hard; NaN where all
            are equal.
    """

    n: int
    factor: float
    coverage: tuple[float, ...]
    calibrated_coverage: tuple[float, ...]
    nll: float
    calibrated_nll: float
    rank_correlation: float

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, with the probabilities that the coverages belong to."""
        return {**asdict(self), "levels": LEVELS}

    def lines(self) -> list[str]:
        """The numbers in words, a line each."""
        return [
            f"  spread × {self.factor:.2f} would fit the errors of {self.n:,} structures",
            f"  {'within the interval of':<26}" + "  ".join(f"{level:>6.1%}" for level in LEVELS),
            f"  {'  as predicted':<26}" + "  ".join(f"{share:>6.1%}" for share in self.coverage),
            f"  {'  multiplied':<26}" + "  ".join(f"{share:>6.1%}" for share in self.calibrated_coverage),
            f"  rank correlation of spread and error {self.rank_correlation:.2f}",
        ]


def calibrate(predicted: np.ndarray, std: np.ndarray, expected: np.ndarray) -> Calibration:
    """Compare errors with the spread predicted for them.

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
