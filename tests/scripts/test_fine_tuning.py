"""The benchmark of fine-tuning, in miniature: every row once, nothing twice."""

from types import SimpleNamespace

import pytest

from molflt.data.open import open_dataset
from scripts import results
from scripts.benchmarks import fine_tuning
from scripts.benchmarks.accuracy_data import Split


@pytest.mark.slow
def test_miniature(tiny_data, make_config, tmp_path, monkeypatch, call):
    def base(row, data, files, seed, epochs):
        return make_config(**{"data.train": files.train, "data.val": files.held_out, "trainer.max_epochs": epochs})

    files = Split(str(tiny_data / "train.lmdb"), {"test": str(tiny_data / "val.lmdb")}, "y_relaxed")
    monkeypatch.setattr(fine_tuning, "split", lambda *arguments: files)
    monkeypatch.setattr(fine_tuning, "run_config", base)
    monkeypatch.setattr(fine_tuning, "MINIATURE_LEARNT", 6)
    monkeypatch.setattr(fine_tuning, "DATA_SETS", {"group": SimpleNamespace(epochs=1)})
    (tmp_path / "data").mkdir()
    arguments = ["--out", tmp_path, "--seeds", 0, 1, "--miniature", "--data", "group"]
    monkeypatch.setattr(fine_tuning, "SETS", ("group",))
    call(fine_tuning.main, *arguments)
    rows = results.read(tmp_path / "fine_tuning.csv")
    assert [(row["row"], row["seed"]) for row in rows] == [(r, s) for s in "01" for r in fine_tuning.ROWS]
    assert all(float(row["mae"]) > 0 for row in rows)
    learnt, test = (
        {data.name for data in open_dataset(tmp_path / "data" / f"val-0-{part}.lmdb")} for part in ("learnt", "test")
    )
    assert (len(learnt), len(test), len(learnt & test)) == (6, 4, 0)
    # A second time there is nothing to do.
    monkeypatch.setattr(fine_tuning, "judge", None)
    call(fine_tuning.main, *arguments)
    assert results.read(tmp_path / "fine_tuning.csv") == rows
