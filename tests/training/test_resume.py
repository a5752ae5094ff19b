"""A run that was stopped and resumed is the run that was never stopped."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.data.lmdb_writer import write_lmdb
from molflt.data.records import to_record
from molflt.data.sources import open_dataset
from molflt.errors import InputError
from molflt.model.model_file import SCHEMA_VERSION, load_model, read_metadata, save_model
from molflt.report.model_report import training_report
from molflt.training.config import TrainConfig
from molflt.training.config_file import load_config, to_yaml
from molflt.training.recorder import read_records
from molflt.training.run import train

MakeConfig = Callable[..., TrainConfig]

EVERYTHING_RANDOM = {
    "model.dropout": 0.2,
    "model.attention_dropout": 0.1,
    "loss.noisy_nodes": True,
    "optimiser.ema_decay": 0.95,
    "trainer.max_epochs": 5,
    "trainer.patience": 4,
}


def quiet(line: str) -> None:
    pass


class Interrupt(Callback):
    """Ctrl-C at a moment of choice."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch = epoch, batch

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            raise KeyboardInterrupt


class InterruptValidation(Callback):
    """Ctrl-C while the validation of an epoch runs."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_validation_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == self.epoch:
            raise KeyboardInterrupt


class KillBetweenFiles(Callback):
    """A crash after the epoch's metrics and models were written and before its checkpoint."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_save_checkpoint(self, trainer: lightning.Trainer, pl_module: Any, checkpoint: Any) -> None:
        if trainer.current_epoch == self.epoch:
            raise RuntimeError("crash")


