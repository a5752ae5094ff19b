"""Two processes share a run: every structure counts once, and one process speaks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from molflt.data.labels import LabelSpec
from molflt.data.sources import open_dataset
from molflt.model.model_file import load_model
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predictor import predict
from molflt.training.config import TrainConfig
from molflt.training.config_file import to_yaml
from molflt.training.run_directory import read_records
from molflt.training.screening import Screening, labels


@pytest.mark.slow
@pytest.mark.parametrize("max_atoms", [40, 10_000])
def test_two_processes(
    max_atoms: int,
    make_config: Callable[..., TrainConfig],
    molflt_process: Callable[..., subprocess.CompletedProcess[str]],
    tiny_data: Path,
    tmp_path: Path,
) -> None:
    # Few atoms a batch: the ranks get different numbers of validation batches. Many: a split would fit into one.
    config = make_config(**{"trainer.devices": 2, "data.max_atoms": max_atoms})
    (tmp_path / "c.yaml").write_text(to_yaml(config))
    result = molflt_process("train", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert result.returncode == 0, result
    assert result.stderr == ""
    assert [line.split()[0] for line in result.stdout.splitlines()][1:] == ["epoch", "epoch", "best:", "report:"]
    record = read_records(tmp_path / "run")[-1]
    model = load_model(tmp_path / "run" / "last.safetensors")
    for split in ("val", "other"):
        data = open_dataset(tiny_data / f"{split}.lmdb")
        metrics = energy_metrics(
            predict(model, data)[0].energies, labels(Screening(data, LabelSpec(target="y_relaxed"), split))
        )
        assert record[f"{split}/energy_mae"] == pytest.approx(metrics.energy_mae, rel=1e-5)
        assert record[f"{split}/energy_rmse"] == pytest.approx(metrics.energy_rmse, rel=1e-5)
