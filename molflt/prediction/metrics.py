"""The numbers by which energies and forces are judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from molflt.model.standardiser import mean_absolute_deviation

EWT_THRESHOLD = 0.02
"""eV; an energy counts as within threshold below it (OC20)."""


@dataclass(frozen=True)
class EnergyMetrics:
    """Errors of predicted energies on one labelled set.

    Attributes:
        n: structures.
        energy_mae: mean absolute error, eV.
        energy_rmse: root mean square error, eV.
        ewt: share of errors below 0.02 eV.
        mad: mean absolute deviation of the targets, less reference energies, from their mean, eV: the error of the
            best constant, nearly.
        mae_over_mad: the first divided by the last; 1 is no better than a constant.
    """

    n: int
    energy_mae: float
    energy_rmse: float
    ewt: float
    mad: float
    mae_over_mad: float


@dataclass(frozen=True)
class ForceMetrics:
    """Errors of the components of predicted forces on one labelled set; NaN where no atom is free to move.

    Attributes:
        force_mae: mean absolute error, eV/Å.
        force_rmse: root mean square error, eV/Å.
        force_rms: root mean square of the labels, eV/Å: the error of a model that knows no forces.
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
    """Compare energies (n,) eV with their targets (n,) eV; ``references`` (n,) eV are no part of the deviation."""
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
