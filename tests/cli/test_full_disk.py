"""No room, no permission: one line with the remedy, status 1, and what was there before stays whole.

The room is a limit on the size of files, which the system enforces as it enforces a full disk, for root too; the
errors differ in their number only.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from molflt.cli.terminal import system_error
from molflt.data.oc20.lmdb import LmdbDataset
from tests.training.runs import QUICK, assert_same_run, written

resource = pytest.importorskip("resource", reason="no limits on the size of files")
Room = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def room(monkeypatch):
    """Room for so many bytes in each file, within ``with``. Python ignores the signal, so that writes fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # What is imported here for the first time would leave half of its bytecode behind.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    @contextmanager
    def limited(n_bytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    yield limited
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def assert_refused(result, name, remedy="raise the limit on the size of files"):
    assert result.status == 1, result
    lines = result.err.strip().splitlines()
    assert len(lines) == 1, result
    assert lines[0].startswith("Error: ")
    assert name in lines[0]
    assert remedy in lines[0]
    assert "Traceback" not in result.out


def test_train(molflt, room, make_config, tiny_run, tmp_path):
    config, run_dir = written(make_config(), tmp_path), tmp_path / "run"
    command = ("train", config, "--out", run_dir, "--no-report")
    with room((tiny_run / "last.safetensors").stat().st_size - 300):
        result = molflt(*command)
        assert_refused(result, str(run_dir / "last.safetensors"))
    assert f"repeat the command with --resume auto (run directory {run_dir})" in result.err
    assert not list(run_dir.glob(".*"))
    assert not (run_dir / "last.safetensors").exists()
    assert molflt(*command, "--resume", "auto").status == 0
    assert_same_run(run_dir, tiny_run)


def test_convert(molflt, room, tiny_data, tmp_path):
    out = tmp_path / "out.lmdb"
    assert molflt("convert", tiny_data / "other.lmdb", out).status == 0
    before = out.read_bytes()
    command = ("convert", tiny_data / "train.lmdb", out, "--overwrite")
    with room(16384):
        result = molflt(*command)
        assert_refused(result, "out.lmdb.partial", "make room")
    assert "repeat the command: it goes on where it stopped" in result.err
    assert out.read_bytes() == before
    assert molflt(*command).status == 0
    found, expected = LmdbDataset(out), LmdbDataset(tiny_data / "train.lmdb")
    assert [int(a.sid) for a in found] == [int(b.sid) for b in expected]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.lmdb"]


@pytest.mark.parametrize("suffix", [".csv", ".extxyz", ".npz"])
def test_predict(suffix, molflt, room, model_path, tiny_data, tmp_path):
    out = tmp_path / f"out{suffix}"
    out.write_text("old", encoding="utf-8")
    with room(100):
        assert_refused(molflt("predict", model_path, tiny_data / "val.lmdb", "-o", out, "--overwrite"), str(out))
    assert out.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.parametrize("command", ["train", "convert", "predict", "merge", "evaluate", "fetch"])
def test_a_file_in_place_of_a_folder(command, molflt, model_path, tiny_data, make_config, tmp_path):
    """As root every folder can be written to; a path through a file leads nowhere for root as well."""
    blocked, data = tmp_path / "blocked", tiny_data / "other.lmdb"
    blocked.write_text("my work", encoding="utf-8")
    if command == "merge":
        assert molflt("predict", model_path, data, "-o", tmp_path / "o.csv", "--shard", "1/1").status == 0
    arguments = {
        "train": (written(make_config(**QUICK), tmp_path), "--out", blocked / "run", "--no-report"),
        "convert": (data, blocked / "o.lmdb"),
        "predict": (model_path, data, "-o", blocked / "o.csv"),
        "merge": (tmp_path / "o.csv.shard-1-of-1", "-o", blocked / "o.csv"),
        "evaluate": (model_path, data, "--report", blocked / "o.html"),
        "fetch": ("oc20-is2re", "--to", blocked / "oc20", "--dry-run"),
    }
    result = molflt(command, *arguments[command])
    assert result.status in (1, 2), result
    assert str(blocked) in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert any(word in result.err for word in ("choose another", "no such folder", "give a folder"))
    assert blocked.read_text(encoding="utf-8") == "my work"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_standard_output_on_a_full_disk():
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "molflt.cli.main", "config", "tiny"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=180)
    assert result.returncode == 1
    assert result.stderr.strip() == "Error: No space left on device; make room, or choose a place on another disk"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "choose a place that can be written to"),
        (errno.EACCES, "choose a place where you may"),
        (errno.EPERM, "choose a place where you may"),
        (errno.EIO, "the disk is full or reports an error; make room"),
        (errno.ENOTDIR, "choose another place"),
    ],
)
def test_every_refusal_has_its_remedy(code, remedy):
    text = system_error(OSError(code, os.strerror(code), "/data/run/last.ckpt"))
    assert text.startswith(f"/data/run/last.ckpt: {os.strerror(code)}; ")
    assert remedy in text


def test_an_error_without_a_number_is_said_as_it_is():
    error = OSError("the server is gone")
    error.add_note("try again")
    assert system_error(error) == "the server is gone; try again"
