"""A run from configuration to files: what it writes, repeats, says and refuses."""

import sys

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.attention.registry import ATTENTIONS
from molflt.data.labels import LabelSpec
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.quality.screen import Screening, labels
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.model.energy import EnergyModel
from molflt.model.file import load_model, read_metadata
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predict import predict
from molflt.training.data_module import EnergyDataModule
from molflt.training.recorder import RunRecorder
from molflt.training.run import train
from molflt.training.run_dir import read_records
from tests.conftest import rows_of
from tests.training.runs import FILES, QUICK, go, quiet


def test_what_is_recorded_is_that_of_the_saved_model(tiny_run, tiny_data):
    """Sums over batches against NumPy over the whole set; and the saved weights are those that were validated."""
    assert {path.name for path in tiny_run.iterdir()} == FILES
    records = read_records(tiny_run)
    rows = rows_of(tiny_run / "metrics.csv")
    assert [{key: float(value) for key, value in row.items()} for row in rows] == records
    last, record = load_model(tiny_run / "last.safetensors"), records[-1]
    # Files of models count from zero, what people read from one.
    assert last.metadata.epoch + 1 == record["epoch"] == 2
    for split in ("val", "other"):
        data = open_dataset(tiny_data / f"{split}.lmdb")
        expected = labels(Screening(data, LabelSpec(target="y_relaxed"), split))
        metrics = energy_metrics(predict(last, data).energies, expected)
        assert record[f"{split}/energy_mae"] == pytest.approx(metrics.energy_mae, rel=1e-5)
        assert record[f"{split}/energy_rmse"] == pytest.approx(metrics.energy_rmse, rel=1e-5)
        assert record[f"{split}/ewt"] == pytest.approx(metrics.ewt)
        assert last.metadata.validation[f"{split}/energy_mae"] == record[f"{split}/energy_mae"]


