"""``molflt config``: a complete configuration to start from."""

from __future__ import annotations

import typer

from molflt.errors import InputError


def config_command(
    preset: str = typer.Argument(None, help="A preset's name; leave it out to see them.", show_default=False),
) -> None:
    """Print a complete YAML configuration. It trains on the bundled data as it stands; that of forces on your files.

    Without a name, lists the presets.

    Example: molflt config tiny > tiny.yaml
    """
    from molflt.training.config_file import to_yaml
    from molflt.training.presets import PRESETS, preset_config

    if preset is None:
        for name, (summary, _) in PRESETS.items():
            typer.echo(f"{name:<22}{summary}")
        return
    if preset not in PRESETS:
        raise InputError(f"there is no preset '{preset}'; choose one of {', '.join(PRESETS)}")
    header = (
        f"molflt preset '{preset}': {PRESETS[preset][0]}.\n"
        "Train with: molflt train THIS_FILE --out RUN_DIR [key.sub=value ...]\n"
        "model.attention=local, =performer, =lara, =softmax or another name of the README swaps the attention."
    )
    typer.echo(to_yaml(preset_config(preset), header), nl=False)
