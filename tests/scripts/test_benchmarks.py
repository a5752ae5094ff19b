"""The smaller benchmarks: estimators of the RPE mask, the loader, attentions side by side."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from molflt.data.oc20.unpickle import load_record
from molflt.data.record import RECORD_KEYS, to_data
from scripts import results
from scripts.benchmarks import compare_attention, estimator, loader


def in_order(medians: dict[str, float]) -> bool:
    """Every step of the table is an improvement."""
    return all(a > b for a, b in pairwise(medians.values()))


def test_the_table_of_estimators():
    """The documentation's column r = 16 comes out again, and every step in it is an improvement."""
    published = results.read(results.DOCS / "figures" / "estimator.csv")
    table = estimator.errors(16, range(30))
    medians = {name: float(np.median(values)) for name, values in table.items()}
    column = {row["estimator"]: float(row["median"]) for row in published if row["r"] == "16"}
    assert list(medians) == list(column) == [*estimator.ESTIMATORS, estimator.QUADRATURE]
    for name, median in medians.items():
        assert median == pytest.approx(column[name], rel=1e-3), name
    assert in_order(medians)
    # With the radii of every scale stratified by themselves the fourth row would be 0.058: the package deals its
    # quantiles over the scales.
    assert medians["+ stratified"] == pytest.approx(0.13, abs=0.01)


def test_estimators_from_the_command_line(call, tmp_path, capsys):
    call(estimator.main, "--r", 8, 16, "--seeds", 2, "--out", tmp_path)
    assert "own density (paper)" in capsys.readouterr().out
    expected = estimator.errors(16, range(2))
    rows = [row for row in results.read(tmp_path / "estimator.csv") if row["r"] == "16"]
    assert [row["estimator"] for row in rows] == list(expected)
    for row in rows:
        assert float(row["median"]) == pytest.approx(np.median(expected[row["estimator"]]), rel=1e-3)
    assert (tmp_path / "estimator.png").exists()
    with pytest.raises(SystemExit):
        call(estimator.main, "--r", 1)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(loader, "N_TEMPLATES", 20)
    monkeypatch.setattr(loader, "BUDGET", 300)
    return loader


def test_structures_are_periodic_and_of_the_sizes_of_oc20(bench):
    made = [to_data(record, "x") for record in bench.records(60)]
    sizes = [data.num_nodes for data in made]
    assert all(20 <= size <= 250 for size in sizes)
    assert 50 < np.mean(sizes) < 110
    assert all(bool(data.pbc.all()) for data in made)
    assert [int(data.sid) for data in made] == list(range(60))
    # the templates come again, but moved
    assert torch.equal(made[0].atomic_numbers, made[20].atomic_numbers)
    assert not torch.equal(made[0].positions, made[20].positions)


def test_official_pickles_hold_the_same_structure(bench):
    for record in bench.records(3):
        read = to_data(load_record(bench.official_pickle(record), "x", only=RECORD_KEYS), "x")
        expected = to_data(record, "x")
        for field in ("atomic_numbers", "tags", "fixed", "y_relaxed", "sid"):
            assert torch.equal(read[field], expected[field])
        assert torch.allclose(read.positions, expected.positions, atol=1e-5)


def test_slope_is_bytes_per_item(bench, monkeypatch):
    seen = bench.Memory(1000)
    for done in range(1, 1001):
        # a large jump while warming up does not count
        monkeypatch.setattr(bench, "resident", lambda done=done: (12 * done + 10**9 * (done > 40), 7))
        seen.look(done)
    assert len(seen.samples) == 50
    assert seen.summary("x")["x.anonymous_slope"][0] == pytest.approx(12.0)


@pytest.mark.slow
def test_the_loader_from_the_command_line(bench, call, tmp_path, capsys):
    arguments = ["--records", 40, "--reads", 60, "--rounds", 1, "--steps", 1, "--train-atoms", 40]
    call(bench.main, *arguments, "--folder", tmp_path, "--out", tmp_path / "out")
    rows = results.read(tmp_path / "out" / "loader.csv")
    found = {row["quantity"]: results.numbers(row["values"]) for row in rows}
    assert found["records"] == found["writing.items"] == [40]
    assert found["random_access.items"] == [60]
    # A second run takes the file that is there.
    assert bench.write_file(tmp_path / "bench_loader_40.lmdb", 40)["writing.seconds"] == pytest.approx(
        found["writing.seconds"]
    )
    printed = capsys.readouterr().out
    for workers in (0, 2):
        ratio = np.median(found[f"batches_{workers}_workers"]) / np.median(found["training_base"])
        assert f"| loader to training, {workers} workers | {ratio:.0f} times |" in printed
    assert bench.table({row["quantity"]: results.numbers(row["values"]) for row in rows}) in printed
    assert str(tmp_path) not in printed
    assert str(tmp_path) not in (tmp_path / "out" / "loader.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_attentions_are_compared_from_the_command_line(call, tmp_path, capsys):
    small = ["--attention", "performer", "flt", "--data", "fg", "--seeds", 0, "--out", tmp_path, "--steps"]
    call(compare_attention.main, *small, 2)
    assert "| `flt` |" in capsys.readouterr().out
    rows = results.read(tmp_path / "compare_attention.csv")
    assert [row["attention"] for row in rows] == ["performer", "flt"]
    assert max(float(row["rotation"]) for row in rows) < 1e-4
    with pytest.raises(SystemExit, match="other settings"):
        call(compare_attention.main, *small, 3)
