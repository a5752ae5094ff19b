"""``molflt evaluate``: errors of a model on labelled structures."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from molflt.choices import EnergyUnit, MethodName, OnError, Per, TagConvention
from molflt.cli.options import (
    ACCEPT_UNCONVERGED,
    ALLOW_CHARGED,
    CONFORMERS,
    DEVICE,
    FREQUENCIES,
    JSON,
    MAX_ATOMS,
    ON_ERROR,
    PAIRS,
    TAGS,
    claim_new_file,
)
from molflt.cli.terminal import answer, answer_json, command_line, remark, say, warn
from molflt.errors import InputError, listed

if TYPE_CHECKING:
    from molflt.prediction.calibration import Calibration
    from molflt.prediction.evaluation import Evaluation


def evaluate_command(
    context: typer.Context,
    model: Path = typer.Argument(
        ..., help="Model file, run directory, ensemble, or pretrained:NAME.", show_default=False
    ),
    data: str = typer.Argument(
        ..., help="LMDB file or folder, or any file of labelled structures.", show_default=False
    ),
    label: str = typer.Option(None, help="Name of the energy in the data.  [default: as in training]"),
    unit: EnergyUnit = typer.Option(None, help="Unit of the energies in the data.  [default: as in training]"),
    per: Per = typer.Option(None, help="What an energy in the data is of.  [default: as in training]"),
    force_label: str = typer.Option(None, help="Name of the forces in the data.  [default: as in training]"),
    force_unit: str = typer.Option(
        None, help="Unit of the forces in the data, as in Hartree/bohr.  [default: as in training]"
    ),
    forces: bool = typer.Option(
        None, "--forces/--no-forces", help="Evaluate forces.  [default: where they were trained]"
    ),
    report: Path = typer.Option(
        None, help="HTML file.  [default: report-DATA.html beside the model; none with --json]"
    ),
    no_report: bool = typer.Option(False, "--no-report", help="Write no report."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace an existing report; without --report, do not number it."
    ),
    as_json: bool = JSON,
    on_error: OnError = ON_ERROR,
    allow_charged: bool = ALLOW_CHARGED,
    accept_unconverged: bool = ACCEPT_UNCONVERGED,
    conformers: int = CONFORMERS,
    pairs: bool = PAIRS,
    tags: TagConvention = TAGS,
    device: str = DEVICE,
    max_atoms: int = MAX_ATOMS,
    frequencies: MethodName = FREQUENCIES,
) -> None:
    """Evaluate a model on labelled structures: MAE, RMSE, EwT; of an ensemble, also its uncertainties.

    A report with plots and the structures of the largest errors is written beside the model.

    Example: molflt evaluate runs/tiny data/fg/val.lmdb
    """
    from molflt.data.reading import Reading
    from molflt.prediction.evaluation import evaluate
    from molflt.prediction.members import load_members
    from molflt.prediction.predictor import unknown_elements
    from molflt.report.model import evaluation_report

    if report is not None:
        claim_new_file(context, report, (".html", ".htm"), overwrite, "a report")
    members = load_members(model, frequencies)
    found = evaluate(
        members,
        data,
        label=label,
        unit=unit,
        per=per,
        force_label=force_label,
        force_unit=force_unit,
        forces=forces,
        device=device,
        max_atoms=max_atoms,
        on_bad="skip" if on_error == "skip" else "stop",
        how=Reading(allow_charged, conformers, accept_unconverged=accept_unconverged, pairs=pairs),
        tags=tags,
    )
    if found.skipped:
        n = len(found.skipped)
        warn(listed(f"{n} structure{'s were' if n != 1 else ' was'} skipped", found.skipped))
    unknown = unknown_elements(members[0], found.prediction.elements)
    if line := found.prediction.of_conformers():
        remark(line)
    for lines in (*found.prediction.doubts(), *found.warnings):
        warn(lines)
    if report is not None:
        evaluation_report(report, members, [found], command_line())
    calibration = _calibration(found)
    if as_json:
        what = {"model": str(model), "data": data, "target": members[0].metadata.target}
        answer_json(what | _content(found, calibration, unknown, len(members)))
        return
    _print(found, calibration, members[0].metadata.target, len(members))
    if report is None and not no_report:
        report = _default_report(model, data, overwrite)
        try:
            evaluation_report(report, members, [found], command_line())
        except OSError as error:
            # Nobody asked for this file in so many words; the numbers above are what was asked for.
            warn(f"no report could be written ({error}); --report chooses another place")
            return
    if report is not None:
        say(f"report: {report}")


def _default_report(model: Path, data: str, overwrite: bool) -> Path:
    """Beside the model, named after the data; with a number, where an earlier report has the name."""
    from molflt.prediction.members import split_member

    whole = Path(split_member(model)[0])
    folder = whole if whole.is_dir() else whole.parent
    path = Path(data)
    # OC20 calls every split data.lmdb.
    name = f"report-{path.parent.name if path.stem == 'data' else path.stem}"
    found = folder / f"{name}.html"
    number = 2
    while found.exists() and not overwrite:
        found, number = folder / f"{name}-{number}.html", number + 1
    return found


def _calibration(found: Evaluation) -> Calibration | None:
    """Whether uncertainties fit the errors; None where there are none, or where these structures cannot tell."""
    try:
        return found.calibration()
    except InputError as error:
        warn(f"{found.source}: {error}")
        return None


def _content(
    found: Evaluation, calibration: Calibration | None, unknown: list[str], n_members: int
) -> dict[str, Any]:
    """The errors by name, what was left out, and how all was computed."""
    forces = found.force_metrics
    return {
        **asdict(found.metrics),
        **({} if forces is None else asdict(forces)),
        "unknown": unknown,
        "skipped": found.skipped,
        "warnings": found.warnings,
        "doubtful": [f"{found.prediction.names[i]}: {why}" for i, why in sorted(found.prediction.warnings.items())],
        "far_field": dict(found.prediction.contractions),
        "members": n_members,
        **({} if calibration is None else {"calibration": calibration.as_dict()}),
    }


def _print(found: Evaluation, calibration: Calibration | None, target: str, n_members: int) -> None:
    metrics = found.metrics
    answer(f"{found.source}: {metrics.n:,} structures, target {target}")
    less = ", less reference energies," if found.table.references.any() else ""
    share = f"   ({metrics.mae_over_mad:.3f} of the mean absolute deviation{less} {metrics.mad:.4f} eV)"
    answer(f"  MAE   {metrics.energy_mae:.4f} eV{share if metrics.mad > 0 else ''}")
    answer(f"  RMSE  {metrics.energy_rmse:.4f} eV")
    answer(f"  EwT   {100 * metrics.ewt:.2f} %   (|error| < 0.02 eV)")
    if (forces := found.force_metrics) is not None:
        relative = forces.force_rmse / (forces.force_rms or 1.0)
        answer(
            f"  forces, of components: MAE {forces.force_mae:.4f}, RMSE {forces.force_rmse:.4f} eV/Å   "
            f"({relative:.3f} of the root mean square {forces.force_rms:.4f} eV/Å)"
        )
    if calibration is not None:
        answer("uncertainty" + (f" from {n_members} members:" if n_members > 1 else ":"))
        for line in calibration.lines():
            answer(line)
    if found.prediction.contractions:
        answer(f"  far field by {found.prediction.far_field}")
