"""``molflt train`` and ``molflt config``: train a model from a configuration."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Literal

import typer

from molflt.cli.terminal import answer, command_line, errors, say, warn
from molflt.errors import AgreedError, InputError, InputWarning
from molflt.files import alone
from molflt.vocabulary import Compile, EnergyUnit

Task = Literal["energy", "forces", "adsorption"]
_TASKS: dict[str, list[str]] = {
    "energy": ["data.target=energy"],
    "forces": ["data.target=energy", "loss.force_weight=auto"],
    "adsorption": ["data.target=y_relaxed"],
}
"""Configuration of each task."""


def train_command(
    config: str = typer.Argument(
        None,
        help="PRESET, or a YAML file as 'molflt config PRESET' prints it; - for standard input.",
        show_default="that of the task: forces, or small",
    ),
    overrides: list[str] = typer.Argument(
        None,
        help="Any number of configuration keys, as trainer.max_epochs=5.",
        metavar="KEY=VALUE...",
        show_default=False,
    ),
    task: Task = typer.Option(None, help="Quantity to learn.", show_default="found in the file given with --train"),
    train: str = typer.Option(None, "--train", metavar="FILE", help="Structures to train on.", show_default=False),
    val: str = typer.Option(None, "--val", metavar="FILE", help="Structures to validate on.", show_default=False),
    energy_key: str = typer.Option(
        None, metavar="KEY", help="Name of the energy in the files, as in REF_energy.", show_default=False
    ),
    forces_key: str = typer.Option(None, metavar="KEY", help="Name of the forces in the files.", show_default=False),
    unit: EnergyUnit = typer.Option(None, help="Unit of the energies in the files.", show_default=False),
    start: str = typer.Option(
        None, "--from", metavar="MODEL", help="Short for init.model=: the model to fine-tune.", show_default=False
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Run directory to create or continue.", show_default=False),
    resume: Literal["never", "auto"] = typer.Option(
        "never", help="auto: resume the run in --out after its last finished epoch."
    ),
    compile_: Compile = typer.Option(None, "--compile", help="Short for trainer.compile=.", show_default=False),
    cache: str = typer.Option(
        None, metavar="FOLDER", help="Short for data.cache=: where large data are prepared.", show_default=False
    ),
    report: bool = typer.Option(True, "--report/--no-report", help="Write report.html at the end."),
) -> None:
    """Train a model of energies, of energies and forces, or of adsorption energies.

    The run directory gets best.safetensors and last.safetensors (models), report.html, metrics.csv and
    metrics.jsonl (one record per validated epoch), config.yaml, and checkpoints for resuming.

    With trainer.devices=N there is one process for each device; torchrun and srun may start them as well.

    Example: molflt train --task forces --train train.extxyz --val val.extxyz --out runs/mine
    """
    # Late imports: help should come at once, and a mistake in the configuration soon.
    from molflt.training.config import PRESETS
    from molflt.training.launch import is_first_process

    first = is_first_process()
    short = {"trainer.compile": compile_, "data.cache": cache}
    overrides = [*(overrides or []), *(f"{key}={value}" for key, value in short.items() if value)]
    base: str | None = config
    if base is not None and "=" in base and not Path(base).exists():
        overrides.insert(0, base)
        base = None
    given = {"train": train, "val": val, "label": energy_key, "force_label": forces_key, "unit": unit}
    overrides = [*(f"data.{key}={json.dumps(value)}" for key, value in given.items() if value), *overrides]
    overrides = [*([f"init.model={json.dumps(start)}"] if start else []), *overrides]
    try:
        # A preset has other data, which are not to validate on, and a file its own.
        bare = base in (None, *PRESETS) and not any(one.startswith("data.val=") for one in overrides)
        if train and not val and bare:
            raise InputError("nothing to validate on: give --val FILE, with structures that are not in --train")
        if forces_key and task in ("energy", "adsorption"):
            raise InputError(f"--forces-key: --task {task} learns no forces; leave one of the two out")
        if task is None and train is not None:
            task = "forces" if forces_key else _task_of(train)
            if first:
                say(f"task: {task}, by the labels in {train}; --task chooses another")
        if task is not None:
            overrides = [*_TASKS[task], *overrides]
        elif base is None:
            raise InputError("nothing to train on: give --train FILE --val FILE, or a preset of 'molflt config'")
        base = base or ("forces" if task == "forces" else "small")
        _train(Path(base), overrides, out, resume == "auto", report and first)
    except InputError as error:
        if first:
            raise
        from molflt.training.launch import wait_for_first_process

        wait_for_first_process()
        if isinstance(error, AgreedError):
            raise typer.Exit(2) from None
        raise InputError(f"in a process that is not the first: {error}") from error
    except (ConnectionError, ChildProcessError) as error:
        raise type(error)(f"{error}; repeat the command with --resume auto (run directory {out})") from error
    except OSError as error:
        if out.is_dir():
            error.add_note(f"then repeat the command with --resume auto (run directory {out})")
        raise
    except (KeyboardInterrupt, SystemExit) as stop:
        code = stop.code if isinstance(stop, SystemExit) else 130
        if first:
            message = f"Stopped. To resume, repeat the command with --resume auto (run directory {out})."
            errors.print(message, markup=False)
        raise typer.Exit(code if isinstance(code, int) else 1) from None


def _task_of(path: str) -> Task:
    """Choose the task by the labels of a file's first structure."""
    from molflt.data.open import open_dataset
    from molflt.data.reading import ReadOptions
    from molflt.files import resolve_path

    # Remarks on the file come when it is read to train on.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        first = open_dataset(resolve_path(path), ReadOptions(True, conformers=1, accept_unconverged=True))[0]
    return "adsorption" if "y_relaxed" in first else "forces" if "forces" in first else "energy"


