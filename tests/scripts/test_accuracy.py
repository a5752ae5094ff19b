"""The accuracy benchmark: divisions, what peers are fed, rotations, and a miniature of the whole."""

import argparse
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import write
from filelock import FileLock

from molflt.data.neighbours import attach_neighbours
from molflt.data.open import open_dataset
from molflt.model.energy_model import EnergyModel
from scripts import results
from scripts.benchmarks import (
    accuracy,
    accuracy_rows,
    acetylacetone,
    clusters,
    domain,
    models,
    peer_worker,
    structures,
)
from scripts.benchmarks.accuracy_data import DATA_SETS, MATBENCH_SEED, QM7_TRAIN, Split, divide, split
from scripts.benchmarks.accuracy_peers import plain_files, plain_set
from scripts.benchmarks.accuracy_rows import VARIANTS, ProcessorTime, WithoutLocalRPE, run_config, turn
from scripts.benchmarks.accuracy_selection import selection_split
from scripts.benchmarks.peer_worker import PeerSpec, train
from scripts.benchmarks.plain import PlainSet


def test_folds_are_those_of_scikit_learn():
    kfold = pytest.importorskip("sklearn.model_selection").KFold(5, shuffle=True, random_state=MATBENCH_SEED)
    for n in (18_928, 882, 23):
        for fold, (train_indices, test_indices) in enumerate(kfold.split(np.arange(n))):
            first, second = divide(n, fold, 5)
            np.testing.assert_array_equal(first, train_indices)
            np.testing.assert_array_equal(second, test_indices)


def test_one_division_of_qm7():
    first, second = divide(6000, 0, 1)
    assert len(first) == QM7_TRAIN
    assert sorted([*first, *second]) == list(range(6000))


@pytest.fixture
def hydrogen(tmp_path, monkeypatch):
    """Fifteen structures in the place of every data set that has a file; their energies number them."""
    frames = [Atoms("H2", [[0, 0, 0], [0, 0, 0.7 + 0.01 * i]], info={"energy": float(i)}) for i in range(15)]
    for data in DATA_SETS.values():
        if data.file:
            (tmp_path / data.file).parent.mkdir()
            write(tmp_path / data.file, frames, format="extxyz")
    monkeypatch.setenv("MOLFLT_DATA", str(tmp_path))


def numbers(path):
    """Which structures are in a file."""
    structures = open_dataset(path)
    return [round(float(structures[i].energy)) for i in range(len(structures))]


@pytest.mark.parametrize("data", ["qm7", "atoms"])
def test_settings_are_chosen_on_what_is_trained_on(data, hydrogen, tmp_path):
    """The division for selection is one of the first training set, without what is held out."""
    benchmark, selection = split(data, 0, tmp_path / "data"), selection_split(data, tmp_path)
    train, val = numbers(selection.train), numbers(selection.held_out["val"])
    assert sorted([*train, *val]) == sorted(numbers(benchmark.train))
    assert len(train) == (len(train) + len(val)) * 4 // 5
    fewer = selection_split(data, tmp_path, 3)
    assert numbers(fewer.train) == train[:3]
    assert numbers(fewer.held_out["val"]) == val


def test_a_division_that_was_interrupted_is_finished(hydrogen, tmp_path):
    """The second of its files is missing, the first is there and stays."""
    whole = split("qm7", 0, tmp_path / "data")
    test = Path(whole.held_out["test"])
    train, held_out = Path(whole.train).read_bytes(), numbers(test)
    test.unlink()
    assert split("qm7", 0, tmp_path / "data") == whole
    assert numbers(test) == held_out
    assert Path(whole.train).read_bytes() == train


def test_no_two_processes_take_the_same_run(tmp_path, monkeypatch, capsys):
    """A run is left alone while it is claimed, taken when it is not, not repeated, and all of it is in the CSV."""
    taken = []

    def run_variant(row, data, files, seed, options, run):
        taken.append(run.name)
        return {"mae": {"val": 0.1, "test": 0.2}, "epochs": 1, "seconds": 90.0, "parameters": 1}

    monkeypatch.setattr(accuracy, "run_variant", run_variant)
    options = argparse.Namespace(out=tmp_path, results=tmp_path / "accuracy.csv", miniature=False, threads=1)
    (tmp_path / "claims").mkdir()
    with FileLock(tmp_path / "claims" / "fg-flt-0-0"):
        accuracy.run_one("flt", "fg", 0, 0, options)
        assert not taken
    for seed in (0, 0, 1):
        accuracy.run_one("flt", "fg", seed, 0, options)
    assert len(taken) == 2
    rows = results.read(options.results)
    assert [(row["seed"], row["split"], row["mae"]) for row in rows] == [
        (seed, name, mae) for seed in "01" for name, mae in (("val", "0.1"), ("test", "0.2"))
    ]
    assert {row["minutes"] for row in rows} == {"1.5"}
    assert rows[0].keys() == results.read(accuracy.KEPT)[0].keys()


