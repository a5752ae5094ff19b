"""Files are complete or absent, and a lock ends with its process, however that dies."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from molflt import files
from molflt.errors import InputError
from molflt.files import alone, atomic_file, is_leftover, remove_leftovers, sole_writer
from tests.conftest import REPOSITORY

HOLD = """
import sys
from pathlib import Path
from molflt.files import alone, atomic_file
with alone(Path(sys.argv[1]), "busy"), atomic_file(Path(sys.argv[1], "a.txt")) as file:
    file.write_text("half", encoding="utf-8")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_is_killed_leaves_its_lock_and_the_old_file(tmp_path):
    (tmp_path / "a.txt").write_text("old", encoding="utf-8")
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
        assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "old"
        (left,) = [path for path in tmp_path.iterdir() if path.name != "a.txt"]
        assert is_leftover(left)
        remove_leftovers(tmp_path, ["b.txt"])
        assert left.exists()
        remove_leftovers(tmp_path, ["?.txt"])
    # and no lock file
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_without_locks_there_is_nothing_to_wait_for(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "lock_descriptor", refuse)
    with alone(tmp_path, "wait for it"):
        pass


HURRY = """
import sys, time
from pathlib import Path
from molflt.files import alone, sole_writer
place, log = Path(sys.argv[1]), Path(sys.argv[2])
def enter():
    with log.open("a", encoding="utf-8") as file:
        file.write("in ")
    time.sleep(0.001)
    with log.open("a", encoding="utf-8") as file:
        file.write("out ")
for _ in range(40):
    with sole_writer(place / "a", wait=True):
        enter()
"""


def test_a_claim_keeps_others_out_and_leaves_nothing(tmp_path):
    """Also while claims are given up and taken anew, each of which removes and makes the file that is locked."""
    log = tmp_path / "log"
    processes = [subprocess.Popen([sys.executable, "-c", HURRY, str(tmp_path / "new"), str(log)]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert log.read_text(encoding="utf-8") == "in out " * 120
    # The folder may stay: who made it does not go last.
    assert list((tmp_path / "new").glob("*")) == []


def test_each_file_and_part_has_its_claim(tmp_path):
    path = tmp_path / "a.csv"
    (tmp_path / ".a.csv.lock").write_text("of a killed process", encoding="utf-8")
    with sole_writer(path):
        with pytest.raises(InputError, match=f"^{path}: another process is writing it"), sole_writer(path):
            pass
        with sole_writer(path, "a part"), sole_writer(tmp_path / "b.csv"):
            pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="is a file; choose another folder"), alone(tmp_path / "file", "busy"):
        pass
    # No claim, but no endless wait for one.
    with pytest.raises(OSError, match="file"), sole_writer(tmp_path / "file" / "a.csv"):
        pass


def test_a_folder_is_made_for_who_is_alone_in_it_and_goes_if_it_stays_empty(tmp_path):
    folder = tmp_path / "new" / "run"
    with alone(folder, "busy"):
        with pytest.raises(InputError, match=f"^{folder}: busy$"), alone(folder, "busy"):
            pass
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []
    with alone(folder, "busy"):
        (folder / "a").touch()
    with alone(folder, "busy"):
        (folder / "a").unlink()
    assert list(folder.iterdir()) == []


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "new folder" / "a.txt"
    with pytest.raises(IndexError), atomic_file(path) as file:
        file.write_text(["half"][1], encoding="utf-8")
    assert list(path.parent.iterdir()) == []
    with atomic_file(path) as file:
        file.write_text("whole", encoding="utf-8")
    assert [(p.name, p.read_text(encoding="utf-8")) for p in path.parent.iterdir()] == [("a.txt", "whole")]
    # errors name the file that was meant, not the temporary one
    with pytest.raises(FileNotFoundError) as caught, atomic_file(path) as file:
        file.unlink(missing_ok=True)
    assert caught.value.filename == str(path)


def test_no_file_of_our_own_is_named_where_nothing_can_be_written(tmp_path, monkeypatch):
    """A disk that is read-only refuses also to remove what is not there."""

    def read_only(self, missing_ok=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "unlink", read_only)
    path = tmp_path / "a.csv"
    with pytest.raises(OSError, match="Read-only") as caught, atomic_file(path) as temporary:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(temporary))
    assert caught.value.filename == str(path)


def test_bundled_data_are_found_by_name(monkeypatch, tmp_path):
    """A clone reads its own; an installation without data says so."""
    assert files.resolve_path("bundled:fg/val.lmdb") == REPOSITORY / "data" / "fg" / "val.lmdb"
    assert files.resolve_path("some/path") == Path("some/path")
    with pytest.raises(InputError, match=r"bundled:fg/test\.lmdb: no such file.*bundled:fg/train\.lmdb"):
        files.resolve_path("bundled:fg/test.lmdb")
    monkeypatch.setattr(files, "_FOLDERS", (tmp_path / "data_sets", tmp_path / "data"))
    with pytest.raises(InputError, match=r"bundled:fg/val\.lmdb: .*no bundled data.*install molflt again"):
        files.resolve_path("bundled:fg/val.lmdb")
