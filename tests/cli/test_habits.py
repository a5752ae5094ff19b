"""What people expect of any command: quiet, verbose, colours, pipes, exit status, completion."""

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule

from molflt.cli import terminal
from molflt.cli.terminal import Verbosity
from molflt.data.oc20.writer import write_lmdb
from molflt.data.record import to_record

MOLFLT = [sys.executable, "-m", "molflt.cli.main"]


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    Verbosity.set(quiet=False, verbose=False)


@pytest.fixture
def piped(monkeypatch):
    """Put a text on standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_quiet_prints_results_and_errors_only(molflt, model_path, tmp_path):
    loud = molflt("predict", model_path, "O", "-o", tmp_path / "a.csv")
    quiet = molflt("--quiet", "predict", model_path, "O", "-o", tmp_path / "b.csv")
    assert loud.out
    assert (quiet.status, quiet.out) == (0, "")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == (tmp_path / "b.csv").read_text(encoding="utf-8")
    assert "O (H2O, water)\n" in molflt("-q", "predict", model_path, "O").out
    failed = molflt("--quiet", "predict", "nowhere.safetensors", "O")
    assert failed.status == 2
    assert "no such file" in failed.err


def test_what_was_computed_is_said(molflt, model_path):
    found = molflt("predict", model_path, "CCO", "molecule:CO", "O=C=S=O", "--json")
    records = [json.loads(line) for line in found.out.splitlines()]
    assert [record["formula"] for record in records] == ["C2H6O", "CO", "CO2S"]
    assert [record["name"] for record in records] == ["CCO", "molecule:CO", "O=C=S=O"]
    assert "rough geometry: C–S" in found.err
    refused = molflt("predict", model_path, "CO")
    assert (refused.status, refused.err.count("\n")) == (2, 1)


def test_flags_take_no_value_and_may_stand_after_the_command(molflt, model_path, tmp_path):
    for command in ([], ["evaluate"], ["check-invariance"]):
        assert "bool" not in molflt(*command, "--help").out
    quiet = molflt("predict", model_path, "O", "-o", tmp_path / "a.csv", "--quiet")
    assert (quiet.status, quiet.out) == (0, "")
    failed = molflt("predict", "nowhere.safetensors", "O", "-v")
    assert failed.status == 2
    assert "Traceback" in failed.err
    # What follows -- is no option.
    assert "'-q' is no file or folder" in molflt("predict", model_path, "--", "-q").err


def test_verbose_shows_where_an_error_arose(molflt, model_path):
    plain = molflt("predict", "nowhere.safetensors", "O")
    assert "Traceback" not in plain.err
    verbose = molflt("--verbose", "predict", "nowhere.safetensors", "O")
    assert verbose.status == 2
    assert "Traceback" in verbose.err
    assert verbose.err.rstrip().endswith(plain.err.splitlines()[-1])
    assert "cpu" in molflt("-v", "predict", model_path, "O").err
    assert molflt("-q", "-v", "info", model_path).status == 2


def test_standard_input(molflt, model_path, piped, tmp_path):
    """SMILES, structures in a file's format, nothing, and a line that is neither."""
    expected = [line.split()[0] for line in molflt("predict", model_path, "O", "OC").out.splitlines()]
    piped("O\nCO methanol\n")
    lines = molflt("predict", model_path, "-").out.splitlines()
    assert [line.split() for line in lines] == [
        [expected[0], "-#0", "(O)", "(H2O,", "water)"],
        [expected[1], "-#1", "(methanol)", "(CH4O,", "methanol)"],
    ]
    ase.io.write(tmp_path / "a.extxyz", [molecule("H2O"), molecule("CO")])
    expected = [line.split()[0] for line in molflt("predict", model_path, tmp_path / "a.extxyz").out.splitlines()]
    piped((tmp_path / "a.extxyz").read_text(encoding="utf-8"))
    assert [line.split()[0] for line in molflt("predict", model_path, "-").out.splitlines()] == expected
    for text, message in (
        ("\n", "standard input is empty"),
        ("O\nC(C\n", "Error: standard input #1: 'C(C' is not a valid SMILES"),
    ):
        piped(text)
        result = molflt("predict", model_path, "-")
        assert result.status == 2
        assert message in result.err


def test_a_configuration_on_standard_input(molflt, piped, tmp_path, tiny_data):
    piped(molflt("config", "tiny").out)
    other = tiny_data / "other.lmdb"
    small = ("trainer.max_epochs=1", "model.dim=16", "model.n_layers=1")
    result = molflt(
        "train", "-", "--out", tmp_path / "run", "--no-report", f"data.train={other}", f"data.val={other}", *small
    )
    assert result.status == 0, result


def test_json_has_no_nan(capsys):
    terminal.answer_json({"a": math.nan, "b": [1.5, {"c": math.inf}], "d": "nan"})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, {"c": None}], "d": "nan"}


def test_no_colour_and_the_exit_status_of_the_real_command():
    clean = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    for name, value, arguments, status in (
        ("NO_COLOR", "1", ["--help"], 0),
        ("TERM", "dumb", ["--help"], 0),
        ("NO_COLOR", "1", ["config", "huge"], 2),
    ):
        command = [*MOLFLT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**clean, name: value}, timeout=120)
        assert done.returncode == status
        assert "\x1b[3" not in done.stdout + done.stderr
        assert (done.stdout == "") == (done.stderr != "") == (status == 2)
        assert "Traceback" not in done.stderr


def test_what_the_help_says_of_all_commands(molflt):
    help_text = " ".join(molflt("--help").out.split())
    for text in ("--install-completion", "Exit status", "NO_COLOR"):
        assert text in help_text
    environment = {**os.environ, "_MOLFLT_COMPLETE": "complete_bash", "COMP_WORDS": "molflt ev", "COMP_CWORD": "1"}
    command = [str(Path(sys.executable).with_name("molflt"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stdout.split() == ["evaluate"]


@pytest.mark.parametrize("command", [pytest.param("predict", marks=pytest.mark.slow), "config"])
def test_broken_pipe(command, model_path, val_set, tmp_path):
    # Enough output that the pipe is closed while it is being written.
    arguments = ["config", "tiny"]
    if command == "predict":
        write_lmdb(tmp_path / "many.lmdb", [to_record(val_set[0])] * 3000, progress=False)
        arguments = ["predict", str(model_path), str(tmp_path / "many.lmdb")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*MOLFLT, *arguments], text=True, env=environment, **pipes) as writer:
        writer.stdout.readline()
        writer.stdout.close()
        err = writer.stderr.read()
        writer.wait(timeout=120)
    assert writer.returncode == 0
    assert "Traceback" not in err
    assert "Exception ignored" not in err