def _say(line: str) -> None:
    """Print a line of the run; warnings and notes also with ``--quiet``."""
    if line.startswith("Warning: "):
        warn(line.removeprefix("Warning: "))
    elif line.startswith("Note: "):
        errors.print(line, markup=False)
    else:
        say(line)


def _train(config: Path, overrides: list[str], out: Path, resume: bool, report: bool) -> None:
    from molflt.training.launch import is_first_process
    from molflt.training.run_dir import OCCUPIED
    from molflt.training.yaml import load_config

    settings = load_config(config, overrides)
    if str(config) == "-" and settings.trainer.devices * settings.trainer.num_nodes > 1:
        raise InputError("-: standard input cannot be read by several processes; save the configuration to a file")
    from molflt.training.ensemble import train

    trained = train(settings, out, resume=resume, say=_say)
    if not is_first_process():
        return
    share = f", {trained.best / trained.mad:.3f} of the mean absolute deviation" if trained.mad > 0 else ""
    forces = "" if trained.best_force_mae is None else f", forces {trained.best_force_mae:.4f} eV/Å"
    answer(f"best: {trained.best:.4f} eV{share}{forces}, epoch {trained.best_epoch}, {trained.best_model}")
    if report:
        from molflt.report.model import training_report

        # A run that begins there would clear away a report that is half-written.
        with alone(out, OCCUPIED):
            say(f"report: {training_report(out, settings, command_line(), trained.warnings)}")


def config_command(
    preset: str = typer.Argument(None, help="A preset's name; leave it out to see them.", show_default=False),
) -> None:
    """Print a complete YAML configuration. Presets train on the bundled data; forces, on your files.

    Without a name, lists the presets.

    Example: molflt config tiny > tiny.yaml
    """
    from molflt.training.config import PRESETS, preset_config
    from molflt.training.yaml import to_yaml

    if preset is None:
        for name, values in PRESETS.items():
            typer.echo(f"{name:<22}{values['summary']}")
        return
    if preset not in PRESETS:
        raise InputError(f"there is no preset '{preset}'; choose one of {', '.join(PRESETS)}")
    header = (
        f"molflt preset '{preset}': {PRESETS[preset]['summary']}.\n"
        "Train with: molflt train THIS_FILE --out RUN_DIR [key.sub=value ...]\n"
        "model.attention=local, =performer, =softmax or another name of docs/config.md swaps the attention."
    )
    typer.echo(to_yaml(preset_config(preset), header), nl=False)
