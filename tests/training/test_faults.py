"""What fails around a run: a disk at any of its files, and processes that load data. It costs at most an epoch."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from molflt.errors import InputError
from molflt.training import prepared
from molflt.training.prepared import NoisyDataset
from molflt.training.run_directory import find_checkpoint, read_records
from tests.training.runs import assert_same_run, go

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and their files are found through /proc")


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
    """The old one stays under its name until the new one is on the disk."""
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
    monkeypatch.setattr(prepared, "CACHED_ATOMS", 0)
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
