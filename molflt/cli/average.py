"""``molflt average``: one model from several checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from molflt.cli.terminal import say


def average_command(
    models: list[Path] = typer.Argument(..., help="Model files of one run.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="Model file to write.", show_default=False),
) -> None:
    """Average the weights of checkpoints of one run (trainer.keep_last=5 keeps the last five).

    Example: molflt average runs/tiny/epoch-*.safetensors -o averaged.safetensors
    """
    from molflt.prediction.members import average_models

    average_models(models, out)
    say(f"mean of {len(models)} models in {out}; 'molflt evaluate {out} DATA' tells whether it is better")
