"""``molflt average``, ``export`` and ``plot``: files made from a model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from molflt.cli.terminal import DEVICE, MAX_ATOMS, MODEL, OVERWRITE, TAGS, claim_new_file, say
from molflt.vocabulary import Figure, TagConvention


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


def export_command(
    context: typer.Context,
    model: Path = typer.Argument(..., help="Model file, run directory or pretrained:NAME.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="File to write: NAME.pt.", show_default=False),
    dtype: Literal["float32", "float64"] = typer.Option(None, help="Precision.", show_default="as trained"),
    overwrite: bool = OVERWRITE,
) -> None:
    """Write a model as TorchScript, for PyTorch alone, in Python or C++: energy, forces and stress.

    Example: molflt export runs/tiny -o tiny.pt
    """
    import torch

    from molflt.export import export
    from molflt.prediction.members import load_members

    claim_new_file(context, out, (".pt", ".pth"), overwrite)
    members = load_members(model)
    export(members, out, None if dtype is None else getattr(torch, dtype))
    metadata, n = members[0].metadata, len(members)
    whose = f", the mean of {n} models" if n > 1 else ""
    say(f"{out}: {metadata.target} of one structure, from its neighbours up to {metadata.config.cutoff:g} Å{whose}")


def plot_command(
    context: typer.Context,
    kind: Figure = typer.Argument(
        ...,
        metavar="KIND",
        help="curves, parity, residuals, elements, adsorbates, sizes, rpe or spectrum.",
        show_default=False,
    ),
    model: Path = MODEL,
    data: str = typer.Argument(None, help="Labelled structures, for plots of errors.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="NAME.png, NAME.svg or NAME.pdf.", show_default=False),
    overwrite: bool = OVERWRITE,
    device: str = DEVICE,
    max_atoms: int = MAX_ATOMS,
    tags: TagConvention = TAGS,
) -> None:
    """Make one figure of a report as PNG, SVG or PDF.

    curves: errors over the epochs of a run. rpe, spectrum: the function f(r)
    that each head has learnt, and its Fourier transform. The others show
    errors on DATA: parity, residuals, and by elements, adsorbates or sizes.

    Example: molflt plot parity runs/tiny/best.safetensors
    data/fg/val.lmdb -o parity.png
    """
    claim_new_file(context, out, (".png", ".svg", ".pdf"), overwrite, "a figure")
    from molflt.prediction.predict import choose_device
    from molflt.report.figures import write_figure

    write_figure(kind, model, data, out, choose_device(device), max_atoms, tags)
    say(str(out))
