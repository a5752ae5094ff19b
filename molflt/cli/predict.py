"""``molflt predict``: energies of structures."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from molflt.cli.terminal import errors, say, warn

Interchangeable = Literal["auto", "exact", "quadrature", "lattice", "mesh"]


def predict_command(
    model: Path = typer.Argument(..., help="Model file, RUN_DIR/best.safetensors.", show_default=False),
    inputs: list[str] = typer.Argument(..., help="Files, folders, globs or SMILES.", show_default=False),
    out: Path = typer.Option(
        None, "--out", "-o", help="Write to NAME.csv, NAME.extxyz or NAME.npz.", show_default=False
    ),
    oc20_split: Literal["id", "ood_ads", "ood_cat", "ood_both"] = typer.Option(
        None, help="With npz: the OC20 leaderboard's keys for this split; four runs make one file."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing output."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    max_atoms: int = typer.Option(2048, min=1, help="Atoms per batch; changes memory, no result."),
    frequencies: Interchangeable = typer.Option(None, help="Evaluate the far field by this method."),
) -> None:
    """Predict energies of structures; prints them, or writes them with -o.

    Example: molflt predict runs/tiny/best.safetensors slabs/*.cif CCO -o energies.csv
    """
    from molflt.data.sources import resolve_inputs
    from molflt.model.model_file import load_model
    from molflt.prediction.outputs import check_output, write_predictions
    from molflt.prediction.predictor import choose_device, predict, unknown_elements

    if out is not None:
        check_output(out, oc20_split, overwrite)
    loaded = load_model(model, frequencies)
    structures = resolve_inputs(inputs)
    prediction, elements = predict(loaded, structures, choose_device(device), max_atoms)
    unknown = unknown_elements(loaded, elements)
    if unknown:
        warn(f"the model was not trained on {', '.join(unknown)}; energies of structures with them mean little")
    target = loaded.metadata.target
    if out is not None:
        write_predictions(out, prediction, structures, target, oc20_split)
        say(f"{len(prediction.names)} energies ({target}, eV) in {out}")
        if prediction.contractions:
            say(f"far field by {prediction.far_field}")
        return
    # On standard error, so that what is piped on is numbers and names only.
    errors.print(f"{target} in eV, name", markup=False)
    for name, energy in zip(prediction.names, prediction.energies, strict=True):
        typer.echo(f"{energy:14.6f}  {name}")
