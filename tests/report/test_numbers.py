"""What the figures show, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from molflt.data.sources import ListDataset, SubsetDataset
from molflt.errors import InputError
from molflt.report.coverage import coverage
from molflt.report.evaluated import DescribedSet, EvaluatedSet, describe
from molflt.report.group_errors import by_adsorbate, by_element, by_size, size_edges, worst
from molflt.report.learning_curves import best_point, learning_curves, log_ticks
from molflt.report.parity import MOST_POINTS, limits, shown
from tests.report.conftest import EVIL, evaluated_set


def _described(elements: list[set[int]], error: list[float], sizes: list[int], ads: list[str] | None) -> DescribedSet:
    n = len(error)
    return DescribedSet(
        name="s",
        path="p",
        structures=ListDataset([]),
        index=np.arange(n),
        expected=np.zeros(n),
        predicted=np.array(error),
        std=None,
        names=[str(i) for i in range(n)],
        formulas=[""] * n,
        elements=[frozenset(e) for e in elements],
        sizes=np.array(sizes),
        adsorbates=ads,
        n_failed=0,
    )


@pytest.fixture
def two_sets() -> list[DescribedSet]:
    first = _described([{1, 8}, {1, 6}, {8}], [1.0, -3.0, 2.0], [3, 5, 1], ["O", "H", "O"])
    return [first, _described([{1}], [-4.0], [2], None)]


def test_by_element(two_sets: list[DescribedSet]) -> None:
    found = by_element(two_sets)
    # pooled: C 3, H (1 + 3 + 4)/3, O 1.5
    assert found.groups == ["C", "H", "O"]
    assert found.n.tolist() == [[1, 2, 2], [0, 1, 0]]
    np.testing.assert_allclose(found.mae, [[3, 2, 1.5], [np.nan, 4, np.nan]])


def test_by_adsorbate(two_sets: list[DescribedSet]) -> None:
    found = by_adsorbate(two_sets)
    assert found is not None
    assert (found.groups, found.sets) == (["H", "O"], ["s"])
    np.testing.assert_allclose(found.mae, [[3, 1.5]])
    assert by_adsorbate(two_sets[1:]) is None


def test_by_size(two_sets: list[DescribedSet]) -> None:
    found = by_size(two_sets)
    assert found.groups == ["1", "2", "3–4", "5"]
    np.testing.assert_allclose(found.mae, [[2, np.nan, 1, 3], [np.nan, 4, np.nan, np.nan]])
    assert found.n.sum() == 4


@pytest.mark.parametrize("sizes", [[7], [7] * 50, [1, 1, 1, 900], list(range(1, 400))])
def test_size_edges_hold_every_size_once(sizes: list[int]) -> None:
    edges = size_edges(np.array(sizes))
    assert edges[0] == min(sizes)
    assert edges[-1] == max(sizes) + 1
    counts = np.histogram(sizes, bins=edges - 0.5)[0]
    assert counts.sum() == len(sizes)
    assert len(counts) <= 8
    if len(set(sizes)) > 100:
        assert counts.max() < 1.2 * counts.min()


def test_worst(two_sets: list[DescribedSet]) -> None:
    assert worst(two_sets[0]).tolist() == [1, 2, 0]
    assert worst(two_sets[0], 1).tolist() == [1]


def test_describe_leaves_out_failures() -> None:
    whole = evaluated_set(n=4)
    predicted = whole.predicted.copy()
    predicted[1] = np.nan
    found = describe(EvaluatedSet("v", "p", whole.structures, whole.expected, predicted))
    assert (len(found), found.n_failed, found.index.tolist()) == (3, 1, [0, 2, 3])
    assert found.names[0] == EVIL
    assert found.formulas[1] == "CH4"
    assert found.elements[2] == {29, 8} or found.elements[2] == {78, 8}
    assert found.sizes.tolist() == [3, 5, 9]
    with pytest.raises(InputError, match="nothing to report"):
        describe(EvaluatedSet("v", "p", whole.structures, whole.expected, np.full(4, np.nan)))


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


def test_coverage_of_a_normal_distribution() -> None:
    random = np.random.default_rng(0)
    std = random.uniform(0.1, 2, 20_000)
    found = coverage(std * random.normal(size=len(std)), std)
    np.testing.assert_allclose(found.found, found.expected, atol=0.02)
    assert found.expected[np.isclose(found.multiples, 1)] == pytest.approx(0.6827, abs=1e-4)


def test_parity_shows_a_sample_of_a_large_set() -> None:
    n = 3 * MOST_POINTS
    large = _described([{1}] * n, [0.5] * n, [1] * n, None)
    (chosen,) = shown([large])
    assert len(chosen) == len(set(chosen)) == MOST_POINTS
    assert (shown([large])[0] == chosen).all()
    low, high = limits([large])
    assert low < 0
    assert high > 0.5


def test_one_structure() -> None:
    whole = evaluated_set(n=2)
    one = EvaluatedSet("v", "p", SubsetDataset(whole.structures, [1]), whole.expected[1:], whole.predicted[1:])
    described = describe(one)
    assert by_size([described]).groups == ["9"]
    assert limits([described])[0] < limits([described])[1]
