"""What people expect of any command: quiet, verbose, colours, pipes, exit status, completion."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import pytest
from ase.build import molecule

from molflt.cli.terminal import Verbosity

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    yield
    Verbosity.set(quiet=False, verbose=False)


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a text on standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_quiet_prints_results_only(molflt: Run, model_path: Path, tmp_path: Path) -> None:
    loud = molflt("predict", model_path, "O", "-o", tmp_path / "a.csv")
    quiet = molflt("--quiet", "predict", model_path, "O", "-o", tmp_path / "b.csv")
    assert loud.out
    assert quiet.status == 0
    assert quiet.out == ""
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    assert "O\n" in molflt("-q", "predict", model_path, "O").out


def test_quiet_keeps_errors(molflt: Run) -> None:
    result = molflt("--quiet", "predict", "nowhere.safetensors", "O")
    assert result.status == 2
    assert "no such file" in result.err


def test_verbose_shows_where_an_error_arose(molflt: Run, model_path: Path) -> None:
    plain = molflt("predict", "nowhere.safetensors", "O")
    assert "Traceback" not in plain.err
    verbose = molflt("--verbose", "predict", "nowhere.safetensors", "O")
    assert verbose.status == 2
    assert "Traceback" in verbose.err
    assert verbose.err.rstrip().endswith(plain.err.splitlines()[-1])
    assert "cpu" in molflt("-v", "predict", model_path, "O").err


def test_quiet_and_verbose_exclude_each_other(molflt: Run, model_path: Path) -> None:
    assert molflt("-q", "-v", "info", model_path).status == 2


def test_smiles_on_standard_input(molflt: Run, model_path: Path, piped: Callable[[str], None]) -> None:
    expected = [line.split()[0] for line in molflt("predict", model_path, "O", "CO").out.splitlines()]
    piped("O\nCO methanol\n")
    lines = molflt("predict", model_path, "-").out.splitlines()
    assert [line.split() for line in lines] == [[expected[0], "-#0"], [expected[1], "-#1"]]


def test_xyz_on_standard_input(molflt: Run, model_path: Path, piped: Callable[[str], None], tmp_path: Path) -> None:
    ase.io.write(tmp_path / "a.extxyz", [molecule("H2O"), molecule("CO")])
    expected = [line.split()[0] for line in molflt("predict", model_path, tmp_path / "a.extxyz").out.splitlines()]
    piped((tmp_path / "a.extxyz").read_text())
    found = [line.split()[0] for line in molflt("predict", model_path, "-").out.splitlines()]
    assert found == expected


def test_empty_standard_input(molflt: Run, model_path: Path, piped: Callable[[str], None]) -> None:
    piped("\n")
    result = molflt("predict", model_path, "-")
    assert result.status == 2
    assert "standard input is empty" in result.err


def test_a_bad_line_on_standard_input(molflt: Run, model_path: Path, piped: Callable[[str], None]) -> None:
    piped("O\nC(C\n")
    result = molflt("predict", model_path, "-")
    assert result.status == 2
    assert "Error: standard input #1: 'C(C' is not a valid SMILES" in result.err


def test_a_configuration_on_standard_input(
    molflt: Run, piped: Callable[[str], None], tmp_path: Path, tiny_data: Path
) -> None:
    piped(molflt("config", "tiny").out)
    result = molflt(
        "train", "-", "--out", tmp_path / "run", "--no-report", f"data.train={tiny_data / 'other.lmdb'}",
        f"data.val={tiny_data / 'other.lmdb'}", "trainer.max_epochs=1", "model.dim=16",
    )  # fmt: skip
    assert result.status == 0, result
    assert not (tmp_path / "run" / "report.html").exists()


def test_json_of_evaluate_and_info_is_json(molflt: Run, model_path: Path, tiny_data: Path) -> None:
    for arguments in (("evaluate", model_path, tiny_data / "val.lmdb"), ("info", model_path), ("info", tiny_data)):
        content = json.loads(molflt(*arguments, "--json").out)
        assert isinstance(content, dict)


def test_a_run_directory_is_a_model(molflt: Run, tiny_run: Path, model_path: Path) -> None:
    assert molflt("predict", tiny_run, "O").out == molflt("predict", model_path, "O").out


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour(variables: dict[str, str]) -> None:
    environment = {**os.environ, "FORCE_COLOR": "", "COLUMNS": "80", **variables}
    environment.pop("FORCE_COLOR")
    for arguments in (["--help"], ["predict", "nowhere.safetensors", "O"]):
        command = [sys.executable, "-m", "molflt.cli.main", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
        assert "\x1b[3" not in done.stdout + done.stderr


def test_completion_and_exit_status_are_documented(molflt: Run) -> None:
    help_text = " ".join(molflt("--help").out.split())
    assert "--install-completion" in help_text
    assert "Exit status" in help_text
    assert "NO_COLOR" in help_text


def test_completion_knows_the_commands() -> None:
    environment = {**os.environ, "_MOLFLT_COMPLETE": "complete_bash", "COMP_WORDS": "molflt ev", "COMP_CWORD": "1"}
    command = [str(Path(sys.executable).with_name("molflt"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stdout.split() == ["evaluate"]


def test_skipped_structures(molflt: Run, model_path: Path, tmp_path: Path) -> None:
    frames = [molecule("H2O"), molecule("H2O") + molecule("H2O"), molecule("CO")]
    ase.io.write(tmp_path / "a.extxyz", frames)
    failed = molflt("predict", model_path, tmp_path / "a.extxyz", "-o", tmp_path / "a.csv")
    assert failed.status == 2
    assert "coincide" in failed.err
    assert not (tmp_path / "a.csv").exists()
    result = molflt("predict", model_path, tmp_path / "a.extxyz", "-o", tmp_path / "a.csv", "--on-error", "skip")
    assert result.status == 0
    assert "1 of 3 structures were skipped" in result.err
    with open(tmp_path / "a.csv", newline="") as handle:
        rows = list(csv.reader(handle))
    assert rows[0] == ["name", "y_relaxed_eV", "error"]
    assert rows[2][1] == "nan"
    assert "coincide" in rows[2][2]
    assert rows[1][2] == rows[3][2] == ""
    molflt("predict", model_path, tmp_path / "a.extxyz", "-o", tmp_path / "b.extxyz", "--on-error", "skip")
    assert len(ase.io.read(tmp_path / "b.extxyz", ":")) == 2
