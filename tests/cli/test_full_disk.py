"""No room, no permission, or another writer: one line with the remedy, and what was there before stays whole.

The room is a limit on the size of files, which the system enforces as it enforces a full disk, for root too.
"""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from molflt.cli.terminal import system_error
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.files import sole_writer
from molflt.prediction.output import Prediction, write_predictions
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
    (line,) = [line for line in result.err.splitlines() if line.startswith("Error: ")]
    assert result.err.endswith(f"{line}\n"), result
    assert name in line
    assert remedy in line
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
    assert "repeat the command to resume" in result.err
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


@pytest.mark.parametrize("command", ["train", "convert", "prepare", "predict", "merge", "evaluate", "fetch"])
def test_a_file_in_place_of_a_folder(command, molflt, model_path, tiny_data, make_config, tmp_path):
    """As root every folder can be written to; a path through a file leads nowhere for root as well."""
    blocked, data = tmp_path / "blocked", tiny_data / "other.lmdb"
    blocked.write_text("my work", encoding="utf-8")
    if command == "merge":
        assert molflt("predict", model_path, data, "-o", tmp_path / "o.csv", "--shard", "1/1").status == 0
    arguments = {
        "train": (written(make_config(**QUICK), tmp_path), "--out", blocked / "run", "--no-report"),
        "convert": (data, blocked / "o.lmdb"),
        "prepare": (data, "-o", blocked / "set"),
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


COMMANDS = {
    "convert": ("convert", "DATA", "OUT.lmdb"),
    "predict": ("predict", "MODEL", "DATA", "-o", "OUT.csv"),
    "merge": ("merge", "DATA", "-o", "OUT.npz"),
    "evaluate": ("evaluate", "MODEL", "DATA", "--report", "OUT.html"),
    "adsorb": ("adsorb", "OC", "--on", "Cu", "--model", "MODEL", "-o", "OUT.csv"),
    "explain": ("explain", "MODEL", "CCO", "-o", "OUT.html"),
    "plot": ("plot", "rpe", "MODEL", "-o", "OUT.svg"),
    "average": ("average", "MODEL", "MODEL", "-o", "OUT.safetensors"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_second_is_refused(command, overwrite, molflt, model_path, tiny_data, tmp_path):
    if overwrite and command == "average":
        pytest.skip("replaces no file")
    words = {"MODEL": model_path, "DATA": tiny_data / "val.lmdb"}
    arguments = [words.get(word) or word.replace("OUT", str(tmp_path / "out")) for word in COMMANDS[command]]
    (out,) = (Path(word) for word in arguments if str(word).startswith(str(tmp_path)))
    if overwrite:
        arguments.append("--overwrite")
        out.write_bytes(b"the good file")
    with sole_writer(out):
        result = molflt(*arguments)
    assert result.status == 2, result
    assert result.err.startswith(f"Error: {out}: another process is writing it; wait for it, end it, or choose")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == ([b"the good file"] if overwrite else [])


def test_a_file_that_the_first_has_finished_in_between(molflt, model_path, tiny_data, tmp_path, monkeypatch):
    """It is there when the second gets its turn, though it was not when the second looked first."""
    out = tmp_path / "out.csv"

    def first_ends(*arguments):
        out.write_text("of the first", encoding="utf-8")
        return sole_writer(*arguments)

    monkeypatch.setattr("molflt.cli.terminal.sole_writer", first_ends)
    result = molflt("predict", model_path, tiny_data / "val.lmdb", "-o", out, status=2)
    assert "exists already" in result.err
    assert out.read_text(encoding="utf-8") == "of the first"


def test_splits_of_one_submission_may_be_written_at_once(tmp_path, monkeypatch):
    path = tmp_path / "all.npz"
    prediction = Prediction(np.array([1.0]), ["a"], {}, ids=["7"])
    second = threading.Thread(target=write_predictions, args=(path, prediction, None, "energy", "ood_ads"))
    save = np.savez_compressed

    def slowly(*arguments, **arrays):
        if not second.ident:
            second.start()
            time.sleep(0.3)
        save(*arguments, **arrays)

    monkeypatch.setattr(np, "savez_compressed", slowly)
    write_predictions(path, prediction, None, "energy", "id")
    second.join()
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == {"id_ids", "id_energy", "ood_ads_ids", "ood_ads_energy"}
