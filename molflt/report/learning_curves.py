"""The metrics of a run over its epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TRAIN = "train"


@dataclass(frozen=True)
class Curve:
    """One metric of one split.

    Attributes:
        split: ``train`` or the name of a validation split.
        epochs: (n,) counted from one.
        values: (n,).
    """

    split: str
    epochs: np.ndarray
    values: np.ndarray


def learning_curves(records: Sequence[dict[str, Any]], metric: str) -> list[Curve]:
    """A metric such as ``energy_mae`` of every split that has it; training first.

    Args:
        records: one per validated epoch, see :func:`molflt.training.run_directory.read_records`.
        metric: its name after the slash.
    """
    splits = dict.fromkeys(
        key.rpartition("/")[0] for record in records for key in record if key.endswith(f"/{metric}")
    )
    found = []
    for split in sorted(splits, key=lambda name: name != TRAIN):
        points = [(r["epoch"], r[f"{split}/{metric}"]) for r in records if f"{split}/{metric}" in r]
        epochs, values = zip(*points, strict=True)
        found.append(Curve(split, np.array(epochs), np.array(values, dtype=np.float64)))
    return found


def best_epoch(records: Sequence[dict[str, Any]]) -> int | None:
    """The epoch, counted from one, whose model a run keeps as best; None where the records do not say."""
    return int(records[-1]["best_epoch"]) if records and "best_epoch" in records[-1] else None


def best_point(curves: Sequence[Curve], epoch: int | None = None) -> tuple[int, float] | None:
    """Epoch and value of the first validation split at an epoch; None: that of the smallest value."""
    first = next((curve for curve in curves if curve.split != TRAIN), None)
    if first is None:
        return None
    k = int(np.argmin(first.values) if epoch is None else np.searchsorted(first.epochs, epoch))
    return int(first.epochs[k]), float(first.values[k])


def log_ticks(curves: Sequence[Curve]) -> list[float]:
    """Values to mark on a logarithmic axis: at least two, also where the curves span less than a decade."""
    values = np.concatenate([curve.values for curve in curves])
    values = values[values > 0]
    if not len(values):
        return [1.0]
    low, high = float(values.min()), float(values.max())
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    for digits in ((1,), (1, 2, 5), (1, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [digit * 10.0**k for k in range(first, last + 1) for digit in digits]
        inside = [float(f"{tick:.6g}") for tick in ticks if 0.9 * low <= tick <= 1.1 * high]
        if len(inside) >= 3:
            return inside
    return np.round(np.linspace(low, high, 4), 3 - int(np.floor(np.log10(low)))).tolist()