def test_peers_have_the_time_that_molflt_took_on_the_same_processor(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(results, "processor", lambda: "this")
    monkeypatch.setattr(accuracy, "train_peer", lambda *arguments: given.append(arguments[3]) or {})
    options = argparse.Namespace(out=tmp_path, results=tmp_path / "r.csv", threads=1, peers_python=None)
    rows = []

    def took(minutes, machine="this, 2 cores", model="flt", data="qm7", name="val"):
        rows.append({"set": data, "model": model, "split": name, "minutes": minutes, "machine": machine})
        results.write(options.results, rows)

    def run_peer():
        return accuracy.run_peer("SchNet", "qm7", split("fg", 0, tmp_path), 0, options)

    took(15, "another, 2 cores")
    took(14, model="softmax")
    took(13, data="fg")
    assert run_peer()["status"] == "waiting"
    assert not given
    for minutes in (1, 2, 9):
        took(minutes)
    # What a run took stands in each of its rows.
    took(8, name="test")
    run_peer()
    assert given == [120.0]


def test_a_damaged_data_file_gets_one_line(tmp_path, monkeypatch, capsys, call):
    file = tmp_path / DATA_SETS["qm7"].file
    file.parent.mkdir()
    file.write_bytes(b"no gzip")
    monkeypatch.setenv("MOLFLT_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        call(accuracy.main, "--out", tmp_path / "out", "--data", "qm7")
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("main", [acetylacetone.main, clusters.main, domain.main])
def test_data_that_are_nowhere_get_one_line(main, tmp_path, monkeypatch, capsys, call):
    monkeypatch.delenv("MOLFLT_DATA", raising=False)
    with pytest.raises(SystemExit) as stop:
        call(main, "--out", tmp_path, *(["--results", tmp_path / "r.csv"] if main is not domain.main else []))
    assert stop.value.code == 2
    assert "error: MOLFLT_DATA is not set: it is the folder that has " in capsys.readouterr().err


def test_every_row_is_a_configuration(tmp_path):
    """And dense softmax has as many parameters as molflt."""
    for data in accuracy.MAIN:
        counts = {}
        for name in VARIANTS:
            config = run_config(name, data, split("fg", 0, tmp_path), 0, 1)
            counts[name] = EnergyModel(config.model, 0).n_parameters()
        assert counts["softmax"] == pytest.approx(counts["flt"], rel=2e-3)


def test_a_batch_of_plain_tensors_is_that_of_the_collater():
    """Against the batches of the benchmark of models, whose peers are checked against their own graphs."""
    found = [structures.ball(12), structures.cube(8), structures.ball(9, seed=1)]
    expected = models.plain_batch([found[2], found[0]], 4.0, False)
    prepared = [attach_neighbours(data.clone(), 4.0) for data in found]
    for data in prepared:
        data.tags = torch.full_like(data.atomic_numbers, 2)
    batch = plain_set(prepared, torch.arange(3.0), 1.0).batch([2, 0])
    for name in ("positions", "atomic_numbers", "batch", "cell", "edge_index", "cell_offsets", "edge_vectors"):
        torch.testing.assert_close(getattr(batch, name), getattr(expected, name), check_dtype=False)
    assert batch.target.tolist() == [2.0, 0.0]


def test_turning_keeps_distances_and_moves_everything():
    from torch_geometric.data import Batch

    batch = Batch.from_data_list([structures.cube(8), structures.ball(12)])
    before, cell = batch.positions.clone(), batch.cell.clone()
    turn(batch, torch.Generator().manual_seed(0))
    distances = [torch.cdist(positions, positions) for positions in (before, batch.positions)]
    same = batch.batch[:, None] == batch.batch
    torch.testing.assert_close(distances[0][same], distances[1][same], rtol=1e-5, atol=1e-5)
    fractional = [
        p[batch.batch == 0].double() @ torch.linalg.inv(c[0].double())
        for p, c in ((before, cell), (batch.positions, batch.cell))
    ]
    torch.testing.assert_close(*fractional, rtol=1e-5, atol=1e-5)
    assert float((before - batch.positions).abs().max()) > 0.1


def test_what_a_killed_run_spent_is_not_lost(tmp_path, monkeypatch):
    """The clock starts anew in each process; only what finished epochs took is in the file."""
    clock = [100.0]
    monkeypatch.setattr(accuracy_rows, "time", SimpleNamespace(process_time=lambda: clock[0]))
    killed = ProcessorTime(tmp_path / "seconds.json")
    clock[0] = 107.0
    killed.on_train_epoch_end(None, None)
    clock = [3.0]
    again = ProcessorTime(tmp_path / "seconds.json")
    clock[0] = 5.0
    assert again.seconds == 9.0


def test_without_local_rpe_distances_of_neighbours_do_not_count(tmp_path):
    config = run_config("no local RPE", "qm7", split("fg", 0, tmp_path), 0, 1)
    module = torch.nn.ModuleDict({"model": EnergyModel(config.model, 0)})
    WithoutLocalRPE().setup(None, module, "fit")
    biases = [p for name, p in module.named_parameters() if "local_rpe" in name]
    assert biases
    assert all(not p.requires_grad and not p.any() for p in biases)


def test_a_baseline_stands_beside_the_models(tmp_path):
    """With the error that the card of the data gives it, in the table of the divisions."""
    row = "ridge on metal × composition"
    known = next(r["mae"] for r in results.read(results.DOCS / "results" / "fg.csv") if r["of"] == row)
    found = accuracy.run_baseline(row, split("fg", 0, tmp_path))["mae"]["val"]
    assert found == pytest.approx(float(known), rel=1e-4)
    rows = [{"set": data, "model": model, "mae": mae} for data, model, mae in (
        ("fg-Zn", row, found), ("fg-Pt", "flt", 0.1), ("fg-Zn", "flt", 0.2), ("qm7", "flt", 0.3)
    )]  # fmt: skip
    assert accuracy.divisions(rows).splitlines()[2:] == ["| `fg-Pt` | 0.1000 |  |", "| `fg-Zn` | 0.2000 | 0.2115 |"]


@pytest.mark.slow
def test_a_peer_learns(tiny_data, tmp_path, monkeypatch):
    """SchNet on the tiny data, by a clock that ticks once a step: better than the mean, and judged in eV."""
    ticks = itertools.count()
    monkeypatch.setattr(peer_worker, "time", SimpleNamespace(process_time=lambda: float(next(ticks))))
    files = Split(str(tiny_data / "train.lmdb"), {"val": str(tiny_data / "train.lmdb")}, "y_relaxed")
    train_file, held_out = plain_files(files, 4.0, tmp_path)
    sizes = {"hidden_channels": 16, "num_filters": 16, "num_interactions": 1, "num_gaussians": 10, "cutoff": 4.0}
    spec = PeerSpec("schnet", sizes, train_file, held_out, 400.0, 1e-2, 16, 0, 1, "cpu")
    found = train(spec)
    data = PlainSet.load(Path(held_out["val"]))
    mean = data.scale * float(data.target.abs().mean())
    assert found["mae"]["val"] < 0.9 * mean
    assert found["steps"] == 399


@pytest.mark.slow
@pytest.mark.skipif("MOLFLT_DATA" not in os.environ, reason="MOLFLT_DATA is not set")
def test_a_miniature_of_the_whole(tmp_path, python):
    """Every data set, flt, softmax, concat and SchNet; a second call repeats nothing."""
    command = ["-m", "scripts.benchmarks.accuracy", "--out", tmp_path, "--miniature"]
    first = python(*command)
    assert first.returncode == 0, first.stderr
    rows = results.read(tmp_path / "accuracy.csv")
    assert {(row["set"], row["model"]) for row in rows} == {
        (data, row) for data in accuracy.MAIN for row in ("flt", "softmax", "concat, turned at random", "SchNet")
    }
    assert np.isfinite([float(row["mae"]) for row in rows]).all()
    second = python(*command)
    assert second.returncode == 0, second.stderr
    assert "seed" in first.stdout
    assert "seed 0" not in second.stdout
    assert second.stdout.strip() in first.stdout
