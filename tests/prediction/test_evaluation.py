"""Evaluations against numbers worked out by hand, and against predictions and labels read on their own."""

from collections import Counter

import numpy as np
import pytest

from molflt.data.dataset import ListDataset
from molflt.data.oc20.writer import write_lmdb
from molflt.data.reading import ReadOptions
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.prediction.evaluate import Evaluation, StructureTable, evaluate
from molflt.prediction.metrics import by_adsorbate, by_element, by_size, size_edges
from molflt.prediction.output import Prediction
from molflt.prediction.predict import predict


def invented(elements, error, sizes, adsorbates):
    """Numbers of structures that do not exist."""
    n = len(error)
    texts = [str(k) for k in range(n)]
    sets = [frozenset(e) for e in elements]
    table = StructureTable(texts, texts, sets, np.array(sizes), adsorbates, np.zeros(n), np.zeros(n))
    return Evaluation("s", "p", ListDataset([]), table, Prediction(np.array(error), texts, Counter()))


@pytest.fixture
def two_sets():
    first = invented([{1, 8}, {1, 6}, {8}], [1.0, -3.0, 2.0], [3, 5, 1], ["O", "H", "O"])
    return [first, invented([{1}], [-4.0], [2], [""])]


def test_errors_of_groups(two_sets):
    found = by_element(two_sets)
    # pooled: C 3, H (1 + 3 + 4)/3, O 1.5
    assert found.groups == ["C", "H", "O"]
    assert found.n.tolist() == [[1, 2, 2], [0, 1, 0]]
    np.testing.assert_allclose(found.mae, [[3, 2, 1.5], [np.nan, 4, np.nan]])
    adsorbates = by_adsorbate(two_sets)
    assert (adsorbates.groups, adsorbates.sets) == (["H", "O"], ["s"])
    np.testing.assert_allclose(adsorbates.mae, [[3, 1.5]])
    assert by_adsorbate(two_sets[1:]) is None
    sizes = by_size(two_sets)
    assert sizes.groups == ["1", "2", "3–4", "5"]
    np.testing.assert_allclose(sizes.mae, [[2, np.nan, 1, 3], [np.nan, 4, np.nan, np.nan]])
    assert sizes.n.sum() == 4
    assert two_sets[0].worst() == [1, 2, 0]
    assert two_sets[0].worst(1) == [1]
    assert by_size(two_sets[1:]).groups == ["2"]


@pytest.mark.parametrize("sizes", [[7] * 50, [1, 1, 1, 900], list(range(1, 400))])
def test_size_edges_hold_every_size_once(sizes):
    edges = size_edges(np.array(sizes))
    assert (edges[0], edges[-1]) == (min(sizes), max(sizes) + 1)
    counts = np.histogram(sizes, bins=edges - 0.5)[0]
    assert counts.sum() == len(sizes)
    assert len(counts) <= 8
    if len(set(sizes)) > 100:
        assert counts.max() < 1.2 * counts.min()


def test_every_number_of_an_evaluation(loaded, tiny_data, val_set):
    """Against energies and labels read without it, and errors worked out here."""
    found = evaluate(loaded, str(tiny_data / "val.lmdb"))
    expected = np.array([float(data.y_relaxed) for data in val_set])
    error = predict(loaded, val_set).energies - expected
    np.testing.assert_array_equal(found.expected, expected)
    np.testing.assert_array_equal(found.error, error)
    assert found.metrics.energy_mae == pytest.approx(np.abs(error).mean(), rel=1e-12)
    assert found.metrics.energy_rmse == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
    assert found.metrics.ewt == np.mean(np.abs(error) < 0.02)
    assert found.metrics.mad == pytest.approx(np.abs(expected - expected.mean()).mean(), rel=1e-12)
    assert (found.name, len(found), found.skipped) == ("val", 10, [])
    assert found.table.names == [data.name for data in val_set]
    assert found.table.sizes.tolist() == val_set.n_atoms.tolist()
    assert found.table.elements == [frozenset(data.atomic_numbers.tolist()) for data in val_set]
    assert found.table.formulas[0] == "H2O"
    assert found.std is found.calibration() is found.force_mae is None


def test_an_ensemble_has_a_spread(two, tiny_data):
    found = evaluate(two, str(tiny_data / "val.lmdb"))
    alone = np.stack([evaluate(member, str(tiny_data / "val.lmdb")).predicted for member in two])
    np.testing.assert_allclose(found.predicted, alone.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.std, alone.std(axis=0, ddof=1), rtol=1e-9)
    calibration = found.calibration()
    assert calibration.factor == pytest.approx(np.sqrt(((found.error / found.std) ** 2).mean()))


def test_bad_structures_stop_it_or_are_left_out(loaded, val_set, tmp_path, monkeypatch):
    """One that cannot be read, one without a number for a label, one whose energy cannot be computed."""
    records = [to_record(val_set[k]) for k in range(6)]
    records[1]["pos"] = records[1]["pos_relaxed"] = 0 * np.asarray(records[1]["pos"])
    records[3]["y_relaxed"] = float("nan")
    write_lmdb(tmp_path / "six.lmdb", records, progress=False)
    with pytest.raises(InputError, match=r"(?s)2 of 6 structures.*six\.lmdb#1: .* apart.*#3: .*NaN"):
        evaluate(loaded, str(tmp_path / "six.lmdb"))

    def fails_for_one(function):
        def computed(models, structures, *arguments):
            results = function(models, structures, *arguments)
            for data, (energies, *_) in zip(structures, results, strict=True):
                energies[:] = np.nan if data.name == val_set[5].name else energies
            return results

        return computed

    from molflt.prediction import predict as predictor

    monkeypatch.setattr(predictor, "_compute", fails_for_one(predictor._compute))
    found = evaluate(loaded, str(tmp_path / "six.lmdb"), options=ReadOptions(on_bad="skip"))
    assert found.table.names == found.prediction.names == [val_set[k].name for k in (0, 2, 4)]
    assert [data.name for data in found.structures] == found.table.names
    np.testing.assert_array_equal(found.expected, [float(val_set[k].y_relaxed) for k in (0, 2, 4)])
    assert np.isfinite(found.metrics.energy_rmse)
    for reason, word in zip(found.skipped, ("Å apart", "NaN", "energy is not finite"), strict=True):
        assert word in reason
    write_lmdb(tmp_path / "one.lmdb", records[5:], progress=False)
    with pytest.raises(InputError, match=r"one.lmdb: no structure has both.*is not finite"):
        evaluate(loaded, str(tmp_path / "one.lmdb"), options=ReadOptions(on_bad="skip"))
