"""``molflt plot``: single figures of a model or a run."""

from __future__ import annotations

from pathlib import Path

import typer

from molflt.choices import Figure, TagConvention
from molflt.cli.options import DEVICE, MAX_ATOMS, TAGS, claim_new_file
from molflt.cli.terminal import say


def plot_command(
    context: typer.Context,
    kind: Figure = typer.Argument(
        ...,
        metavar="KIND",
        help="curves, parity, residuals, elements, adsorbates, sizes, rpe or spectrum.",
        show_default=False,
    ),
    model: Path = typer.Argument(..., help="Model file, run directory, or pretrained:NAME.", show_default=False),
    data: str = typer.Argument(None, help="Labelled structures, for plots of errors.", show_default=False),
    out: Path = typer.Option(..., "--out", "-o", help="NAME.png, NAME.svg or NAME.pdf.", show_default=False),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing figure."),
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
    from molflt.prediction.predictor import choose_device
    from molflt.report.figures import write_figure

    write_figure(kind, model, data, out, choose_device(device), max_atoms, tags)
    say(str(out))
