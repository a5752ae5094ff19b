"""Help with examples, quick to come; configurations that work as printed."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from molflt import __version__
from molflt.cli.main import app
from molflt.training.config_file import MOST_CHARACTERS, load_config
from molflt.training.presets import PRESETS, preset_config

MOST_FILES = 76
"""Of molflt, that are imported to compute one energy."""
COMMANDS = (
    "train", "evaluate", "predict", "merge", "adsorb", "explain", "plot", "check-invariance", "info", "convert",
    "average", "export", "config", "fetch",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert f"Example: molflt {command} " in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


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
        result = molflt(*arguments)
        assert result.status == 2
        assert "Traceback" not in result.err


def test_every_preset_is_listed_and_prints_what_train_reads(molflt, tmp_path):
    assert [line.split()[0] for line in molflt("config").out.splitlines()] == list(PRESETS)
    for name in PRESETS:
        result = molflt("config", name)
        (tmp_path / "c.yaml").write_text(result.out, encoding="utf-8")
        assert load_config(tmp_path / "c.yaml") == preset_config(name)
        assert len(result.out) < MOST_CHARACTERS / 10
        assert f"'{name}'" in result.out.splitlines()[0]
    unknown = molflt("config", "huge")
    assert unknown.status == 2
    assert unknown.err.startswith("Error: there is no preset 'huge'; choose one of tiny")


def test_config_of_a_preset_trains_with_overrides(molflt, tiny_data, tmp_path):
    path, run_dir = tmp_path / "c.yaml", tmp_path / "run"
    path.write_text(molflt("config", "tiny").out, encoding="utf-8")
    data = [f"data.train={tiny_data / 'train.lmdb'}", f"data.val={tiny_data / 'val.lmdb'}"]
    small = ["model.dim=16", "model.n_heads=2", "model.n_layers=1", "trainer.max_epochs=1", "trainer.accelerator=cpu"]
    result = molflt("train", path, "--out", run_dir, *data, *small)
    assert result.status == 0, result
    lines = result.out.splitlines()
    assert "28 structures to train on" in lines[0]
    assert lines[1].startswith("epoch    1/1  train ")
    assert lines[2].startswith("best: ")
    assert str(run_dir / "best.safetensors") in lines[2]
    page = (run_dir / "report.html").read_text(encoding="utf-8")
    assert "molflt train" in page
    # Of the suite of invariances.
    assert "comparisons; bound: " in page
    # Another go must not destroy the first, and says how to go on.
    again = molflt("train", path, "--out", run_dir, *data, *small)
    assert again.status == 2
    assert "--resume auto" in again.err
    assert molflt("train", path, "--out", run_dir, "--resume", "auto", "--no-report", *data, *small).status == 0
    # What was written repeats the run.
    repeated = molflt("train", run_dir / "config.yaml", "--out", tmp_path / "repeated", "--no-report")
    assert repeated.status == 0
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
