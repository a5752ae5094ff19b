"""A run from configuration to files: what it learns, writes, repeats and refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.attention.config import ATTENTION_PRESETS
from molflt.data.labels import LabelSpec
from molflt.data.lmdb_writer import write_lmdb
from molflt.data.records import to_record
from molflt.data.sources import StructureDataset, open_dataset
from molflt.errors import InputError
from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import load_model, read_metadata
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predictor import predict
from molflt.training.config import TrainConfig
from molflt.training.run import TrainResult, train
from molflt.training.run_directory import read_records
from molflt.training.screening import Screening, labels
from tests.training.test_launching import FILES

MakeConfig = Callable[..., TrainConfig]


def quiet(line: str) -> None:
    pass


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_model(path).model.state_dict()


def same_weights(a: Path, b: Path) -> bool:
    first, second = weights(a), weights(b)
    return all(torch.equal(value, second[name]) for name, value in first.items())


def test_loss_falls(make_config: MakeConfig, tmp_path: Path) -> None:
    overrides = {"trainer.max_epochs": 12, "optimiser.lr": 0.02, "loss.auxiliary_start": 1.0}
    train(make_config(**overrides), tmp_path / "run", say=quiet)
    records = read_records(tmp_path / "run")
    assert [record["epoch"] for record in records] == list(range(12))
    assert records[-1]["train/loss"] < 0.7 * records[0]["train/loss"]
    assert records[-1]["train/energy_mae"] < 0.85 * records[0]["train/energy_mae"]


def test_same_seed_same_numbers(make_config: MakeConfig, tmp_path: Path) -> None:
    overrides = {"model.dropout": 0.2, "model.attention_dropout": 0.1, "loss.noisy_nodes": True}
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        train(make_config(seed=seed, **overrides), tmp_path / name, say=quiet)
    logs = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in "abc"]
    assert logs[0] == logs[1] != logs[2]
    assert same_weights(tmp_path / "a" / "last.safetensors", tmp_path / "b" / "last.safetensors")
    assert not same_weights(tmp_path / "a" / "last.safetensors", tmp_path / "c" / "last.safetensors")


def test_run_directory(tiny_run: Path) -> None:
    names = {path.name for path in tiny_run.iterdir()}
    assert names == FILES
    records = read_records(tiny_run)
    with open(tiny_run / "metrics.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [{key: float(value) for key, value in row.items()} for row in rows] == records
    for split in ("val", "other"):
        for metric in ("energy_mae", "energy_rmse", "ewt"):
            assert f"{split}/{metric}" in records[0]


def test_recorded_metrics_are_those_of_the_saved_model(tiny_run: Path, tiny_data: Path) -> None:
    # torchmetrics over batches against NumPy over the whole set, and the saved weights are the validated ones
    last = load_model(tiny_run / "last.safetensors")
    record = read_records(tiny_run)[-1]
    assert last.metadata.epoch == record["epoch"]
    for split in ("val", "other"):
        data = open_dataset(tiny_data / f"{split}.lmdb")
        prediction, _ = predict(last, data)
        metrics = energy_metrics(prediction.energies, labels(Screening(data, LabelSpec(target="y_relaxed"), split)))
        assert record[f"{split}/energy_mae"] == pytest.approx(metrics.energy_mae, rel=1e-5)
        assert record[f"{split}/energy_rmse"] == pytest.approx(metrics.energy_rmse, rel=1e-5)
        assert record[f"{split}/ewt"] == pytest.approx(metrics.ewt)
        assert last.metadata.validation[f"{split}/energy_mae"] == record[f"{split}/energy_mae"]


class Scripted(Callback):
    """Makes the errors of the validations come out as wished, in units of 1000 eV."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        pl_module.evaluated_model.standardiser.mean.fill_(1000.0 * self.errors.pop(0))


def test_best_is_the_best_and_last_the_last(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**{"trainer.max_epochs": 5})
    result = train(config, tmp_path / "run", say=quiet, callbacks=[Scripted(5, 3, 4, 2, 6)])
    errors = [record["val/energy_mae"] for record in read_records(tmp_path / "run")]
    assert int(np.argmin(errors)) == 3
    assert (result.best_epoch, result.best) == (3, errors[3])
    assert read_metadata(result.best_model).epoch == 3
    assert read_metadata(result.best_model).validation["val/energy_mae"] == errors[3]
    assert read_metadata(tmp_path / "run" / "last.safetensors").epoch == 4


