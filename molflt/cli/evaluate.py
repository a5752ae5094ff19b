"""``molflt evaluate``: errors of a model on labelled structures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import typer

from molflt.cli.terminal import say, warn

Interchangeable = Literal["auto", "exact", "quadrature", "lattice", "mesh"]


def evaluate_command(
    model: Path = typer.Argument(..., help="Model file, RUN_DIR/best.safetensors.", show_default=False),
    data: str = typer.Argument(
        ..., help="LMDB file or folder, or any file of labelled structures.", show_default=False
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    max_atoms: int = typer.Option(2048, min=1, help="Atoms per batch; changes memory, no result."),
    frequencies: Interchangeable = typer.Option(None, help="Evaluate the far field by this method."),
) -> None:
    """Evaluate a model on labelled structures: MAE, RMSE, EwT.

    Example: molflt evaluate runs/tiny/best.safetensors data/adsorption/test.lmdb
    """
    from molflt.data.sources import open_dataset
    from molflt.model.model_file import load_model
    from molflt.prediction.metrics import energy_metrics
    from molflt.prediction.predictor import choose_device, predict, unknown_elements
    from molflt.training.config_file import resolve_path
    from molflt.training.datasets import labels

    loaded = load_model(model, frequencies)
    dataset = open_dataset(resolve_path(data))
    target = loaded.metadata.target
    expected = labels(dataset, target, data)
    prediction, elements = predict(loaded, dataset, choose_device(device), max_atoms)
    unknown = unknown_elements(loaded, elements)
    if unknown:
        warn(f"the model was not trained on {', '.join(unknown)}; energies of structures with them mean little")
    metrics = energy_metrics(prediction.energies, expected)
    if as_json:
        numbers = {name: value if math.isfinite(value) else None for name, value in metrics.as_dict().items()}
        content: dict[str, Any] = {"model": str(model), "data": data, "target": target, **numbers, "unknown": unknown}
        content["far_field"] = dict(prediction.contractions)
        typer.echo(json.dumps(content))
        return
    say(f"{data}: {metrics.n:,} structures, target {target}")
    share = f"   ({metrics.mae_over_mad:.3f} of the mean absolute deviation {metrics.mad:.4f} eV)"
    say(f"  MAE   {metrics.energy_mae:.4f} eV{share if metrics.mad > 0 else ''}")
    say(f"  RMSE  {metrics.energy_rmse:.4f} eV")
    say(f"  EwT   {100 * metrics.ewt:.2f} %   (|error| < 0.02 eV)")
    if prediction.contractions:
        say(f"  far field by {prediction.far_field}")
