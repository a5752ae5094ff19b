"""The bundled data are found by name."""

from pathlib import Path

import pytest

from molflt import files
from molflt.errors import InputError
from molflt.files import resolve_path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_clone_reads_its_own_data():
    assert resolve_path("bundled:fg/val.lmdb") == REPOSITORY / "data" / "fg" / "val.lmdb"
    assert resolve_path("some/path") == Path("some/path")


def test_a_name_that_does_not_exist():
    with pytest.raises(InputError, match=r"bundled:fg/test\.lmdb: no such file.*bundled:fg/train\.lmdb"):
        resolve_path("bundled:fg/test.lmdb")


def test_an_installation_without_data(monkeypatch, tmp_path):
    monkeypatch.setattr(files, "_FOLDERS", (tmp_path / "data_sets", tmp_path / "data"))
    with pytest.raises(InputError, match=r"bundled:fg/val\.lmdb: .*no bundled data.*install molflt again"):
        resolve_path("bundled:fg/val.lmdb")
