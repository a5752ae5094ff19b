"""Help with examples, configurations that work as printed; habits: quiet, verbose, colours, pipes, exit status."""

import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import ase.io
import pytest
import typer
from ase.build import molecule
from typer.testing import CliRunner

from molflt import __version__
from molflt.cli import terminal
from molflt.cli.main import app
from molflt.cli.terminal import Verbosity
from molflt.data.oc20.writer import write_lmdb
from molflt.data.record import to_record
from molflt.training.config import PRESETS, preset_config
from molflt.training.yaml import MOST_CHARACTERS, load_config

MOST_FILES = 64
"""Of molflt, that are imported to compute one energy."""
COMMANDS = (
    "train", "evaluate", "benchmark", "predict", "merge", "adsorb", "explain", "plot", "check-invariance", "info",
    "convert", "prepare", "average", "export", "config", "fetch",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert f"Example: molflt {command} " in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    # Values are named as manuals do, without typer's <list[str]> and {model}.
    assert not re.search(r"[<{]\w+[\]\[|>} ]", result.output)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_sentence(command):
    """And every default: rich takes text in brackets for markup, and drops it."""
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "600"})
    shown = " ".join(result.output.split())
    for parameter in typer.main.get_command(app).get_command(None, command).params:
        assert " ".join(parameter.help.split()) in shown, parameter.name
        if isinstance(parameter.show_default, str):
            assert f"[default: ({parameter.show_default})]" in shown, parameter.name


