"""Files are complete or absent, and a lock ends with its process, however that dies."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from molflt import files
from molflt.errors import InputError
from molflt.files import alone, atomic_file, is_leftover, lock, remove_leftovers

HOLD = """
import sys
from pathlib import Path
from molflt.files import alone, atomic_file
with alone(Path(sys.argv[1]), "busy"), atomic_file(Path(sys.argv[1], "a.txt")) as file:
    file.write_text("half", encoding="utf-8")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_is_killed_leaves_its_lock_and_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=f"^{tmp_path}: wait for it$"), alone(tmp_path, "wait for it"):
        pass
    holder.kill()
    holder.communicate()
    with alone(tmp_path, "wait for it"):
        assert (tmp_path / "a.txt").read_text() == "old"
        (left,) = [path for path in tmp_path.iterdir() if path.name != "a.txt"]
        assert is_leftover(left)
        remove_leftovers(tmp_path, ["b.txt"])
        assert left.exists()
        remove_leftovers(tmp_path, ["?.txt"])
    # and no lock file
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_itself_is_locked_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"content")
    with open(path, "r+b") as first, open(path, "r+b") as second:
        assert lock(first.fileno())
        assert not lock(second.fileno())
    with open(path, "r+b") as third:
        assert lock(third.fileno())
    assert path.read_bytes() == b"content"


def test_without_locks_there_is_nothing_to_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "lock_descriptor", refuse)
    with alone(tmp_path, "wait for it"):
        pass


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.txt"
    with pytest.raises(IndexError), atomic_file(path) as file:
        file.write_text(["half"][1])
    assert list(path.parent.iterdir()) == []
    with atomic_file(path) as file:
        file.write_text("whole")
    assert [(p.name, p.read_text()) for p in path.parent.iterdir()] == [("a.txt", "whole")]
    # errors name the file that was meant, not the temporary one
    with pytest.raises(FileNotFoundError) as caught, atomic_file(path) as file:
        file.unlink(missing_ok=True)
    assert caught.value.filename == str(path)


def test_no_file_of_our_own_is_named_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is read-only refuses also to remove what is not there."""

    def read_only(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "unlink", read_only)
    path = tmp_path / "a.csv"
    with pytest.raises(OSError, match="Read-only") as caught, atomic_file(path) as temporary:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(temporary))
    assert caught.value.filename == str(path)