@pytest.mark.parametrize(
    ("max_epochs", "val_every", "expected"),
    [(5, 2, [1, 3, 4]), (4, 2, [1, 3]), (2, 9, [1]), (3, 1, [0, 1, 2])],
)
def test_the_last_epoch_is_always_validated(
    max_epochs: int, val_every: int, expected: list[int], make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(**{"trainer.max_epochs": max_epochs, "trainer.val_every": val_every})
    train(config, tmp_path / "run", say=quiet)
    assert [record["epoch"] for record in read_records(tmp_path / "run")] == expected
    assert read_metadata(tmp_path / "run" / "last.safetensors").epoch == expected[-1]


@pytest.mark.parametrize("max_steps", [2, 6, 8])
def test_max_steps(max_steps: int, make_config: MakeConfig, tmp_path: Path) -> None:
    # An epoch has six steps: less than one, exactly one, and one and a third.
    config = make_config(**{"trainer.max_epochs": 50, "trainer.max_steps": max_steps, "trainer.val_every": 3})
    train(config, tmp_path / "run", say=quiet)
    records = read_records(tmp_path / "run")
    assert [record["step"] for record in records] == [max_steps]
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    train(config, tmp_path / "run", resume=True, say=quiet)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_early_stop_counts_validations_and_stays_stopped(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**{"trainer.max_epochs": 30, "trainer.val_every": 2, "trainer.patience": 2})
    lines: list[str] = []
    result = train(config, tmp_path / "run", say=lines.append, callbacks=[Scripted(5, 6, 4, 5, 5, 0)])
    assert [record["epoch"] for record in read_records(tmp_path / "run")] == [1, 3, 5, 7, 9]
    assert result.best_epoch == 5
    assert any("no improvement in 2 validations" in line for line in lines)
    again = train(config, tmp_path / "run", resume=True, say=quiet)
    assert again == result
    assert len(read_records(tmp_path / "run")) == 5


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("where", ["loss", "last step"])
def test_divergence_is_an_error_and_keeps_the_last_good_files(
    ema: float, where: str, make_config: MakeConfig, tmp_path: Path
) -> None:
    class Spoil(Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, pl_module: Any, *rest: Any) -> None:
            late = rest[-1] == trainer.num_training_batches - 1
            if trainer.current_epoch == 1 and (late or where == "loss"):
                with torch.no_grad():
                    pl_module.model.energy_head.factor.fill_(float("nan"))

    # The recorder runs after the callbacks given, the moving average before them.
    config = make_config(**{"trainer.max_epochs": 5, "optimiser.ema_decay": ema})
    with pytest.raises(InputError, match=r"diverged.*epoch [23], step \d+.*optimiser.lr"):
        train(config, tmp_path / "run", say=quiet, callbacks=[Spoil()])
    for name in ("best", "last"):
        assert load_model(tmp_path / "run" / f"{name}.safetensors").metadata.epoch < 2
    assert all(np.isfinite(list(record.values())).all() for record in read_records(tmp_path / "run"))


def test_bf16_is_near_float32(make_config: MakeConfig, tmp_path: Path) -> None:
    def run(precision: str) -> dict[str, Any]:
        train(make_config(**{"trainer.precision": precision}), tmp_path / precision, say=quiet)
        return read_records(tmp_path / precision)[-1]

    full, half = run("32-true"), run("bf16-mixed")
    assert half["val/energy_mae"] == pytest.approx(full["val/energy_mae"], rel=0.1)
    assert half["val/energy_mae"] != full["val/energy_mae"]


def test_double_precision(make_config: MakeConfig, tmp_path: Path, val_set: StructureDataset) -> None:
    train(make_config(**{"trainer.precision": "64-true"}), tmp_path / "run", say=quiet)
    loaded = load_model(tmp_path / "run" / "last.safetensors")
    assert loaded.model.dtype == torch.float64
    prediction, _ = predict(loaded, val_set)
    metrics = energy_metrics(prediction.energies, labels(Screening(val_set, LabelSpec(target="y_relaxed"), "val")))
    assert read_records(tmp_path / "run")[-1]["val/energy_mae"] == pytest.approx(metrics.energy_mae, rel=1e-6)


FEW = ("flt", "flt-concat", "performer", "softmax", "oprf-mm", "saderf-fastfood", "lara", "ra", "ra-rpe", "lara-rpe")


@pytest.mark.parametrize(
    "attention",
    [
        {"far_rank": 1},
        *FEW,
        *(pytest.param(name, marks=pytest.mark.slow) for name in ATTENTION_PRESETS if name not in FEW),
    ],
    ids=str,
)
def test_every_attention_trains(attention: Any, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**{"model.attention": attention, "trainer.max_epochs": 1})
    result = train(config, tmp_path / "run", say=quiet)
    assert np.isfinite(result.best)


def test_features_are_redrawn_in_the_model_and_its_average(make_config: MakeConfig, tmp_path: Path) -> None:
    attention = {"mechanism": "kernelised", "n_features": 8}
    drawn = []
    for every in (0, 3):
        config = make_config(**{"model.attention": {**attention, "redraw_every": every}, "trainer.max_steps": 4})
        train(config, tmp_path / str(every), say=quiet)
        model = load_model(tmp_path / str(every) / "last.safetensors").model
        drawn.append([t for name, t in model.state_dict().items() if name.endswith("omega")])
    start = [t for name, t in EnergyModel(config.model, config.seed).state_dict().items() if name.endswith("omega")]
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], start, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(drawn[1], start, strict=True))


