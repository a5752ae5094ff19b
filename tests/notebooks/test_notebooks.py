"""Notebooks are committed with their outputs, and still run from top to bottom to outputs of the same kinds."""

from pathlib import Path
from typing import Any

import nbformat
import pytest

from scripts.tools import notebooks

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
AGAIN = "run: python -m scripts.tools.notebooks"
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def kinds(notebook):
    """Kinds of the outputs of each code cell, with those of pictures; standard error is no output."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        [
            f"{output.output_type} {'image/png' if 'image/png' in output.get('data', {}) else ''}"
            for output in cell.outputs
            if output.get("name") != "stderr"
        ]
        for cell in cells
    ]


def test_the_notebooks_are_there():
    assert {path.stem for path in NOTEBOOKS} >= {"quickstart", "adsorption", "invariance", "your_own_data"}


@EACH
def test_outputs_are_stored(path):
    """All cells were run in order; no output is an error or huge, and nothing is kept of the machine."""
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), AGAIN
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs, AGAIN
    assert not [output for output in outputs if output.output_type == "error"]
    assert not notebooks.strange_paths(notebook)
    assert path.stat().st_size < 500_000
    assert not [cell for cell in notebook.cells if cell.metadata]
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}


def test_a_path_of_the_machine_is_found():
    stream = nbformat.v4.new_output("stream", text="runs/a is fine\nsee /tmp/x/y\n")
    cell = nbformat.v4.new_code_cell("x", outputs=[stream])
    assert notebooks.strange_paths(nbformat.v4.new_notebook(cells=[cell])) == ["see /tmp/x/y"]


@pytest.mark.slow
@EACH
def test_it_runs(path, tmp_path):
    """In an empty working directory, which stays empty; to the same kinds of outputs as are stored."""
    work = tmp_path / "work"
    work.mkdir()
    notebook = read(path)
    stored = kinds(notebook)
    notebooks.execute(notebook, work, tmp_path / "private")
    assert not list(work.iterdir()), f"{path.name} leaves files behind"
    assert kinds(notebook) == stored, AGAIN
