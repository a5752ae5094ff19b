"""What the figures show, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np

from molflt.report.learning_curves import best_point, learning_curves, log_ticks
from molflt.report.parity import MOST_POINTS, limits, shown
from tests.report.conftest import evaluated_set, evaluation_of


def test_learning_curves() -> None:
    records = [
        {"epoch": 0, "step": 1, "val/energy_mae": 3.0, "train/energy_mae": 5.0},
        {"epoch": 2, "step": 2, "val/energy_mae": 1.0, "train/energy_mae": 4.0, "b/energy_mae": 0.5},
        {"epoch": 4, "step": 3, "val/energy_mae": 2.0},
    ]
    curves = learning_curves(records, "energy_mae")
    assert [curve.split for curve in curves] == ["train", "val", "b"]
    assert curves[1].epochs.tolist() == [1, 3, 5]
    assert best_point(curves) == ("val", 3, 1.0)
    assert best_point(curves[:1]) is None
    assert learning_curves(records, "force_mae") == []
    assert len(log_ticks(curves)) >= 3


def test_parity_shows_a_sample_of_a_large_set() -> None:
    n = 3 * MOST_POINTS
    (one,) = evaluated_set(n=1).structures
    large = evaluation_of([one] * n, np.zeros(n), np.full(n, 0.5))
    (chosen,) = shown([large])
    assert len(chosen) == len(set(chosen)) == MOST_POINTS
    assert (shown([large])[0] == chosen).all()
    low, high = limits([large])
    assert low < 0
    assert high > 0.5
    low, high = limits([evaluated_set(n=1)])
    assert low < high
