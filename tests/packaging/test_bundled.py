"""The bundled data are found by name, and the package's namespace stays light."""

import subprocess
import sys
from pathlib import Path

import pytest

import molflt
from molflt import bundled
from molflt.bundled import resolve_path
from molflt.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]


def test_a_clone_reads_its_own_data() -> None:
    assert resolve_path("bundled:fg/val.lmdb") == REPOSITORY / "data" / "fg" / "val.lmdb"
    assert resolve_path("some/path") == Path("some/path")


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"bundled:fg/test\.lmdb: no such file.*bundled:fg/train\.lmdb"):
        resolve_path("bundled:fg/test.lmdb")


def test_an_installation_without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundled, "_FOLDERS", (tmp_path / "data_sets", tmp_path / "data"))
    with pytest.raises(InputError, match=r"bundled:fg/val\.lmdb: .*no bundled data.*install molflt again"):
        resolve_path("bundled:fg/val.lmdb")


def test_the_namespace_is_listed_and_light() -> None:
    """``import molflt`` loads neither torch nor numpy; ``dir`` shows what can be asked for."""
    assert {"load", "Model", "InputError", "__version__"} <= set(dir(molflt))
    assert molflt.InputError is InputError
    program = "import sys, molflt; print(*sorted({'torch', 'numpy', 'ase', 'rdkit', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
