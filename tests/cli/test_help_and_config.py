"""Help with examples, quick to come; configurations that work as printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from molflt import __version__
from molflt.cli.main import app
from molflt.training.config_file import load_config
from molflt.training.presets import PRESETS, preset_config

Run = Callable[..., Any]
COMMANDS = ("train", "evaluate", "predict", "info", "convert", "config", "average", "explain", "fetch", "plot")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert f"Example: molflt {command} " in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"], ["config", "--help"]])
def test_help_comes_before_the_heavy_imports(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom molflt.cli.main import app\n"
        f"try:\n    app({arguments!r})\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'torch', 'lightning', 'ase', 'rdkit', 'torch_geometric', 'omegaconf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_version(molflt: Run) -> None:
    assert molflt("--version").out.strip() == f"molflt {__version__}"


def test_unknown_command_and_missing_arguments(molflt: Run) -> None:
    for arguments in (["trian"], ["train"], ["predict", "x"], ["evaluate", "--frequencies", "sampled", "a", "b"], []):
        result = molflt(*arguments)
        assert result.status == 2
        assert "Traceback" not in result.err


def test_config_lists_presets(molflt: Run) -> None:
    result = molflt("config")
    assert result.status == 0
    assert [line.split()[0] for line in result.out.splitlines()] == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_config_prints_what_train_reads(name: str, molflt: Run, tmp_path: Path) -> None:
    result = molflt("config", name)
    assert result.status == 0
    path = tmp_path / "c.yaml"
    path.write_text(result.out)
    assert load_config(path) == preset_config(name)
    assert f"'{name}'" in result.out.splitlines()[0]


def test_unknown_preset(molflt: Run) -> None:
    result = molflt("config", "huge")
    assert result.status == 2
    assert result.err.startswith("Error: there is no preset 'huge'; choose one of tiny")


def test_config_of_a_preset_trains_with_overrides(molflt: Run, tiny_data: Path, tmp_path: Path) -> None:
    path, run_dir = tmp_path / "c.yaml", tmp_path / "run"
    path.write_text(molflt("config", "tiny").out)
    data = [f"data.train={tiny_data / 'train.lmdb'}", f"data.val={tiny_data / 'val.lmdb'}"]
    small = ["model.dim=16", "model.n_heads=2", "model.n_layers=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    result = molflt("train", path, "--out", run_dir, *data, *small)
    assert result.status == 0, result
    lines = result.out.splitlines()
    assert "28 structures to train on" in lines[0]
    assert lines[1].startswith("epoch    1/1  train ")
    assert lines[2].startswith("best: ")
    assert str(run_dir / "best.safetensors") in lines[2]
    # Another go must not destroy the first, and says how to go on.
    again = molflt("train", path, "--out", run_dir, *data, *small)
    assert again.status == 2
    assert "--resume auto" in again.err
    assert molflt("train", path, "--out", run_dir, "--resume", "auto", *data, *small).status == 0
    # What was written repeats the run.
    repeated = molflt("train", run_dir / "config.yaml", "--out", tmp_path / "repeated")
    assert repeated.status == 0
    assert (tmp_path / "repeated" / "metrics.jsonl").read_bytes() == (run_dir / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.max_epoch=1", "did you mean trainer.max_epochs?"),
        ("modle.dim=3", "did you mean model?"),
        ("model.dim=wide", "model.dim: must be a valid integer, not 'wide'"),
        ("model.dim", "not of the form key.sub=value"),
        ("data.train=absent.lmdb", "absent.lmdb: no such file"),
    ],
)
def test_mistakes_in_overrides(override: str, expected: str, molflt: Run, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(molflt("config", "tiny").out)
    result = molflt("train", path, "--out", tmp_path / "run", override)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("Error: ")
    assert expected in result.err
    assert not (tmp_path / "run").exists()


def test_train_with_files_that_are_no_configuration(molflt: Run, model_path: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.yaml", tmp_path, model_path):
        result = molflt("train", path, "--out", tmp_path / "run")
        assert result.status == 2
        assert result.err.startswith(f"Error: {path}: ")
        assert len(result.err.strip().splitlines()) == 1
