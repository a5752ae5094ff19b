"""A write that fails, at any of a run's files, costs at most an epoch; worker processes change nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from molflt.training.bad_batches import FILE, forget_from

from molflt.errors import InputError
from molflt.training import datasets
from molflt.training.config import TrainConfig
from molflt.training.run import train
from molflt.training.run_directory import find_checkpoint
from tests.training.test_resume import assert_same_run, quiet

MakeConfig = Callable[..., TrainConfig]


@pytest.mark.parametrize(
    ("name", "nth"),
    [
        ("config.yaml", 1),
        ("metrics.csv", 2),
        pytest.param("best.safetensors", 1, marks=pytest.mark.slow),
        ("last.ckpt", 1),
        pytest.param("metrics.jsonl", 3, marks=pytest.mark.slow),
        ("previous.ckpt", 1),
        ("last.ckpt", 2),
    ],
)
def test_a_file_that_cannot_take_its_name(
    name: str, nth: int, make_config: MakeConfig, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, count = os.replace, 0

    def refused(source: Any, target: Any) -> None:
        nonlocal count
        count += Path(target).name == name
        if Path(target).name == name and count == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sound(source, target)

    monkeypatch.setattr(os, "replace", refused)
    run_dir = tmp_path / "run"
    with pytest.raises(OSError, match="No space left on device") as caught:
        train(make_config(), run_dir, say=quiet)
    assert Path(caught.value.filename).parent == run_dir
    checkpoint, damaged = find_checkpoint(run_dir)
    before_the_first = [("config.yaml", 1), ("metrics.csv", 2), ("best.safetensors", 1), ("last.ckpt", 1)]
    assert (checkpoint is None) == ((name, nth) in before_the_first)
    assert not damaged
    train(make_config(), run_dir, resume=True, say=quiet)
    assert_same_run(run_dir, tiny_run)


def test_a_disk_that_does_not_keep_a_checkpoint(
    make_config: MakeConfig, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one stays under its name until the new one is on the disk."""
    run_dir, sound = tmp_path / "run", os.fsync

    def failing(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.name.startswith(".last.") and path.suffix == ".ckpt" and (run_dir / "last.ckpt").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sound(descriptor)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc: which file is synced cannot be told")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            train(make_config(), run_dir, say=quiet)
    assert (run_dir / "last.ckpt").exists()
    assert not (run_dir / "previous.ckpt").exists()
    train(make_config(), run_dir, resume=True, say=quiet)
    assert_same_run(run_dir, tiny_run)


@pytest.mark.slow
def test_worker_processes_change_nothing(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small sets are cached, and a cache needs no workers.
    monkeypatch.setattr(datasets, "CACHED_ATOMS", 0)
    random = {"model.dropout": 0.2, "loss.noisy_nodes": True}
    for workers in (0, 1, 3):
        train(make_config(**random, **{"data.num_workers": workers}), tmp_path / str(workers), say=quiet)
    for workers in (1, 3):
        assert_same_run(tmp_path / str(workers), tmp_path / "0")


def test_bad_batches_of_repeated_epochs_are_forgotten(tmp_path: Path) -> None:
    lines = [f'{{"epoch": {epoch}, "step": {step}}}\n' for epoch, step in [(1, 4), (2, 8), (3, 9)]]
    (tmp_path / FILE).write_text("".join(lines) + '{"epoch": 2, "st')
    forget_from(tmp_path, 3)
    assert (tmp_path / FILE).read_text() == "".join(lines[:2])


def test_nothing_is_made_of_no_bad_batches(tmp_path: Path) -> None:
    forget_from(tmp_path, 1)
    assert not (tmp_path / FILE).exists()


def test_only_damaged_checkpoints(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path) == (None, [])
    (tmp_path / "previous.ckpt").write_bytes(b"half")
    with pytest.raises(InputError, match=r"previous\.ckpt: is damaged"):
        find_checkpoint(tmp_path)
