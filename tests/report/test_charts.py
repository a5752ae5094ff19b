"""What the figures show, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from molflt.prediction.metrics import by_element
from molflt.report.charts import MOST_POINTS, forces_panel, groups_panel, limits, parity_panels, shown
from molflt.report.learning_curves import best_epoch, best_point, learning_curves, log_ticks
from molflt.report.page_figures import page_figure
from molflt.report.pictures import picture
from tests.report.conftest import evaluated_set, evaluation_of


def test_learning_curves() -> None:
    records = [
        {"epoch": 1, "step": 1, "val/energy_mae": 3.0, "train/energy_mae": 5.0},
        {"epoch": 3, "step": 2, "val/energy_mae": 1.0, "train/energy_mae": 4.0, "b/energy_mae": 0.5},
        {"epoch": 5, "step": 3, "val/energy_mae": 2.0},
    ]
    curves = learning_curves(records, "energy_mae")
    assert [curve.split for curve in curves] == ["train", "val", "b"]
    assert curves[1].epochs.tolist() == [1, 3, 5]
    assert best_point(curves) == (3, 1.0)
    assert best_point(curves[:1]) is None
    # What is best may be something else than the smallest value.
    assert best_epoch([*records, {"epoch": 7, "best_epoch": 5}]) == 5
    assert best_point(curves, 5) == (5, 2.0)
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


def test_forces_of_free_atoms_are_compared_on_one_scale() -> None:
    whole = evaluated_set(n=2)
    assert forces_panel([whole]) is None
    random = np.random.default_rng(0)
    expected = [random.normal(size=(n, 3)) for n in whole.table.sizes]
    predicted = [f + 0.3 * random.normal(size=f.shape) for f in expected]
    fixed = [np.arange(n) == 0 for n in whole.table.sizes]
    expected[0][0] = 1e3  # of an atom that is fixed
    found = replace(
        whole,
        table=replace(whole.table, forces=expected, fixed=fixed),
        prediction=replace(whole.prediction, forces=predicted),
    )
    error = np.concatenate([(p - e)[1:].ravel() for p, e in zip(predicted, expected, strict=True)])
    metrics = found.force_metrics
    assert metrics is not None
    assert metrics.force_mae == pytest.approx(np.abs(error).mean())
    assert metrics.force_rmse == pytest.approx((error**2).mean() ** 0.5)
    panel = forces_panel([found])
    assert panel is not None
    assert panel.square
    assert panel.x_range == panel.y_range
    assert panel.x_range[1] < 10
    np.testing.assert_allclose(panel.series[1].y - panel.series[1].x, error)


def test_both_drawings_show_the_same_numbers() -> None:
    """The points and bars of one chart in plotly and in matplotlib, against the evaluation."""
    found = evaluated_set(n=8, std=True)
    panels = parity_panels([found], "energy")
    interactive = [page_figure([panel], 400) for panel in panels]
    assert [panel.x.count("eV") + panel.y.count("eV") for panel in panels] == [1, 2]
    assert [figure.layout.yaxis.scaleanchor for figure in interactive] == ["x", None]
    for k, y in enumerate((found.predicted, found.error)):
        (trace,) = [t for t in interactive[k].data if t.mode == "markers"]
        (axes,) = picture([panels[k]]).axes
        points = axes.lines[-1]
        for x_drawn, y_drawn in ((trace.x, trace.y), points.get_data()):
            np.testing.assert_array_equal(x_drawn, found.expected)
            np.testing.assert_array_equal(y_drawn, y)
        np.testing.assert_array_equal(trace.error_y.array, found.std)
        assert len(axes.collections) == 1
    assert f"MAE {np.abs(found.error).mean():.4f} eV" in panels[0].title
    groups = by_element([found])
    panel = groups_panel(groups, "element")
    assert list(page_figure([panel], 330).data[0].y) == pytest.approx(groups.mae[0])
    (axes,) = picture([panel]).axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(groups.mae[0])
    assert [text.get_text() for text in axes.texts] == [str(n) for n in groups.n[0]]
