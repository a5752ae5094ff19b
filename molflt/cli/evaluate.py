"""``molflt evaluate``: errors of a model on labelled structures."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from molflt.cli.options import EnergyUnit, Interchangeable, Per
from molflt.cli.terminal import answer, say, warn
from molflt.errors import InputError, OnBad

if TYPE_CHECKING:
    from molflt.data.labels import LabelSpec
    from molflt.data.sources import StructureDataset
    from molflt.model.model_file import ModelMetadata

_SHOWN = 5
"""Structures that could not be used, of which a warning gives the reason."""


def evaluate_command(
    model: Path = typer.Argument(
        ..., help="Model file, run directory, ensemble, or pretrained:NAME.", show_default=False
    ),
    data: str = typer.Argument(
        ..., help="LMDB file or folder, or any file of labelled structures.", show_default=False
    ),
    label: str = typer.Option(None, help="Name of the energy in the data.  [default: as in training]"),
    unit: EnergyUnit = typer.Option(None, help="Unit of the energies in the data.  [default: as in training]"),
    per: Per = typer.Option(None, help="What an energy in the data is of.  [default: as in training]"),
    forces: bool = typer.Option(
        None, "--forces/--no-forces", help="Evaluate forces.  [default: where they were trained]"
    ),
    report: Path = typer.Option(
        None, help="HTML file.  [default: report-DATA.html beside the model; none with --json]"
    ),
    no_report: bool = typer.Option(False, "--no-report", help="Write no report."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an existing --report."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
    on_error: Literal["raise", "skip"] = typer.Option("raise", help="skip: go on without structures that fail."),
    device: str = typer.Option("auto", help="auto, cpu or cuda."),
    max_atoms: int = typer.Option(2048, min=1, help="Atoms per batch; changes memory, no result."),
    frequencies: Interchangeable = typer.Option(None, help="Evaluate the far field by this method."),
) -> None:
    """Evaluate a model on labelled structures: MAE, RMSE, EwT; of an ensemble, also its uncertainties.

    A report with plots and the structures of the largest errors is written beside the model.

    Example: molflt evaluate runs/tiny data/adsorption/test.lmdb
    """
    from molflt.cli.report import check_report, default_report, evaluation_report
    from molflt.data.sources import SubsetDataset, open_dataset
    from molflt.prediction.calibration import calibrate
    from molflt.prediction.members import load_members
    from molflt.prediction.metrics import energy_metrics, force_mae
    from molflt.prediction.predictor import choose_device, in_parts, not_trained_on, predict, unknown_elements
    from molflt.report.evaluated import EvaluatedSet
    from molflt.training.config_file import resolve_path
    from molflt.training.screening import Screening, labels

    if report is not None:
        check_report(report, overwrite)
    members = load_members(model, frequencies)
    metadata = members[0].metadata
    spec = labels_in(metadata, label, unit, per)
    on_bad: OnBad = "skip" if on_error == "skip" else "stop"
    dataset = open_dataset(resolve_path(data), labels=spec, on_bad=on_bad)
    if forces is None:
        forces = any(name.endswith("force_mae") for name in metadata.validation) and _has_forces(dataset)
    screening = Screening(dataset, spec, data, forces, on_bad)
    expected, dataset = labels(screening), screening.usable
    prediction, elements = predict(members, dataset, choose_device(device), max_atoms, on_error, forces)
    skipped = [*(s.reason for s in screening.skipped), *prediction.failures.values()]
    if skipped:
        more = [f"and {len(skipped) - _SHOWN} more"] if len(skipped) > _SHOWN else []
        warn("\n  ".join([f"{len(skipped)} structures were skipped", *skipped[:_SHOWN], *more]))
    if prediction.failures:
        computed = [k for k in range(len(dataset)) if k not in prediction.failures]
        dataset, expected, prediction = SubsetDataset(dataset, computed), expected[computed], prediction.of(computed)
    unknown = unknown_elements(members[0], elements)
    if unknown:
        warn(not_trained_on(unknown))
    if prediction.n_in_parts:
        warn(in_parts(prediction.n_in_parts))
    metrics = energy_metrics(prediction.energies, expected)
    numbers: dict[str, Any] = dict(metrics.as_dict())
    if prediction.forces is not None:
        structures = [dataset[i] for i in range(len(dataset))]
        numbers["force_mae"] = force_mae(
            prediction.forces, [s.forces.numpy() for s in structures], [s.fixed.numpy() for s in structures]
        )
    calibration = None if prediction.std is None else calibrate(prediction.energies, prediction.std, expected)
    evaluated = EvaluatedSet(Path(data).stem, data, dataset, expected, prediction.energies, prediction.std)
    if report is not None:
        evaluation_report(report, members[0], [evaluated])
    if as_json:
        numbers = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        content = {"model": str(model), "data": data, "target": spec.target, **numbers, "unknown": unknown}
        content["skipped"] = skipped
        content["far_field"] = dict(prediction.contractions)
        content["members"] = len(members)
        if calibration is not None:
            content["calibration"] = calibration.as_dict()
        typer.echo(json.dumps(content))
        return
    answer(f"{data}: {metrics.n:,} structures, target {spec.target}")
    share = f"   ({metrics.mae_over_mad:.3f} of the mean absolute deviation {metrics.mad:.4f} eV)"
    answer(f"  MAE   {metrics.energy_mae:.4f} eV{share if metrics.mad > 0 else ''}")
    answer(f"  RMSE  {metrics.energy_rmse:.4f} eV")
    answer(f"  EwT   {100 * metrics.ewt:.2f} %   (|error| < 0.02 eV)")
    if "force_mae" in numbers:
        answer(f"  forces, MAE of components {numbers['force_mae']:.4f} eV/Å")
    if calibration is not None:
        answer(f"uncertainty from {len(members)} members:")
        for line in calibration.lines():
            answer(line)
    if prediction.contractions:
        answer(f"  far field by {prediction.far_field}")
    if report is None and not no_report:
        report = default_report(model, data)
        try:
            evaluation_report(report, members[0], [evaluated])
        except OSError as error:
            # Nobody asked for this file in so many words; the numbers above are what was asked for.
            warn(f"no report could be written ({error}); --report chooses another place")
            return
    if report is not None:
        say(f"report: {report}")


def _has_forces(dataset: StructureDataset) -> bool:
    """Whether the first structure that can be read has forces."""
    for k in range(len(dataset)):
        # What is wrong with it is said when all are read.
        with suppress(InputError):
            return "forces" in dataset[k]
    return False


def labels_in(metadata: ModelMetadata, label: str | None, unit: EnergyUnit | None, per: Per | None) -> LabelSpec:
    """Where the label is: as in training but for what is given."""
    given = {"label": label, "unit": unit, "per": per}
    return metadata.label_spec.model_copy(update={key: value for key, value in given.items() if value is not None})