def test_an_interruption_is_said(molflt, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("molflt.cli.train.config_command", interrupted)
    assert molflt("config", status=130).err == "Interrupted. Repeat the command.\n"


def test_help_lists_every_command(molflt):
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    listed = [line.split()[1] for line in result.output.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert listed == list(COMMANDS)
    assert molflt("--version").out.strip() == f"molflt {__version__}"


def test_help_comes_before_the_heavy_imports():
    heavy = "torch lightning ase rdkit torch_geometric yaml matplotlib scipy jinja2"
    script = (
        "import sys\nfrom molflt.cli.main import app\n"
        f"for arguments in [[], ['--version'], *([command] for command in {COMMANDS!r})]:\n"
        "    try:\n        app(arguments if '--version' in arguments else [*arguments, '--help'])\n"
        "    except SystemExit as stop:\n        assert not stop.code\n"
        f"heavy = set({heavy!r}.split()) & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_one_energy_takes_few_files():
    script = (
        "import sys\nfrom molflt.cli.main import main\nsys.argv = ['molflt', 'predict', 'pretrained:fg', 'CCO']\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'molflt'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=120, capture_output=True, text=True)
    files = done.stdout.splitlines()[-1].split()
    assert "molflt.prediction.model" in files
    assert len(files) <= MOST_FILES, sorted(files)


def test_unknown_command_and_missing_arguments(molflt):
    for arguments in (["trian"], ["train"], ["predict", "x"], ["evaluate", "--frequencies", "sampled", "a", "b"], []):
        result = molflt(*arguments, status=2)
        assert "Traceback" not in result.err


def test_every_preset_is_listed_and_prints_what_train_reads(molflt, tmp_path):
    assert [line.split()[0] for line in molflt("config").out.splitlines()] == list(PRESETS)
    for name in PRESETS:
        result = molflt("config", name)
        (tmp_path / "c.yaml").write_text(result.out, encoding="utf-8")
        assert load_config(tmp_path / "c.yaml") == preset_config(name)
        assert len(result.out) < MOST_CHARACTERS / 10
        assert f"'{name}'" in result.out.splitlines()[0]
    unknown = molflt("config", "huge", status=2)
    assert unknown.err.startswith("Error: there is no preset 'huge'; choose one of tiny")


def test_config_of_a_preset_trains_with_overrides(molflt, tiny_data, tmp_path):
    path, run_dir = tmp_path / "c.yaml", tmp_path / "run"
    path.write_text(molflt("config", "tiny").out, encoding="utf-8")
    data = [f"data.train={tiny_data / 'train.lmdb'}", f"data.val={tiny_data / 'val.lmdb'}"]
    small = ["model.dim=16", "model.n_heads=2", "model.n_layers=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    result = molflt("train", path, "--out", run_dir, *data, *small, status=0)
    lines = result.err.splitlines()
    assert "28 structures to train on" in lines[0]
    assert any(line.startswith("epoch    1/1  train ") for line in lines)
    (best,) = result.out.splitlines()
    assert best.startswith("best: ")
    assert str(run_dir / "best.safetensors") in best
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "molflt train" in page
    # Of the suite of invariances.
    assert "comparisons; bound: " in page
    # Another go must not destroy the first, and says how to go on.
    again = molflt("train", path, "--out", run_dir, *data, *small, status=2)
    assert "--resume auto" in again.err
    assert molflt("train", path, "--out", run_dir, "--resume", "auto", "--no-report", *data, *small).status == 0
    # What was written repeats the run.
    molflt("train", run_dir / "config.yaml", "--out", tmp_path / "repeated", "--no-report", status=0)
    assert not (tmp_path / "repeated" / "report.html").exists()
    assert (tmp_path / "repeated" / "metrics.jsonl").read_bytes() == (run_dir / "metrics.jsonl").read_bytes()


def test_a_mistake_in_the_configuration_is_one_line_and_leaves_nothing(molflt, model_path, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(molflt("config", "tiny").out, encoding="utf-8")
    for arguments, expected in (
        ((path, "trainer.max_epoch=1"), "did you mean trainer.max_epochs?"),
        ((path, "model.dim=wide"), "model.dim: must be a valid integer, not 'wide'"),
        ((path, "data.train=absent.lmdb"), "absent.lmdb: no such file"),
        ((tmp_path / "absent.yaml",), "absent.yaml: no such file"),
        ((model_path,), f"{model_path}: "),
    ):
        result = molflt("train", *arguments, "--out", tmp_path / "run")
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith("Error: ")
        assert expected in result.err
        assert len(result.err.strip().splitlines()) <= 2
        assert not (tmp_path / "run").exists()


MOLFLT = [sys.executable, "-m", "molflt.cli.main"]


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    Verbosity.set(quiet=False, verbose=False)


@pytest.fixture
def piped(monkeypatch):
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_quiet_prints_results_and_errors_only(molflt, model_path, tmp_path):
    loud = molflt("predict", model_path, "O", "-o", tmp_path / "a.csv")
    quiet = molflt("--quiet", "predict", model_path, "O", "-o", tmp_path / "b.csv")
    assert (loud.out, "1 energy" in loud.err) == ("", True)
    assert (quiet.status, quiet.out, quiet.err) == (0, "", "")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == (tmp_path / "b.csv").read_text(encoding="utf-8")
    assert "O (H2O, water)\n" in molflt("-q", "predict", model_path, "O").out
    failed = molflt("--quiet", "predict", "nowhere.safetensors", "O", status=2)
    assert "no such file" in failed.err


def test_the_molecule_computed_is_named(molflt, model_path):
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
    # What follows -- is no option.
    assert "'-q' is not a file" in molflt("predict", model_path, "--", "-q").err


def test_verbose_shows_where_an_error_arose(molflt, model_path):
    plain = molflt("predict", "nowhere.safetensors", "O")
    assert "Traceback" not in plain.err
    for arguments in (("--verbose", "predict"), ("predict", "-v")):
        verbose = molflt(*arguments, "nowhere.safetensors", "O")
        assert (verbose.status, "Traceback" in verbose.err) == (2, True)
    assert verbose.err.rstrip().endswith(plain.err.splitlines()[-1])
    assert "cpu" in molflt("-v", "predict", model_path, "O").err
    assert molflt("-q", "-v", "info", model_path).status == 2


def test_standard_input(molflt, model_path, piped, tmp_path):
    """SMILES, structures in a file's format, nothing, and a line that is neither."""
    expected = [line.split()[0] for line in molflt("-q", "predict", model_path, "O", "OC").out.splitlines()]
    piped("O\nCO methanol\n")
    lines = molflt("-q", "predict", model_path, "-").out.splitlines()
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
        result = molflt("predict", model_path, "-", status=2)
        assert message in result.err


def test_a_configuration_on_standard_input(molflt, piped, tmp_path, tiny_data):
    piped(molflt("config", "tiny").out)
    data = [f"data.{name}={tiny_data / 'other.lmdb'}" for name in ("train", "val")]
    small = ("trainer.max_epochs=1", "model.dim=16", "model.n_layers=1")
    molflt("train", "-", "--out", tmp_path / "run", "--no-report", *data, *small, status=0)


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


def test_help_on_all_commands(molflt):
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
