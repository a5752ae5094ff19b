"""Predictions that do not depend on order, batch and budget, and evaluations against numbers worked out by hand."""

from collections import Counter

import numpy as np
import pytest
import torch

from molflt.data.dataset import ConcatDataset, ListDataset, SubsetDataset
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.model.energy import EnergyModel
from molflt.prediction.evaluate import Evaluation, StructureTable, evaluate
from molflt.prediction.metrics import by_adsorbate, by_element, by_size, energy_metrics, size_edges
from molflt.prediction.output import Prediction
from molflt.prediction.predict import choose_device, predict, unknown_elements


def invented(elements, error, sizes, adsorbates):
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
    found = evaluate(loaded, str(tiny_data / "val.lmdb"))
    expected = np.array([float(data.y_relaxed) for data in val_set])
    error = predict(loaded, val_set).energies - expected
    np.testing.assert_array_equal(found.expected, expected)
    np.testing.assert_array_equal(found.error, error)
    assert found.metrics.energy_mae == pytest.approx(np.abs(error).mean(), rel=1e-12)
    assert (found.name, len(found), found.skipped) == ("val", 10, [])
    assert found.table.names == [data.name for data in val_set]
    assert found.table.sizes.tolist() == val_set.n_atoms.tolist()
    assert found.table.elements == [frozenset(data.atomic_numbers.tolist()) for data in val_set]
    assert found.table.formulas[0] == "H2O"
    assert found.uncertainty_eV is found.calibration() is found.force_mae is None


def test_an_ensemble_has_a_spread(two, tiny_data):
    found = evaluate(two, str(tiny_data / "val.lmdb"))
    alone = np.stack([evaluate(member, str(tiny_data / "val.lmdb")).predicted for member in two])
    np.testing.assert_allclose(found.predicted, alone.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.uncertainty_eV, alone.std(axis=0, ddof=1), rtol=1e-9)
    calibration = found.calibration()
    assert calibration.factor == pytest.approx(np.sqrt(((found.error / found.uncertainty_eV) ** 2).mean()))


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


@pytest.fixture
def many(tiny_data):
    sets = [open_dataset(tiny_data / f"{name}.lmdb") for name in ("train", "val", "other")]
    return ConcatDataset([*sets, sets[0]])


def test_order_is_preserved_and_the_model_left_as_it_was(loaded, many):
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    forwards = predict(loaded, many)
    order = np.random.default_rng(0).permutation(len(many))
    shuffled = predict(loaded, SubsetDataset(many, order))
    assert shuffled.names == [forwards.names[i] for i in order]
    assert forwards.names == [many[i].name for i in range(len(many))]
    np.testing.assert_allclose(shuffled.energies, forwards.energies[order], rtol=1e-5)
    assert not loaded.model.training
    assert all(torch.equal(value, before[name]) for name, value in loaded.model.state_dict().items())


def test_elements_seen_and_unknown(loaded, val_set):
    assert predict(loaded, val_set).elements == {
        int(z) for i in range(len(val_set)) for z in val_set[i].atomic_numbers
    }
    assert unknown_elements(loaded, {1, 9, 92}) == ["F", "U"]
    assert unknown_elements(loaded, set(loaded.metadata.elements)) == []


def test_inputs_with_and_without_labels_mix(loaded, val_set):
    expected = predict(loaded, val_set)
    structures = [val_set[i].clone() for i in range(len(val_set))]
    for i, field in enumerate(("energy", "y_init", "y_relaxed", "positions_relaxed", "sid")):
        del structures[i][field]
    found = predict(loaded, ListDataset(structures))
    np.testing.assert_array_equal(found.energies, expected.energies)
    # and the data set keeps what it had
    assert "energy" in structures[1]
    assert "edge_index" not in structures[1]


@pytest.mark.parametrize("forces", [False, True])
def test_what_does_not_fit_is_computed_in_parts(forces, loaded, val_set, monkeypatch):
    loaded.metadata.target = "energy"
    expected = predict(loaded, val_set, max_atoms=100, forces=forces)
    forward, room = EnergyModel.forward, 14

    def limited(self, batch):
        if batch.num_nodes > room:
            torch.empty(1 << 50)
        return forward(self, batch)

    monkeypatch.setattr(EnergyModel, "forward", limited)
    found = predict(loaded, val_set, max_atoms=100, forces=forces)
    assert expected.n_in_parts == 0 < found.n_in_parts
    assert found.names == expected.names
    assert found.contractions == expected.contractions
    assert found.elements == expected.elements
    np.testing.assert_allclose(found.energies, expected.energies, rtol=1e-5)
    for mine, theirs in zip(found.forces or [], expected.forces or [], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)
    room = 8
    sizes = np.asarray(val_set.n_atoms)
    with pytest.raises(InputError, match=r"set1-01: out of memory with this structure alone \(9 atoms\)"):
        predict(loaded, val_set)
    skipped = predict(loaded, val_set, on_error="skip")
    assert list(skipped.failures) == np.flatnonzero(sizes > room).tolist()
    np.testing.assert_array_equal(np.isnan(skipped.energies), sizes > room)


def test_what_the_model_refuses_is_skipped_alone(loaded, val_set, monkeypatch):
    forward, expected = EnergyModel.forward, predict(loaded, val_set)

    def choosy(self, batch):
        if 9 in (batch.ptr[1:] - batch.ptr[:-1]).tolist():
            raise InputError("no nine atoms")
        return forward(self, batch)

    monkeypatch.setattr(EnergyModel, "forward", choosy)
    found, refused = predict(loaded, val_set, on_error="skip"), np.asarray(val_set.n_atoms) == 9
    assert list(found.failures) == np.flatnonzero(refused).tolist()
    assert set(found.failures.values()) == {"no nine atoms"}
    assert found.n_in_parts == 0
    np.testing.assert_allclose(found.energies[~refused], expected.energies[~refused], rtol=1e-5)


def test_an_energy_that_is_not_finite(loaded, val_set):
    huge = next(loaded.model.energy_head.parameters())
    with torch.no_grad():
        huge.fill_(float("inf"))
    with pytest.raises(InputError, match="set1-00: the model's energy is not finite; check the structure"):
        predict(loaded, val_set)
    skipped = predict(loaded, val_set, on_error="skip")
    assert sorted(skipped.failures) == list(range(len(val_set)))
    assert np.isnan(skipped.energies).all()


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(InputError, match="no usable GPU"):
            choose_device(name)
    for name in ("tpu", "", "mps", "meta", "cuda:x"):
        with pytest.raises(InputError, match="use auto, cpu or cuda"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="there are 2 GPUs"):
        choose_device("cuda:2")


def test_metrics_by_hand():
    predicted = np.array([1.0, 2.01, 3.0, 5.0])
    target = np.array([1.0, 2.0, 3.5, 4.0])
    metrics = energy_metrics(predicted, target)
    assert metrics.n == 4
    assert metrics.energy_mae == pytest.approx((0 + 0.01 + 0.5 + 1) / 4)
    assert metrics.energy_rmse == pytest.approx(np.sqrt((0 + 0.0001 + 0.25 + 1) / 4))
    assert metrics.ewt == 0.5
    assert metrics.mad == pytest.approx((1.625 + 0.625 + 0.875 + 1.375) / 4)
    assert metrics.mae_over_mad == pytest.approx(metrics.energy_mae / metrics.mad)
    assert np.isnan(energy_metrics(predicted[:1], target[:1]).mae_over_mad)
    # The threshold itself is not within.
    assert energy_metrics(np.array([0.0199999, 0.02, -0.0199999]), np.zeros(3)).ewt == pytest.approx(2 / 3)