def assert_same_run(a: Path, b: Path) -> None:
    assert read_records(a) == read_records(b)
    for name in ("metrics.csv", "metrics.jsonl"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    for name in ("best.safetensors", "last.safetensors"):
        first, second = load_model(a / name), load_model(b / name)
        assert first.metadata == second.metadata
        for key, value in first.model.state_dict().items():
            assert torch.equal(value, second.model.state_dict()[key]), key


@pytest.fixture(scope="module")
def reference(make_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    train(make_config(**EVERYTHING_RANDOM), run_dir, say=quiet)
    assert len(read_records(run_dir)) == 5
    return run_dir


@pytest.mark.parametrize(
    ("stop", "error"),
    [
        (Interrupt(0, 3), KeyboardInterrupt),
        (Interrupt(2, 0), KeyboardInterrupt),
        pytest.param(Interrupt(3, 2), KeyboardInterrupt, marks=pytest.mark.slow),
        pytest.param(InterruptValidation(2), KeyboardInterrupt, marks=pytest.mark.slow),
        (KillBetweenFiles(2), RuntimeError),
    ],
    ids=["before the first checkpoint", "between epochs", "in an epoch", "in a validation", "between files"],
)
def test_resumed_run_is_the_uninterrupted_one(
    stop: Callback, error: type[BaseException], reference: Path, make_config: MakeConfig, tmp_path: Path
) -> None:
    config = make_config(**EVERYTHING_RANDOM)
    with pytest.raises(error):
        train(config, tmp_path / "run", say=quiet, callbacks=[stop])
    train(config, tmp_path / "run", resume=True, say=quiet)
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.slow
def test_interrupted_twice(reference: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**EVERYTHING_RANDOM)
    for epoch in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", resume=True, say=quiet, callbacks=[Interrupt(epoch, 1)])
    train(config, tmp_path / "run", resume=True, say=quiet)
    assert_same_run(tmp_path / "run", reference)


@pytest.mark.parametrize(
    "attention",
    [{"mechanism": "kernelised", "n_features": 8, "redraw_every": 3}, "lara-rpe", "ra-rpe"],
    ids=["redrawn features", "LARA", "RA"],
)
def test_attention_that_draws_while_training(attention: Any, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**EVERYTHING_RANDOM, **{"model.attention": attention})
    train(config, tmp_path / "whole", say=quiet)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", say=quiet, callbacks=[Interrupt(2, 1)])
    train(config, tmp_path / "stopped", resume=True, say=quiet)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_interruption_leaves_ctrl_c_working(make_config: MakeConfig, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(make_config(), tmp_path / "run", say=quiet, callbacks=[Interrupt(0, 1)])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_killed_run(reference: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**EVERYTHING_RANDOM)
    file, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    file.write_text(to_yaml(config))
    # The child stops itself in the middle of the fourth epoch, so that the kill never comes too late.
    script = f"""
import os, signal
from pathlib import Path
from lightning.pytorch.callbacks import Callback
from molflt.training.config_file import load_config
from molflt.training.run import train
class Kill(Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (3, 2):
            os.kill(os.getpid(), signal.SIGKILL)
train(load_config({str(file)!r}), Path({str(run_dir)!r}), callbacks=[Kill()])
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], timeout=180, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert killed.returncode == -signal.SIGKILL
    assert [record["epoch"] for record in read_records(run_dir)] == [0, 1, 2]
    train(load_config(file), run_dir, resume=True, say=quiet)
    assert_same_run(run_dir, reference)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signals_to_the_command(number: signal.Signals, status: int, make_config: MakeConfig, tmp_path: Path) -> None:
    file, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    file.write_text(to_yaml(make_config(**{"trainer.max_epochs": 5000, "optimiser.lr": 1e-5})))
    process = subprocess.Popen(
        [sys.executable, "-m", "molflt.cli.main", "train", file, "--out", run_dir],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell's background jobs, this test run perhaps among them, ignore interrupts and pass that on.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 150
        while not (run_dir / "last.ckpt").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert "--resume auto" in err
    assert "Traceback" not in out + err
    assert read_records(run_dir)


def test_finished_run_stays_as_it_is(make_config: MakeConfig, tmp_path: Path) -> None:
    result = train(make_config(), tmp_path / "run", say=quiet)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert train(make_config(), tmp_path / "run", resume=True, say=quiet) == result
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


def test_resume_without_a_run_starts_one(make_config: MakeConfig, tmp_path: Path) -> None:
    train(make_config(), tmp_path / "run", resume=True, say=quiet)
    assert len(read_records(tmp_path / "run")) == 2


def test_csv_has_every_epoch_once(reference: Path) -> None:
    with open(reference / "metrics.csv", newline="") as handle:
        assert [int(row["epoch"]) for row in csv.DictReader(handle)] == list(range(5))


def test_another_configuration_is_refused(make_config: MakeConfig, tiny_run: Path) -> None:
    changed = make_config(**{"optimiser.lr": 1e-4, "model.n_layers": 2})
    with pytest.raises(InputError) as caught:
        train(changed, tiny_run, resume=True, say=quiet)
    message = str(caught.value)
    assert "optimiser.lr: 0.005 then, 0.0001 now" in message
    assert "model.n_layers: 1 then, 2 now" in message
    assert "seed" not in message


def test_a_run_of_an_earlier_schema_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    """Its checkpoint holds other weights; its model is still read."""
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    last = run_dir / "last.safetensors"
    before = load_model(last)
    metadata = before.metadata.model_copy(update={"schema_version": SCHEMA_VERSION - 1})
    save_model(last, before.model, metadata)
    assert read_metadata(last).schema_version == SCHEMA_VERSION - 1
    kept = {path.name: path.read_bytes() for path in run_dir.iterdir()}
    with pytest.raises(InputError, match=f"schema {SCHEMA_VERSION - 1}, those of this one have {SCHEMA_VERSION}"):
        train(load_config(run_dir / "config.yaml"), run_dir, resume=True, say=quiet)
    assert {name: (run_dir / name).read_bytes() for name in kept} == kept


def test_changed_data_is_refused(make_config: MakeConfig, tiny_data: Path, tmp_path: Path) -> None:
    records = [to_record(structure) for structure in open_dataset(tiny_data / "train.lmdb")]
    path = tmp_path / "train.lmdb"
    write_lmdb(path, records, progress=False)
    config = make_config(**{"data.train": str(path), "trainer.max_epochs": 3})
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", say=quiet, callbacks=[Interrupt(1, 1)])
    write_lmdb(path, records[:-1], progress=False, overwrite=True)
    with pytest.raises(InputError, match="has changed since the run was started"):
        train(config, tmp_path / "run", resume=True, say=quiet)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"garbage" * 100])
def test_damaged_checkpoint(
    damage: Callable[[bytes], bytes], make_config: MakeConfig, tiny_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    checkpoint, previous = run_dir / "last.ckpt", run_dir / "previous.ckpt"
    checkpoint.write_bytes(damage(checkpoint.read_bytes()))
    (run_dir / "last.safetensors").unlink()
    said: list[str] = []
    train(make_config(), run_dir, resume=True, say=said.append)
    assert any("last.ckpt: is damaged; going on from" in line for line in said)
    assert_same_run(run_dir, tiny_run)
    for path in (checkpoint, previous):
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"last\.ckpt: is damaged"):
        train(make_config(), run_dir, resume=True, say=quiet)


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_a_damaged_model_of_a_finished_run_is_refused(
    name: str, make_config: MakeConfig, tiny_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    os.truncate(run_dir / name, (run_dir / name).stat().st_size - 1)
    with pytest.raises(InputError, match=rf"{name}: is missing or damaged, .*remove .*run and start again"):
        train(make_config(), run_dir, resume=True, say=quiet)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_damaged_model_that_is_kept_to_average(epoch: int, make_config: MakeConfig, tmp_path: Path) -> None:
    """Of an epoch that is over: refused by name, and removing it is enough. Of one to come: written again."""
    config, run_dir = make_config(**{"trainer.max_epochs": 4, "trainer.keep_last": 9}), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config, run_dir, say=quiet, callbacks=[Interrupt(2, 1)])
    path = run_dir / f"epoch-{epoch:06d}.safetensors"
    if epoch == 3:
        path.write_bytes(b"")
    else:
        os.truncate(path, path.stat().st_size - 1)
        for _ in range(2):
            with pytest.raises(InputError, match=rf"{path.name}: is damaged, .*; remove it and go on without it"):
                train(config, run_dir, resume=True, say=quiet)
        path.unlink()
    train(config, run_dir, resume=True, say=quiet)
    kept = sorted(run_dir.glob("epoch-*.safetensors"))
    assert len(kept) == (4 if epoch == 3 else 3)
    assert [load_model(file).metadata.epoch + 1 for file in kept] == [
        k for k in range(1, 5) if k != epoch or epoch == 3
    ]
    os.truncate(kept[-1], 1000)
    with pytest.raises(InputError, match=r"epoch-000004\.safetensors: is damaged"):
        train(config, run_dir, resume=True, say=quiet)


def test_records_come_from_the_checkpoint(reference: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    config, run_dir = make_config(**EVERYTHING_RANDOM), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(config, run_dir, say=quiet, callbacks=[Interrupt(2, 1)])
    os.truncate(run_dir / "metrics.jsonl", 100)
    os.truncate(run_dir / "last.safetensors", 1000)
    train(config, run_dir, resume=True, say=quiet)
    assert_same_run(run_dir, reference)


@pytest.mark.slow
def test_a_checkpoint_without_records(reference: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    """As they were written before; here between an epoch's records and its checkpoint."""
    config, run_dir = make_config(**EVERYTHING_RANDOM), tmp_path / "run"
    with pytest.raises(RuntimeError):
        train(config, run_dir, say=quiet, callbacks=[KillBetweenFiles(2)])
    checkpoint = torch.load(run_dir / "last.ckpt", weights_only=True)
    (recorder,) = (state for name, state in checkpoint["callbacks"].items() if "RunRecorder" in name)
    assert len(recorder.pop("records")) == 2
    torch.save(checkpoint, run_dir / "last.ckpt")
    train(config, run_dir, resume=True, say=quiet)
    assert_same_run(run_dir, reference)


def test_what_a_killed_process_leaves_is_cleared_away(make_config: MakeConfig, tmp_path: Path) -> None:
    """Killed while it wrote its first file: the folder is no other's, and holds nothing in the end."""
    for name in (".config.0123abcd.partial.yaml", ".last.89abcdef.partial.ckpt", ".skipped.89abcdef.partial.csv"):
        (tmp_path / name).write_text("half")
    train(make_config(**{"trainer.max_epochs": 1}), tmp_path, resume=True, say=quiet)
    assert not list(tmp_path.glob(".*"))


def test_a_report_that_was_half_written_is_cleared_away(
    make_config: MakeConfig, tiny_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(tiny_run, run_dir)
    (run_dir / ".report.0123abcd.partial.html").write_text("half")
    assert training_report(run_dir, make_config()).stat().st_size > 1000
    assert not list(run_dir.glob(".*"))


def test_checkpoints_are_not_trusted(make_config: MakeConfig, tiny_run: Path, tmp_path: Path) -> None:
    for path in tiny_run.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "attacked",))

    torch.save({"state_dict": Payload()}, tmp_path / "last.ckpt")
    (tmp_path / "previous.ckpt").unlink()
    with pytest.raises(InputError, match=r"last\.ckpt"):
        train(make_config(), tmp_path, resume=True, say=quiet)
    assert not (tmp_path / "attacked").exists()


def test_run_directories_are_protected(make_config: MakeConfig, tiny_run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in tiny_run.iterdir()}
    with pytest.raises(InputError, match="--resume auto"):
        train(make_config(), tiny_run, say=quiet)
    assert before == {path.name: path.read_bytes() for path in tiny_run.iterdir()}
    (tmp_path / "thesis.tex").write_text("all my work")
    for resume in (False, True):
        with pytest.raises(InputError, match="not empty and not a run"):
            train(make_config(), tmp_path, resume=resume, say=quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        train(make_config(), tmp_path / "thesis.tex", say=quiet)


def test_an_empty_directory_is_free(make_config: MakeConfig, tmp_path: Path) -> None:
    train(make_config(**{"trainer.max_epochs": 1}), tmp_path, say=quiet)
    assert len(read_records(tmp_path)) == 1
