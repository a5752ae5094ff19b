"""``molflt export``: a model for programs that know nothing of molflt."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from molflt.cli.options import claim_new_file
from molflt.cli.terminal import say


def export_command(
    context: typer.Context,
    model: Path = typer.Argument(..., help="Model file, run directory or pretrained:NAME.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="File to write: NAME.pt.", show_default=False),
    dtype: Literal["float32", "float64"] = typer.Option(None, help="Precision to compute in; default: as trained."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing output."),
) -> None:
    """Write a model as TorchScript: energy, forces and stress with PyTorch alone, in Python or C++.

    Example: molflt export runs/tiny -o tiny.pt
    """
    import torch

    from molflt.export.export import export
    from molflt.prediction.members import load_members

    claim_new_file(context, out, (".pt", ".pth"), overwrite)
    members = load_members(model)
    export(members, out, None if dtype is None else getattr(torch, dtype))
    metadata, n = members[0].metadata, len(members)
    whose = f", the mean of {n} models" if n > 1 else ""
    say(f"{out}: {metadata.target} of one structure, from its neighbours up to {metadata.config.cutoff:g} Å{whose}")
