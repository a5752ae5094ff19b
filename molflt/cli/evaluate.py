"""``molflt evaluate`` and ``check-invariance``: the quality of a model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from molflt.cli import terminal
from molflt.errors import InputError, listed
from molflt.vocabulary import QUANTITIES, EnergyUnit, MethodName, OnError, Per, TagConvention

if TYPE_CHECKING:
    from molflt.invariance import DtypeName, Result
    from molflt.prediction.evaluate import Evaluation
    from molflt.prediction.metrics import Calibration


def evaluate_command(
    context: typer.Context,
    model: Path = terminal.MODEL,
    data: list[str] = typer.Argument(
        ..., help="LMDB files or folders, or any files of labelled structures.", show_default=False
    ),
    label: str = typer.Option(None, help="Name of the energy in the data.", show_default="as in training"),
    unit: EnergyUnit = typer.Option(None, help="Unit of the energies in the data.", show_default="as in training"),
    per: Per = typer.Option(
        None, help="Whether energies in the data are per structure or per atom.", show_default="as in training"
    ),
    force_label: str = typer.Option(None, help="Name of the forces in the data.", show_default="as in training"),
    force_unit: str = typer.Option(
        None, help="Unit of the forces in the data, as in Hartree/bohr.", show_default="as in training"
    ),
    forces: bool = typer.Option(
        None, "--forces/--no-forces", help="Evaluate forces.", show_default="where they were trained"
    ),
    report: Path = typer.Option(
        None, help="HTML file.", show_default="report-DATA.html beside the model; none with --json"
    ),
    no_report: bool = typer.Option(False, "--no-report", help="Write no report."),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Replace an existing report; without --report, do not number it."
    ),
    as_json: bool = terminal.JSON,
    on_error: OnError = terminal.ON_ERROR,
    allow_charged: bool = terminal.ALLOW_CHARGED,
    accept_unconverged: bool = terminal.ACCEPT_UNCONVERGED,
    conformers: int = terminal.CONFORMERS,
    pairs: bool = terminal.PAIRS,
    tags: TagConvention = terminal.TAGS,
    device: str = terminal.DEVICE,
    max_atoms: int = terminal.MAX_ATOMS,
    far_field_method: MethodName = terminal.METHOD,
) -> None:
    """Evaluate a model on labelled structures: MAE, RMSE, EwT; for an ensemble, also its uncertainties.

    A report with plots and the structures of the largest errors is written beside the model. Several sets, as the
    four of OC20, make one table and one report.

    Example: molflt evaluate runs/tiny data/fg/val.lmdb
    """
    from molflt.data.reading import ReadOptions
    from molflt.prediction.evaluate import evaluate
    from molflt.prediction.model import load
    from molflt.prediction.predict import unknown_elements
    from molflt.report.model import evaluation_report

    if report is not None:
        terminal.claim_new_file(context, report, (".html", ".htm"), overwrite, "a report")
    loaded = load(model, device, frequencies=far_field_method)
    options = ReadOptions(
        allow_charged,
        conformers,
        pairs=pairs,
        accept_unconverged=accept_unconverged,
        tags=tags,
        on_bad="skip" if on_error == "skip" else "stop",
    )
    given = {"label": label, "unit": unit, "per": per, "force_label": force_label, "force_unit": force_unit}
    sets: list[Evaluation] = []
    contents: list[dict[str, Any]] = []
    for source in data:
        found = evaluate(
            loaded,
            source,
            name=_name(source),
            forces=forces,
            max_atoms=max_atoms,
            options=options,
            **given,  # type: ignore[arg-type]
        )
        sets.append(found)
        if found.skipped:
            n = len(found.skipped)
            terminal.warn(listed(f"{n} structure{'s were' if n != 1 else ' was'} skipped", found.skipped))
        if line := found.prediction.of_conformers():
            terminal.say(line)
        for lines in (*found.prediction.doubts(), *found.warnings):
            terminal.warn(lines)
        calibration: Calibration | None = None
        try:
            calibration = found.calibration()
        except InputError as error:
            terminal.warn(f"{found.source}: {error}")
        if as_json:
            what = {"model": str(model), "data": source, "target": loaded.target}
            unknown = unknown_elements(loaded.members[0], found.prediction.elements)
            contents.append(what | _content(found, calibration, unknown, len(loaded.members)))
        else:
            _print(found, calibration, loaded.target, len(loaded.members))
    if as_json:
        terminal.answer_json(contents[0] if len(data) == 1 else {"sets": contents})
    elif len(sets) > 1:
        _print_table(sets)
    if report is None and (as_json or no_report):
        return
    path = _default_report(model, data, overwrite) if report is None else report
    try:
        evaluation_report(path, loaded.members, sets, terminal.command_line())
    except OSError as error:
        if report is not None:
            raise
        # The default report is optional; the numbers above are the result.
        terminal.warn(f"no report could be written ({error}); --report chooses another place")
    else:
        if not as_json:
            terminal.say(f"report: {path}")


def _name(data: str) -> str:
    """Name of a set; OC20 calls every split data.lmdb."""
    path = Path(data)
    return path.parent.name if path.stem == "data" else path.stem


def _print_table(sets: list[Evaluation]) -> None:
    from rich.table import Table

    table = Table("set", "structures", "MAE / eV", "RMSE / eV", "EwT / %")
    for column in table.columns[1:]:
        column.justify = "right"
    for found in sets:
        of_set = found.metrics
        errors = (f"{of_set.energy_mae:.4f}", f"{of_set.energy_rmse:.4f}", f"{100 * of_set.ewt:.2f}")
        table.add_row(found.name, f"{of_set.n:,}", *errors)
    terminal.output.print(table)


def _default_report(model: Path, data: list[str], overwrite: bool) -> Path:
    """Path beside the model, named after the data; numbered if an earlier report has the name."""
    from molflt.prediction.members import split_member

    whole = Path(split_member(model)[0])
    folder = whole if whole.is_dir() else whole.parent
    name = f"report-{_name(data[0])}" + (f"-and-{len(data) - 1}-more" if len(data) > 1 else "")
    found = folder / f"{name}.html"
    return found if overwrite else terminal.unused(found)


def _content(
    found: Evaluation, calibration: Calibration | None, unknown: list[str], n_members: int
) -> dict[str, Any]:
    """Errors by name, skipped structures, and the methods of computation."""
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
    terminal.answer(f"{found.source}: {metrics.n:,} structures, {QUANTITIES[target]}")
    less = " after subtracting the elements' energies" if found.table.references.any() else ""
    share = f"   ({metrics.mae_over_mad:.3f} of the mean absolute deviation {metrics.mad:.4f} eV{less})"
    terminal.answer(f"  MAE   {metrics.energy_mae:.4f} eV{share if metrics.mad > 0 else ''}")
    terminal.answer(f"  RMSE  {metrics.energy_rmse:.4f} eV")
    terminal.answer(f"  EwT   {100 * metrics.ewt:.2f} %   (|error| < 0.02 eV)")
    if (forces := found.force_metrics) is not None:
        relative = forces.force_rmse / (forces.force_rms or 1.0)
        terminal.answer(
            f"  forces, per component: MAE {forces.force_mae:.4f}, RMSE {forces.force_rmse:.4f} eV/Å   "
            f"({relative:.3f} of the root mean square {forces.force_rms:.4f} eV/Å)"
        )
    if calibration is not None:
        terminal.answer("uncertainty" + (f" from {n_members} members:" if n_members > 1 else ":"))
        for line in calibration.lines():
            terminal.answer(line)
    if found.prediction.contractions:
        terminal.answer(f"  far field by {found.prediction.far_field}")


def check_invariance_command(
    model: Path = terminal.MODEL,
    inputs: list[str] = typer.Argument(
        None, help="Files, folders, globs or SMILES.", show_default="molecules, slabs and crystals of known elements"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of a table."),
    dtype: Literal["both", "float32", "float64"] = typer.Option("both", help="Precision to compute in."),
    draws: int = typer.Option(3, min=1, help="Random transformations of each kind, per structure."),
    limit: int = typer.Option(32, min=1, help="Structures at most, evenly from those given."),
    device: str = terminal.DEVICE,
    far_field_method: MethodName = terminal.METHOD,
    tags: TagConvention = terminal.TAGS,
) -> None:
    """Check the invariances of a trained model: rotation, translation, atom order, images, cell, batch.

    Each is tested on the model, and on a copy whose far field is scaled up until removing it would change the
    energies by 30 % of their spread. Prints a summary and what fails; all numbers with -v. Exit status 1 if anything
    fails.

    Example: molflt check-invariance runs/tiny/best.safetensors data/fg/val.lmdb
    """
    import numpy as np

    from molflt.data.reading import ReadOptions
    from molflt.invariance import run_suite
    from molflt.invariance.structures import (
        ADDITIVE,
        FRAGMENTS_APART,
        additivity,
        builtin_structures,
        far_share,
        has_far_field,
    )
    from molflt.prediction.members import load_member
    from molflt.prediction.model import Model
    from molflt.prediction.predict import unlabelled

    loaded = load_member(model, terminal.say, far_field_method)
    on_device = Model([loaded], device)
    if inputs:
        dataset = on_device.read(inputs, ReadOptions(allow_charged=True, conformers=1, tags=tags))
        step = max(1, len(dataset) / limit)
        structures = [unlabelled(dataset[int(k * step)]) for k in range(min(limit, len(dataset)))]
    else:
        structures, known = builtin_structures(loaded.metadata.elements)
        if loaded.model.config.charges:
            structures = [one for one in structures if int(one.pbc.sum()) in (0, 3)]
        if not known:
            terminal.warn("the model knows too few elements of the built-in structures; give structures of your own")
    dtypes: list[DtypeName] = ["float32", "float64"] if dtype == "both" else [dtype]
    share = far_share(loaded.model, structures) if has_far_field(loaded.model) else None
    fragments = np.abs(additivity(loaded.model, structures))
    results = run_suite(loaded, structures, dtypes, draws)
    if share is not None and not any(result.far_scaled for result in results):
        terminal.warn(
            "no scale of the far field moves the energies of these structures by 30 % of their spread, so only the "
            "model as it is was tried; give structures that differ less in composition"
        )
    # For the model as it is; with its far field scaled up it is another.
    drift = next((result for result in results if result.name == "dtype" and not result.far_scaled), None)
    failed = any(result.verdict == "fail" for result in results)
    # Additivity of distant fragments is no invariance, and a model of ions need not have it.
    apart: dict[str, Any] | None = None
    if len(fragments):
        apart = {"worst": float(fragments.max()), "median": float(np.median(fragments)), "bound": ADDITIVE}
        apart["verdict"] = "pass" if apart["worst"] < ADDITIVE else "fail"
    if as_json:
        terminal.answer_json(
            {
                "model": str(model),
                "structures": len(structures),
                "far_share": share,
                "float32_drift": None if drift is None else {"worst": drift.worst, "median": drift.median},
                "additivity": apart,
                "verdict": "fail" if failed else "pass",
                "results": [{**asdict(result), "verdict": result.verdict} for result in results],
            }
        )
        raise typer.Exit(int(failed))
    tell = terminal.say if terminal.Verbosity.quiet else terminal.answer
    _print_tables([result for result in results if terminal.Verbosity.verbose or result.verdict == "fail"])
    if share is None:
        tell("This model has no Fourier far field.")
    else:
        tell(f"Removing the far field moves the energies of this model by {share:.1%} of their spread.")
    if apart is None:
        tell("Additivity of separated fragments: not applicable, no structure is isolated.")
    else:
        remedy = "" if apart["verdict"] == "pass" else ". Train with loss.separation, unless they do interact"
        tell(
            f"Additivity of separated fragments: {apart['verdict']}. With {FRAGMENTS_APART:g} Å between them, two "
            f"structures differ from the sum by {apart['worst']:.1e} eV at worst, {apart['median']:.1e} eV in the "
            f"median (bound {apart['bound']:g} eV){remedy}."
        )
    if drift is not None:
        tell(
            f"Computed in float32 instead of float64, energies move by {drift.worst:.1e} eV at worst, "
            f"{drift.median:.1e} eV in the median."
        )
    names = {verdict: sorted({r.name for r in results if r.verdict == verdict}) for verdict in ("pass", "fail")}
    on = f"on {len(structures)} structure{'s' * (len(structures) != 1)}"
    if failed:
        terminal.answer(f"FAILED {on}: {', '.join(names['fail'])}")
    elif not names["pass"]:
        terminal.answer(f"NOTHING TRIED {on}: no property is applicable to them")
    else:
        terminal.answer(
            f"PASSED {on}: all {len(names['pass'])} properties that were tried hold, in {' and '.join(dtypes)}"
        )
    raise typer.Exit(int(failed))


def _print_tables(results: list[Result]) -> None:
    from rich.table import Table

    styles = {"pass": "", "fail": "red", "not applicable": "dim"}
    for far_scaled, dtype in dict.fromkeys((result.far_scaled, result.dtype) for result in results):
        far = "far field scaled up" if far_scaled else "the model as it is"
        table = Table("property", "worst ΔE / eV", "median", "of the bound", "verdict", title=f"{far}, {dtype}")
        for one in results:
            if (one.far_scaled, one.dtype) == (far_scaled, dtype):
                share = f"{one.used:.0%}" if one.used < 100 else f"{one.used:.0e} ×"
                numbers = [f"{one.worst:.1e}", f"{one.median:.1e}", f"{share} ({one.bound})"]
                table.add_row(one.name, *(numbers if one.n else [""] * 3), one.verdict, style=styles[one.verdict])
        terminal.output.print(table)
