"""A run that was stopped, by whatever, and resumed is the run that was never stopped."""

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.prepare import prepare
from molflt.data.record import to_record
from molflt.errors import InputError
from molflt.files import alone
from molflt.model.file import load_model
from molflt.report import model as report
from molflt.report.model import training_report
from molflt.training import run as run_module
from molflt.training import training_structures
from molflt.training.ensemble import train_ensemble
from molflt.training.run import train
from molflt.training.run_dir import find_checkpoint, read_records
from molflt.training.training_structures import NoisyDataset
from tests.training.runs import (
    QUICK,
    CrashBetweenFiles,
    Stop,
    StopValidation,
    assert_same_run,
    environment,
    go,
    quiet,
    written,
)

EVERYTHING_RANDOM = {
    "model.dropout": 0.2,
    "model.attention_dropout": 0.1,
    "loss.noisy_nodes": True,
    "optimiser.name": "muon",
    "optimiser.ema_decay": 0.95,
    "trainer.max_epochs": 5,
    "trainer.patience": 4,
}


@pytest.fixture(scope="module")
def reference(make_config, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    go(make_config(**EVERYTHING_RANDOM), run_dir)
    assert len(read_records(run_dir)) == 5
    return run_dir


@pytest.fixture
def copied_run(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    return tmp_path / "run"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_stopped_again_and_again_is_the_uninterrupted_one(reference, make_config, tmp_path):
    """Before the first checkpoint, in a validation, between an epoch's files, in an epoch; then two files are cut."""
    config, run_dir, handler = make_config(**EVERYTHING_RANDOM), tmp_path / "run", signal.getsignal(signal.SIGINT)
    for stop in (Stop(0, 3), StopValidation(0), CrashBetweenFiles(1), Stop(3, 0), Stop(3, 2)):
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            go(config, run_dir, stop, resume=True)
        # Ctrl-C works as before.
        assert signal.getsignal(signal.SIGINT) is handler
    assert len(read_records(run_dir)) == 3
    # Records come from the checkpoint, and the latest model is written again.
    os.truncate(run_dir / "metrics.jsonl", 100)
    os.truncate(run_dir / "last.safetensors", 1000)
    go(config, run_dir, resume=True)
    assert_same_run(run_dir, reference)


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and their files are found through /proc")


class Kill(Stop):
    """A process that is killed, with no time to tidy up, before a batch of choice."""

    def on_train_batch_start(self, *arguments):
        try:
            super().on_train_batch_start(*arguments)
        except KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGKILL)


def go_on(config, run_dir, callback):
    go(config, run_dir, callback, resume=True)


@on_linux
@pytest.mark.slow
def test_killed_ten_times_in_the_first_epoch_of_a_prepared_set(make_config, tiny_data, tmp_path):
    prepare([str(tiny_data / "train.lmdb")], tmp_path / "train", n_processes=1)
    changes = {"data.train": str(tmp_path / "train"), "data.max_atoms": 60, "trainer.max_epochs": 2}
    config, fork = make_config(**EVERYTHING_RANDOM | changes), multiprocessing.get_context("fork")
    go(config, tmp_path / "whole")
    for k in range(10):
        process = fork.Process(target=go_on, args=(config, tmp_path / "killed", Kill(0, k % 5)))
        process.start()
        process.join(timeout=300)
        assert process.exitcode == -signal.SIGKILL
    go(config, tmp_path / "killed", resume=True)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


DRAWING = [
    {"mechanism": "kernelised", "n_features": 8, "redraw_every": 3},
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("lara-rpe", "ra-rpe")),
]


