"""Contents of the figures against numbers worked out by hand."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from molflt.prediction.metrics import by_element
from molflt.report.curves import Curve, best_epoch, best_point, learning_curves
from molflt.report.figures import (
    MOST_POINTS,
    draw_forces,
    draw_groups,
    draw_learning,
    draw_parity,
    draw_residuals,
    figure,
    limits,
    shown,
)
from molflt.report.page import svg
from tests.report.conftest import evaluated_set, evaluation_of


def test_learning_curves():
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


def test_parity_shows_a_sample_of_a_large_set():
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


def test_forces_of_free_atoms_are_compared_on_one_scale():
    whole = evaluated_set(n=2)
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
    assert metrics.force_mae == pytest.approx(np.abs(error).mean())
    assert metrics.force_rmse == pytest.approx((error**2).mean() ** 0.5)
    (axes,) = figure(draw_forces, [found]).axes
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_xlim()[1] < 10
    x, y = axes.lines[0].get_data()
    np.testing.assert_allclose(y - x, error)


def test_points_and_bars_are_the_numbers():
    found = evaluated_set(n=8, std=True)
    for draw, y in ((draw_parity, found.predicted), (draw_residuals, found.error)):
        drawn = figure(draw, [found], "energy")
        (axes,) = drawn.axes
        points = next(line for line in axes.lines if line.get_marker() == "o")
        np.testing.assert_array_equal(points.get_data(), [found.expected, y])
        (bars,) = axes.collections
        ends = np.array([part[:, 1] for part in bars.get_segments()])
        np.testing.assert_allclose(ends, np.stack([y - found.uncertainty_eV, y + found.uncertainty_eV], axis=1))
        assert axes.get_xlabel().endswith("eV")
        assert axes.get_ylabel().endswith("eV")
        square = draw is draw_parity
        assert (axes.get_aspect() == 1) == (axes.get_xlim() == axes.get_ylim()) == square
        assert (f"MAE {np.abs(found.error).mean():.4f} eV" in axes.get_title()) == square
    groups = by_element([found])
    (axes,) = figure(draw_groups, groups, "element").axes
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(groups.mae[0])
    assert [text.get_text() for text in axes.texts] == [str(n) for n in groups.n[0]]


def test_on_a_page_each_point_tells_its_structure():
    found = evaluated_set("值 $x$ \x1b", n=8)
    place = svg(figure(draw_parity, [found], "energy"))
    root = ElementTree.fromstring(place)
    assert "值 $x$ \\x1b: 8 structures" in "".join(root.itertext())
    dots = [element for element in root.iter() if element.tag.endswith("}use") and len(element)]
    places = np.array([[float(element.attrib[key]) for key in ("x", "y")] for element in dots])
    for drawn, y in zip(places.T, (found.expected, -found.predicted), strict=True):
        np.testing.assert_allclose(np.corrcoef(drawn, y)[0, 1], 1)
    texts = ["".join(element.itertext()) for element in dots]
    for k, text in enumerate(texts):
        name, formula = found.table.names[k], found.table.formulas[k]
        assert text.startswith(f"{name}\n{formula}\nexpected {found.expected[k]:.4f} eV")


def test_a_narrow_range_has_numbers_on_its_logarithmic_axis():
    for values in ([0.62, 0.65, 0.68], [0.011, 0.4, 9.0]):
        curve = Curve("val", np.arange(1, 4), np.array(values))
        (axes,) = figure(draw_learning, [curve], "MAE / eV", None).axes
        axes.figure.draw_without_rendering()
        shown = [t for minor in (False, True) for t in axes.yaxis.get_ticklocs(minor=minor)]
        assert 2 <= sum(values[0] <= t <= values[-1] for t in shown) <= 12