def _without(folder: Path, source: Path, field: str, indices: set[int]) -> Path:
    records = [to_record(structure) for structure in open_dataset(source)]
    for i in indices:
        del records[i][field]
    write_lmdb(folder / "changed.lmdb", records, progress=False)
    return folder / "changed.lmdb"


def test_missing_training_labels(make_config: MakeConfig, tiny_data: Path, tmp_path: Path) -> None:
    path = _without(tmp_path, tiny_data / "train.lmdb", "y_relaxed", {2, 3, 5, 7, 11})
    with pytest.raises(InputError) as caught:
        train(make_config(**{"data.train": str(path)}), tmp_path / "run", say=quiet)
    message = str(caught.value)
    assert "5 of 28" in message
    assert "set0-02, set0-03, set0-05" in message
    assert "set0-07" not in message
    # The next try may use the same directory.
    train(make_config(**{"trainer.max_epochs": 1}), tmp_path / "run", say=quiet)


def test_missing_validation_labels(make_config: MakeConfig, tiny_data: Path, tmp_path: Path) -> None:
    path = _without(tmp_path, tiny_data / "val.lmdb", "y_relaxed", {1})
    with pytest.raises(InputError, match=r"1 of 10 .*set1-01"):
        train(make_config(**{"data.val": str(path)}), tmp_path / "run", say=quiet)


def test_without_relaxed_positions_the_displacement_head_is_left_out(
    make_config: MakeConfig, tiny_data: Path, tmp_path: Path
) -> None:
    path = _without(tmp_path, tiny_data / "train.lmdb", "pos_relaxed", {0})
    lines: list[str] = []
    train(make_config(**{"data.train": str(path), "trainer.max_epochs": 1}), tmp_path / "run", say=lines.append)
    assert any("without the displacement head" in line for line in lines)
    assert load_model(tmp_path / "run" / "best.safetensors").model.displacement_head is None
    with pytest.raises(InputError, match="noisy_nodes"):
        train(make_config(**{"data.train": str(path), "loss.noisy_nodes": True}), tmp_path / "other", say=quiet)


def test_target_energy_uses_element_references(make_config: MakeConfig, tmp_path: Path) -> None:
    train(make_config(**{"data.target": "energy", "trainer.max_epochs": 1}), tmp_path / "run", say=quiet)
    loaded = load_model(tmp_path / "run" / "best.safetensors")
    assert loaded.metadata.standardiser["kind"] == "element"
    assert loaded.metadata.target == "energy"
    assert int((loaded.model.standardiser.references != 0).sum()) == len(loaded.metadata.elements)


def test_lines_without_a_terminal(make_config: MakeConfig, tmp_path: Path) -> None:
    lines: list[str] = []
    result = train(make_config(), tmp_path / "run", say=lines.append)
    assert isinstance(result, TrainResult)
    assert "28 structures" in lines[0]
    assert sum(line.startswith("epoch") for line in lines) == 2
    assert all("\n" not in line for line in lines)


def test_logs_are_json_lines(tiny_run: Path) -> None:
    for line in (tiny_run / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["step"] > 0


def test_no_gpu_is_a_clear_error(make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no usable CUDA GPU"):
        train(make_config(**{"trainer.accelerator": "gpu"}), tmp_path / "run", say=quiet)


def test_more_processes_than_cores(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trainer.devices=10000: this machine has \d+ cores"):
        train(make_config(**{"trainer.devices": 10_000}), tmp_path / "run", say=quiet)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_missing_logger_names_the_extra(name: str, make_config: MakeConfig, tmp_path: Path) -> None:
    try:
        __import__(name)
    except ImportError:
        with pytest.raises(InputError, match=rf"^trainer.loggers: .*molflt\[{name}\]"):
            train(make_config(**{"trainer.loggers": [name]}), tmp_path / "run", say=quiet)
    else:
        pytest.skip(f"{name} is installed")