@pytest.mark.parametrize("attention", DRAWING, ids=str)
def test_attention_that_draws_while_training(attention, make_config, tmp_path):
    config = make_config(**{**EVERYTHING_RANDOM, "model.attention": attention, "trainer.max_epochs": 2})
    go(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(config, tmp_path / "stopped", Stop(1, 1))
    go(config, tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_to_the_command(number, status, make_config, tmp_path):
    file = written(make_config(**{"trainer.max_epochs": 5000, "optimiser.lr": 1e-5}), tmp_path)
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "molflt.cli.main", "train", file, "--out", run_dir],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
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


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_stopped_command_says_how_to_go_on(stop, status, molflt, make_config, tmp_path, monkeypatch):
    def stopped(*arguments, **options):
        raise stop

    monkeypatch.setattr("molflt.training.run.train", stopped)
    result = molflt("train", written(make_config(), tmp_path), "--out", tmp_path / "run")
    assert result.status == status
    assert f"--resume auto (run directory {tmp_path}" in "".join(result.err.splitlines())


def test_resuming_nothing_starts_and_resuming_the_end_changes_nothing(make_config, tiny_run, tmp_path):
    lines = []
    result = train(make_config(), tmp_path, resume=True, say=lines.append)
    assert_same_run(tmp_path, tiny_run)
    assert "28 structures" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["epoch", "epoch"]
    before = contents(tmp_path)
    assert go(make_config(), tmp_path, resume=True) == result
    assert contents(tmp_path) == before


def test_another_configuration_is_refused(make_config, tiny_run):
    changed = make_config(**{"optimiser.lr": 1e-4, "model.n_layers": 2})
    with pytest.raises(InputError) as caught:
        go(changed, tiny_run, resume=True)
    message = str(caught.value)
    assert "optimiser.lr: 0.005 then, 0.0001 now" in message
    assert "model.n_layers: 1 then, 2 now" in message
    assert "seed" not in message


def test_changed_data_is_refused(make_config, tiny_data, tmp_path):
    records = [to_record(structure) for structure in open_dataset(tiny_data / "train.lmdb")]
    path = tmp_path / "train.lmdb"
    write_lmdb(path, records, progress=False)
    config = make_config(**{**QUICK, "data.train": str(path), "trainer.max_epochs": 2})
    with pytest.raises(KeyboardInterrupt):
        go(config, tmp_path / "run", Stop(1, 0))
    write_lmdb(path, records[:-1], progress=False, overwrite=True)
    with pytest.raises(InputError, match="has changed since the run was started"):
        go(config, tmp_path / "run", resume=True)


def test_damaged_checkpoints(make_config, copied_run, tiny_run, tmp_path):
    checkpoint, previous = copied_run / "last.ckpt", copied_run / "previous.ckpt"
    whole = checkpoint.read_bytes()
    assert find_checkpoint(copied_run) == (checkpoint, [])
    for damaged in (b"", b"garbage" * 100, whole[: len(whole) // 2]):
        checkpoint.write_bytes(damaged)
        assert find_checkpoint(copied_run) == (previous, [checkpoint])
    (copied_run / "last.safetensors").unlink()
    said = []
    train(make_config(), copied_run, resume=True, say=said.append)
    assert any("last.ckpt: is damaged; resuming from" in line for line in said)
    assert_same_run(copied_run, tiny_run)
    for path in (checkpoint, previous):
        path.write_bytes(whole[:1000])
    with pytest.raises(InputError, match=r"last\.ckpt: is damaged"):
        go(make_config(), copied_run, resume=True)
    checkpoint.unlink()
    with pytest.raises(InputError, match=r"previous\.ckpt: is damaged"):
        find_checkpoint(copied_run)
    previous.unlink()
    assert find_checkpoint(copied_run) == (None, [])


def test_checkpoints_are_not_trusted(copied_run, tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "attacked",))

    torch.save({"state_dict": Payload()}, copied_run / "last.ckpt")
    (copied_run / "previous.ckpt").unlink()
    with pytest.raises(InputError, match=r"last\.ckpt"):
        find_checkpoint(copied_run)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("name", ["best.safetensors", "last.safetensors"])
def test_a_damaged_model_of_a_finished_run_is_refused(name, make_config, copied_run):
    os.truncate(copied_run / name, (copied_run / name).stat().st_size - 1)
    with pytest.raises(InputError, match=rf"{name}: is missing, damaged or older .*remove .*run and start again"):
        go(make_config(), copied_run, resume=True)


def test_a_damaged_model_that_is_kept_to_average(make_config, tmp_path):
    """Of an epoch that is over: refused by name, and removing it is enough. Of one to come: written again."""
    config, run_dir = make_config(**{**QUICK, "trainer.max_epochs": 4, "trainer.keep_last": 9}), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        go(config, run_dir, Stop(2, 0))
    over, to_come = (run_dir / f"epoch-{epoch:06d}.safetensors" for epoch in (1, 3))
    os.truncate(over, over.stat().st_size - 1)
    to_come.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(InputError, match=rf"{over.name}: is missing, damaged .*remove it and resume without it"):
            go(config, run_dir, resume=True)
    over.unlink()
    go(config, run_dir, resume=True)
    kept = sorted(run_dir.glob("epoch-*.safetensors"))
    assert [load_model(file).metadata.epoch + 1 for file in kept] == [2, 3, 4]
    os.truncate(kept[-1], 1000)
    with pytest.raises(InputError, match=r"epoch-000004\.safetensors: is missing, damaged"):
        go(config, run_dir, resume=True)


def test_what_a_killed_process_leaves_is_cleared_away(make_config, tmp_path):
    """Killed while it wrote its first file: the folder is no other's, and holds nothing in the end."""
    for name in (".config.0123abcd.partial.yaml", ".last.89abcdef.partial.ckpt", ".skipped.89abcdef.partial.csv"):
        (tmp_path / name).write_text("half", encoding="utf-8")
    train(make_config(**QUICK), tmp_path, resume=True, say=quiet)
    (tmp_path / ".report.0123abcd.partial.html").write_text("half", encoding="utf-8")
    assert training_report(tmp_path, make_config(**QUICK)).stat().st_size > 1000
    assert not list(tmp_path.glob(".*"))


def test_run_directories_are_protected(make_config, tiny_run, tmp_path):
    before = contents(tiny_run)
    with pytest.raises(InputError, match="--resume auto"):
        go(make_config(), tiny_run)
    assert contents(tiny_run) == before
    (tmp_path / "thesis.tex").write_text("all my work", encoding="utf-8")
    for resume in (False, True):
        with pytest.raises(InputError, match="not empty and not a run"):
            go(make_config(), tmp_path, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        go(make_config(), tmp_path / "thesis.tex")


@pytest.mark.parametrize("ensemble", [1, 2])
def test_two_runs_begun_at_once_in_one_new_folder(make_config, tmp_path, monkeypatch, ensemble):
    """The second begins while the first reads its data, before anything is written."""
    pytest.importorskip("fcntl")
    config, run_dir = make_config(**QUICK, ensemble=ensemble), tmp_path / "new" / "run"
    start = train if ensemble == 1 else train_ensemble
    reading, refused = run_module.EnergyDataModule, []

    def second_begins(*arguments):
        if not refused:
            refused.append(None)
            with pytest.raises(InputError, match=f"^{run_dir}: another process is training there"):
                start(config, run_dir, say=quiet)
            refused.append(sorted(path.name for path in run_dir.iterdir()))
        return reading(*arguments)

    monkeypatch.setattr(run_module, "EnergyDataModule", second_begins)
    start(config, run_dir, say=quiet)
    assert len(refused) == 2
    assert refused[1] == ([] if ensemble == 1 else ["config.yaml", "member-0"])
    # And a run that fails on its data leaves no folder behind.
    monkeypatch.setattr(run_module, "EnergyDataModule", reading)
    with pytest.raises(InputError, match="no such file"):
        go(make_config(**{"data.train": str(tmp_path / "absent.lmdb")}), tmp_path / "other" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_another_run_begins_after_the_report(model_path, tiny_data, tmp_path, monkeypatch, molflt):
    """It clears away what is half-written."""
    pytest.importorskip("fcntl")
    files = ("--train", tiny_data / "train.lmdb", "--val", tiny_data / "val.lmdb", "--out", tmp_path / "run")
    command = ("train", "--from", model_path, *files, "trainer.max_epochs=1", "data.num_workers=0")
    write = training_report

    def second_begins(*arguments):
        with pytest.raises(InputError, match="busy"), alone(tmp_path / "run", "busy"):
            pass
        return write(*arguments)

    monkeypatch.setattr(report, "training_report", second_begins)
    assert molflt(*command).status == 0
    assert (tmp_path / "run/report.html").exists()


@pytest.mark.parametrize(
    ("name", "nth", "kept"),
    [("best.safetensors", 1, False), ("metrics.csv", 2, False), ("previous.ckpt", 1, True), ("last.ckpt", 2, True)],
)
def test_a_file_that_cannot_take_its_name(name, nth, kept, make_config, tiny_run, tmp_path, monkeypatch):
    sound, count = os.replace, 0

    def refused(source, target):
        nonlocal count
        count += Path(target).name == name
        if Path(target).name == name and count == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sound(source, target)

    monkeypatch.setattr(os, "replace", refused)
    run_dir = tmp_path / "run"
    with pytest.raises(OSError, match="No space left on device") as caught:
        go(make_config(), run_dir)
    assert Path(caught.value.filename).parent == run_dir
    checkpoint, damaged = find_checkpoint(run_dir)
    assert (checkpoint is not None) == kept
    assert not damaged
    go(make_config(), run_dir, resume=True)
    assert_same_run(run_dir, tiny_run)


@on_linux
def test_a_disk_that_does_not_keep_a_checkpoint(make_config, tiny_run, tmp_path, monkeypatch):
    run_dir, sound = tmp_path / "run", os.fsync

    def failing(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.name.startswith(".last.") and path.suffix == ".ckpt" and (run_dir / "last.ckpt").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sound(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            go(make_config(), run_dir)
    assert (run_dir / "last.ckpt").exists()
    assert not (run_dir / "previous.ckpt").exists()
    go(make_config(), run_dir, resume=True)
    assert_same_run(run_dir, tiny_run)


WORKERS = {"loss.noisy_nodes": True, "data.num_workers": 1}


@pytest.mark.slow
def test_worker_processes_change_nothing(make_config, tmp_path, monkeypatch):
    # Small sets are cached, and a cache needs no workers.
    monkeypatch.setattr(training_structures, "CACHED_ATOMS", 0)
    for workers in (0, 1, 3):
        config = make_config(**{**WORKERS, "model.dropout": 0.2, "data.num_workers": workers})
        go(config, tmp_path / str(workers))
    for workers in (1, 3):
        assert_same_run(tmp_path / str(workers), tmp_path / "0")


@on_linux
def test_a_run_whose_loader_was_killed_goes_on_as_if_not(make_config, tmp_path, monkeypatch):
    def killed(self, index):
        if self.epoch == 1:
            assert os.getpid() != first
            os.kill(os.getpid(), signal.SIGKILL)
        return get(self, index)

    first, get = os.getpid(), NoisyDataset.__getitem__
    monkeypatch.setattr(NoisyDataset, "__getitem__", killed)
    with pytest.raises(ChildProcessError, match="a loader process was killed"):
        go(make_config(**WORKERS), tmp_path / "run")
    assert len(read_records(tmp_path / "run")) == 1
    monkeypatch.undo()
    go(make_config(**WORKERS), tmp_path / "run", resume=True)
    # That loader processes change nothing is tested above.
    go(make_config(**{**WORKERS, "data.num_workers": 0}), tmp_path / "whole")
    assert read_records(tmp_path / "run") == read_records(tmp_path / "whole")


def test_a_mistake_met_in_a_loader_is_said_without_its_traceback(make_config, tmp_path, monkeypatch):
    def refuse(self, index):
        raise InputError("train.lmdb#3: atoms 0 and 1 coincide; remove one of them")

    monkeypatch.setattr(NoisyDataset, "__getitem__", refuse)
    with pytest.raises(InputError) as error:
        go(make_config(**WORKERS), tmp_path / "run")
    assert str(error.value) == "train.lmdb#3: atoms 0 and 1 coincide; remove one of them"
