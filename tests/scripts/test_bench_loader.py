"""The loader's benchmark: what it makes, and that it reports what it measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from molflt.data.records import RECORD_KEYS, to_data
from molflt.data.safe_pickle import load_record

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_loader
    import oc20_size_records

    monkeypatch.setattr(oc20_size_records, "N_TEMPLATES", 20)
    monkeypatch.setattr(bench_loader, "BUDGET", 300)
    return bench_loader


def test_structures_are_periodic_and_of_the_sizes_of_oc20(bench: ModuleType) -> None:
    made = [to_data(record, "x") for record in bench.records(60)]
    sizes = [data.num_nodes for data in made]
    assert all(20 <= size <= 250 for size in sizes)
    assert 50 < np.mean(sizes) < 110
    assert all(bool(data.pbc.all()) for data in made)
    assert [int(data.sid) for data in made] == list(range(60))
    # the templates come again, but moved
    assert torch.equal(made[0].atomic_numbers, made[20].atomic_numbers)
    assert not torch.equal(made[0].positions, made[20].positions)


def test_official_pickles_hold_the_same_structure(bench: ModuleType) -> None:
    for record in bench.records(3):
        read = to_data(load_record(bench.official_pickle(record), "x", only=RECORD_KEYS), "x")
        expected = to_data(record, "x")
        for field in ("atomic_numbers", "tags", "fixed", "y_relaxed", "sid"):
            assert torch.equal(read[field], expected[field])
        assert torch.allclose(read.positions, expected.positions, atol=1e-5)


def test_slope_is_bytes_per_item(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = bench.Memory(1000)
    for done in range(1, 1001):
        # a large jump while warming up does not count
        monkeypatch.setattr(bench, "resident", lambda done=done: (12 * done + 10**9 * (done > 40), 7))
        seen.look(done)
    assert len(seen.samples) == 50
    assert seen.summary()["anonymous_slope"] == pytest.approx(12.0)


def test_command_line(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["--records", "40", "--reads", "60", "--rounds", "1", "--steps", "1", "--train-atoms", "40"]
    monkeypatch.setattr(sys, "argv", ["x", *arguments, "--folder", str(tmp_path), "--out", str(out)])
    bench.main()
    report = json.loads((out / "loader.json").read_text(encoding="utf-8"))
    measured = report["measured"]
    assert measured["records"] == 40
    assert measured["writing"]["items"] == 40
    assert measured["random_access"]["items"] == 60
    for workers in ("0", "2"):
        rate = np.median(measured[f"batches_{workers}_workers"])
        assert measured["ratio"][workers] == pytest.approx(rate / np.median(measured["training_base"]))
    # a second run takes the file that is there
    assert bench.write_file(tmp_path / "bench_loader_40.lmdb", 40) == measured["writing"]
    text = (out / "loader.md").read_text(encoding="utf-8")
    assert f"{measured['ratio']['2']:.0f} times" in text
    assert str(tmp_path) not in text + json.dumps(report)