class Scripted(Callback):
    """Makes the errors of the validations come out as wished, in units of 1000 eV."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def on_validation_start(self, trainer, pl_module):
        pl_module.evaluated_model.standardiser.mean.fill_(1000.0 * self.errors.pop(0))


def test_best_last_and_early_stop(make_config, tmp_path):
    changes = {"trainer.max_epochs": 30, "trainer.val_every": 2, "trainer.patience": 2}
    config, run_dir, lines = make_config(**{**QUICK, **changes}), tmp_path / "run", []
    result = train(config, run_dir, say=lines.append, callbacks=[Scripted(5, 6, 4, 5, 5, 0)])
    records = read_records(run_dir)
    assert [record["epoch"] for record in records] == [2, 4, 6, 8, 10]
    assert any("no improvement in 2 validations" in line for line in lines)
    best = read_metadata(result.best_model)
    assert (result.best_epoch, best.epoch + 1, records[2]["epoch"]) == (6, 6, 6)
    assert result.best == best.validation["val/energy_mae"] == records[2]["val/energy_mae"]
    assert read_metadata(run_dir / "last.safetensors").epoch == 9
    assert go(config, run_dir, resume=True) == result
    assert read_records(run_dir) == records


@pytest.mark.parametrize(("max_epochs", "val_every", "expected"), [(5, 2, [2, 4, 5]), (2, 9, [2])])
def test_the_last_epoch_is_always_validated(max_epochs, val_every, expected, make_config, tmp_path):
    go(make_config(**{**QUICK, "trainer.max_epochs": max_epochs, "trainer.val_every": val_every}), tmp_path / "run")
    assert [record["epoch"] for record in read_records(tmp_path / "run")] == expected
    assert read_metadata(tmp_path / "run" / "last.safetensors").epoch + 1 == expected[-1]


@pytest.mark.parametrize("max_steps", [2, 6, 8])
def test_max_steps(max_steps, make_config, tmp_path):
    config = make_config(**{"trainer.max_epochs": 50, "trainer.max_steps": max_steps, "trainer.val_every": 3})
    go(config, tmp_path / "run")
    records = read_records(tmp_path / "run")
    assert [record["step"] for record in records] == [max_steps]
    go(config, tmp_path / "run", resume=True)
    assert read_records(tmp_path / "run") == records


@pytest.mark.parametrize(("ema", "where"), [(0.9, "loss"), (0.9, "last step"), (0.0, "last step")])
def test_divergence_is_an_error_and_keeps_the_last_good_files(ema, where, make_config, tmp_path):
    class Spoil(Callback):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            late = rest[-1] == trainer.num_training_batches - 1
            if trainer.current_epoch == 1 and (late or where == "loss"):
                with torch.no_grad():
                    pl_module.model.energy_head.factor.fill_(float("nan"))

    # The recorder runs after the callbacks given, the moving average before them.
    config = make_config(**{**QUICK, "trainer.max_epochs": 5, "optimiser.ema_decay": ema})
    with pytest.raises(InputError, match=r"diverged.*epoch [23], step \d+.*optimiser.lr"):
        go(config, tmp_path / "run", Spoil())
    for name in ("best", "last"):
        assert load_model(tmp_path / "run" / f"{name}.safetensors").metadata.epoch < 2
    assert all(np.isfinite(list(record.values())).all() for record in read_records(tmp_path / "run"))


def test_bf16_is_near_float32(make_config, tiny_run, tmp_path):
    go(make_config(**{"trainer.precision": "bf16-mixed"}), tmp_path / "half")
    half, full = read_records(tmp_path / "half")[-1], read_records(tiny_run)[-1]
    assert half["val/energy_mae"] == pytest.approx(full["val/energy_mae"], rel=0.1)
    assert half["val/energy_mae"] != full["val/energy_mae"]


def test_double_precision(make_config, tmp_path, val_set):
    go(make_config(**QUICK, **{"trainer.precision": "64-true"}), tmp_path / "run")
    loaded = load_model(tmp_path / "run" / "last.safetensors")
    assert loaded.model.dtype == torch.float64
    expected = labels(Screening(val_set, LabelSpec(target="y_relaxed"), "val"))
    metrics = energy_metrics(predict(loaded, val_set).energies, expected)
    assert read_records(tmp_path / "run")[-1]["val/energy_mae"] == pytest.approx(metrics.energy_mae, rel=1e-6)


FEW = ("flt", "flt-concat", "performer", "softmax")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ATTENTIONS if name not in FEW]


@pytest.mark.parametrize("attention", [{"far_rank": 1}, *FEW, *OTHERS], ids=str)
def test_every_attention_trains(attention, make_config, tmp_path):
    result = go(make_config(**QUICK, **{"model.attention": attention}), tmp_path / "run")
    assert np.isfinite(result.best)


def test_features_are_redrawn_in_the_model_and_its_average(make_config, tmp_path):
    drawn = []
    for every in (0, 3):
        attention = {"mechanism": "kernelised", "n_features": 8, "redraw_every": every}
        config = make_config(**{"model.attention": attention, "trainer.max_steps": 4})
        go(config, tmp_path / str(every))
        model = load_model(tmp_path / str(every) / "last.safetensors").model
        drawn.append([t for name, t in model.state_dict().items() if name.endswith("omega")])
    start = [t for name, t in EnergyModel(config.model, config.seed).state_dict().items() if name.endswith("omega")]
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], start, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(drawn[1], start, strict=True))


def without(folder, source, field, indices):
    records = [to_record(structure) for structure in open_dataset(source)]
    for i in indices:
        del records[i][field]
    write_lmdb(folder / "changed.lmdb", records, progress=False)
    return str(folder / "changed.lmdb")


def test_without_relaxed_positions_the_displacement_head_is_left_out(make_config, tiny_data, tmp_path):
    path = without(tmp_path, tiny_data / "train.lmdb", "pos_relaxed", {0})
    lines = []
    train(make_config(**QUICK, **{"data.train": path}), tmp_path / "run", say=lines.append)
    assert any("without the displacement head" in line for line in lines)
    assert load_model(tmp_path / "run" / "best.safetensors").model.displacement_head is None
    with pytest.raises(InputError, match="noisy_nodes"):
        EnergyDataModule(make_config(**{"data.train": path, "loss.noisy_nodes": True}))


def test_splits_are_recorded_by_name_in_order(make_config, tiny_data, tmp_path):
    val, lines = {"z-far": str(tiny_data / "other.lmdb"), "a_near": str(tiny_data / "val.lmdb")}, []
    result = train(make_config(**QUICK, **{"data.val": val}), tmp_path / "run", say=lines.append)
    (record,) = read_records(tmp_path / "run")
    assert result.best == record["z-far/energy_mae"]
    names = [f"{split}/{metric}" for split in val for metric in ("energy_mae", "energy_rmse", "ewt")]
    assert list(record)[2:8] == names
    assert lines[-1].index("z-far") < lines[-1].index("a_near")


class WatchBar(Callback):
    """Keeps the state of the bar at every validation; stops at a step of choice."""

    def __init__(self, stop=-1):
        self.stop, self.seen, self.recorder = stop, [], None

    @property
    def bar(self):
        return self.recorder and self.recorder._bar

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        (self.recorder,) = (callback for callback in trainer.callbacks if isinstance(callback, RunRecorder))
        if trainer.global_step == self.stop:
            assert self.bar
            raise KeyboardInterrupt

    def on_validation_epoch_start(self, trainer, pl_module):
        task = self.bar.tasks[0]
        self.seen.append((task.description, task.completed, task.total))


def test_a_bar_on_a_terminal(make_config, tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr("molflt.training.recorder.HEARTBEAT_SECONDS", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    watch, lines = WatchBar(), []
    train(make_config(), tmp_path / "run", False, lambda line: lines.append((line, watch.bar)), [watch])
    assert watch.seen == [("validating", 6, 6)] * 2
    assert [line[:5] for line, _ in lines[1:]] == ["epoch", "epoch"]
    assert not any(bar for _, bar in lines)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tiny_run / "metrics.jsonl").read_bytes()
    watch = WatchBar(stop=1)
    with pytest.raises(KeyboardInterrupt):
        go(make_config(), tmp_path / "stopped", watch)
    assert watch.bar is None


def test_lines_where_there_is_no_terminal(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr("molflt.training.recorder.HEARTBEAT_SECONDS", -1.0)
    lines = []
    train(make_config(**{"trainer.max_epochs": 1}), tmp_path / "run", say=lines.append)
    signs = [line for line in lines if "batch" in line]
    assert len(signs) == 6
    assert signs[2].startswith("epoch 1: batch 3 of 6, loss ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer.accelerator": "gpu"}, "no usable CUDA GPU"),
        ({"trainer.devices": 10_000}, r"trainer.devices=10000: this machine has \d+ cores"),
        *(
            ({"trainer.loggers": [name]}, rf"^trainer.loggers: .*molflt\[{name}\]")
            for name in ("tensorboard", "wandb")
        ),
    ],
    ids=str,
)
def test_what_this_machine_does_not_have(changes, message, make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("tensorboard", "wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=message):
        train(make_config(**changes), tmp_path / "run", say=quiet)
