"""Notebooks are committed without outputs, and run from top to bottom."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIMEOUT = 300
"""Seconds for a cell, on one busy core."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_the_notebooks_are_there() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"quickstart", "adsorption", "invariance", "your_own_data"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_outputs_are_stored(path: Path) -> None:
    """They would grow the repository, and show what another version printed."""
    notebook = read(path)
    nbformat.validate(notebook)
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            assert not cell.outputs, f"cell {number}: run 'jupyter nbconvert --clear-output --inplace {path.name}'"
            assert cell.execution_count is None, f"cell {number}"
        assert not cell.metadata, f"cell {number}"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    text = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("http")]
    assert not [target for target in targets if not (FOLDER / target).exists()]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a working directory like the repository's, by this interpreter, without the user's kernels or settings."""
    nbclient = pytest.importorskip("nbclient")
    manager = kernel_manager(tmp_path / "jupyter", monkeypatch)
    work = tmp_path / "repository"
    work.mkdir()
    for name in ("data", "docs", "scripts", "notebooks"):
        (work / name).symlink_to(REPOSITORY / name)
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, km=manager, timeout=TIMEOUT, resources={"metadata": {"path": str(work)}}
    )
    # It would leave a kernel that it was given running.
    client.owns_km = True
    client.execute()
    left = {entry.name for entry in work.iterdir()} - {"data", "docs", "scripts", "notebooks"}
    assert not left, f"{path.name} leaves {left} behind"


def kernel_manager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A manager of one kernel, whose specification is made here."""
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    from ipykernel.kernelspec import write_kernel_spec

    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        (folder / name).mkdir(parents=True)
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    # Figures are drawn for the page, whatever the environment says.
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    write_kernel_spec(str(folder / "kernels" / "molflt"), overrides={"argv": [*_ARGV]})
    specs = client.kernelspec.KernelSpecManager(kernel_dirs=[str(folder / "kernels")], ensure_native_kernel=False)
    return client.AsyncKernelManager(kernel_name="molflt", kernel_spec_manager=specs)


_ARGV = (sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}")
