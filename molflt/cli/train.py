"""``molflt train`` and ``molflt config``: train a model from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from molflt.cli.terminal import answer, command_line, errors, say, warn
from molflt.errors import AgreedError, InputError
from molflt.vocabulary import Compile


def train_command(
    config: Path = typer.Argument(
        ...,
        help="YAML file, as 'molflt config PRESET' prints it, or PRESET; - for standard input.",
        show_default=False,
    ),
    overrides: list[str] = typer.Argument(None, help="key.sub=value, as often as needed.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="Run directory to create or continue.", show_default=False),
    resume: Literal["never", "auto"] = typer.Option(
        "never", help="auto: continue the run in --out from its last finished epoch, as if never interrupted."
    ),
    compile_: Compile = typer.Option(None, "--compile", help="Short for trainer.compile=.", show_default=False),
    cache: str = typer.Option(None, help="Short for data.cache=: where large data are prepared.", show_default=False),
    report: bool = typer.Option(True, "--report/--no-report", help="Write report.html at the end."),
) -> None:
    """Train an energy model.

    The run directory gets best.safetensors and last.safetensors (models), report.html, metrics.csv and
    metrics.jsonl (one record per validated epoch), config.yaml, last.ckpt and previous.ckpt (to
    continue from).

    With trainer.devices=N there is one process for each device; torchrun and srun may start them as well.

    Example: molflt train tiny.yaml --out runs/tiny trainer.max_epochs=5 model.attention.spectrum=sampled
    """
    # Late imports: help should come at once, and a mistake in the configuration soon.
    from molflt.training.launch import is_first_process

    first = is_first_process()
    short = {"trainer.compile": compile_, "data.cache": cache}
    overrides = [*(overrides or []), *(f"{key}={value}" for key, value in short.items() if value)]
    try:
        _train(config, overrides, out, resume == "auto", report and first)
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
            message = f"Stopped. To go on, repeat the command with --resume auto (run directory {out})."
            errors.print(message, markup=False)
        raise typer.Exit(code if isinstance(code, int) else 1) from None


def _say(line: str) -> None:
    """Print a line of the run; warnings and notes also with ``--quiet``."""
    text = line.removeprefix("Warning: ")
    if text != line:
        warn(text)
    elif line.startswith("Note: "):
        errors.print(line, markup=False)
    else:
        say(line)


def _train(config: Path, overrides: list[str], out: Path, resume: bool, report: bool) -> None:
    from molflt.training.launch import is_first_process
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

        say(f"report: {training_report(out, settings, command_line(), trained.warnings)}")


def config_command(
    preset: str = typer.Argument(None, help="A preset's name; leave it out to see them.", show_default=False),
) -> None:
    """Print a complete YAML configuration. It trains on the bundled data as it stands; that of forces on your files.

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
        "model.attention=local, =performer, =lara, =softmax or another name of the README swaps the attention."
    )
    typer.echo(to_yaml(preset_config(preset), header), nl=False)
