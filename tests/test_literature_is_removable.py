"""The literature is one folder that nobody else needs: without it the package imports, is configured and passes."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EVERY_MODULE = """
import importlib, pkgutil, molflt
found = [module.name for module in pkgutil.walk_packages(molflt.__path__, "molflt.")]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
assert len(found) > 60 and not any("literature" in name for name in found)
"""
EVERY_PRESET = """
import pathlib
from typer.testing import CliRunner
from molflt.attention.registry import presets
from molflt.cli.main import app
from molflt.training.config_file import load_config
from molflt.training.presets import PRESETS
assert "lara" not in presets()
for name in PRESETS:
    done = CliRunner().invoke(app, ["config", name])
    assert done.exit_code == 0, (name, done.output)
    pathlib.Path("c.yaml").write_text(done.stdout)
    load_config("c.yaml", [])
"""


NOT_ELSEWHERE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
"""
"""An editable installation would find the missing folder where it was installed from."""


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_other_test_needs_it() -> None:
    """What the package itself imports is in test_structure.py."""
    needing = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        of_literature = {m for m in imports(path) if m.split(".")[1:2] == ["literature"]}
        if of_literature:
            needing[path.relative_to(ROOT).as_posix()] = of_literature
    assert any(path.startswith("tests/literature/") for path in needing)
    assert {path: found for path, found in needing.items() if not path.startswith("tests/literature/")} == {}


@pytest.fixture(scope="module")
def without_literature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository that has never heard of the literature."""
    copy = tmp_path_factory.mktemp("without") / "molflt"
    copy.mkdir()
    for folder in ("molflt", "tests", "scripts", "docs"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("literature*", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "data").symlink_to(ROOT / "data")
    (copy / "sitecustomize.py").write_text(NOT_ELSEWHERE, encoding="utf-8")
    assert not list(copy.rglob("literature"))
    return copy


def run(copy: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.slow
def test_every_module_is_imported_and_every_preset_is_configured(without_literature: Path) -> None:
    run(without_literature, "-c", EVERY_MODULE)
    run(without_literature, "-c", EVERY_PRESET)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["tests/attention", "tests/model"])
def test_the_other_tests_pass(without_literature: Path, folder: str) -> None:
    run(without_literature, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", folder)
