"""Report of a model in one HTML file: errors, worst structures, functions, provenance."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.data import chemical_symbols

from molflt import __version__
from molflt.attention.config import FROM_TRAINING_SET, ContentKeys, FarFieldKeys, KernelisedConfig, MethodKeys
from molflt.attention.registry import AttentionConfig
from molflt.data.quality.screen import SKIPPED
from molflt.errors import InputError
from molflt.files import remove_leftovers
from molflt.invariance import Result, run_suite
from molflt.model.config import LEVELS
from molflt.model.file import LoadedModel, library_versions
from molflt.prediction.evaluate import Evaluation, evaluate
from molflt.prediction.members import load_members
from molflt.prediction.metrics import EWT_THRESHOLD, GroupErrors, by_adsorbate, by_element, by_size
from molflt.prediction.predict import choose_device, unlabelled
from molflt.report import figures
from molflt.report.curves import best_epoch, far_curves, learning_curves, local_curves
from molflt.report.figures import MOST_ERROR_BARS, MOST_POINTS, figure
from molflt.report.page import Page, svg
from molflt.report.viewer import structure_view
from molflt.training.run_dir import read_records
from molflt.training.yaml import load_config, to_yaml

if TYPE_CHECKING:
    from molflt.training.config import TrainConfig

_CURVES = {"energy_mae": "MAE / eV", "force_mae": "force MAE / eV Å⁻¹"}
_TRIED = 2
"""Number of the smallest structures used for a quick test of the invariances."""


def training_report(
    run_dir: Path, config: TrainConfig, command: str | None = None, warnings: Sequence[str] = ()
) -> Path:
    """Write ``report.html`` for a run's best model on all validation splits; return its path.

    ``command`` started the training; ``warnings`` are those of the run, on its data.
    """
    members = load_members(run_dir)
    device = choose_device("cpu" if config.trainer.accelerator == "cpu" else "auto")
    options = config.data.reading()
    sets = [
        evaluate(members, path, name=name, device=device, options=options) for name, path in config.data.val.items()
    ]
    report = run_dir / "report.html"
    remove_leftovers(run_dir, [report.name])
    evaluation_report(report, members, sets, command, members[0].path.parent, warnings)
    return report


def evaluation_report(
    path: Path,
    members: Sequence[LoadedModel],
    sets: Sequence[Evaluation],
    command: str | None = None,
    run_dir: Path | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Write the report of an evaluation; with a run directory, also its curves and warnings."""
    structures = sets[0].structures
    smallest = np.argsort(structures.n_atoms, kind="stable")[:_TRIED]
    tried = [unlabelled(structures[int(k)]) for k in smallest]
    results = run_suite(members[0], tried, ["float32", "float64"], n_draws=1)
    records = [] if run_dir is None else read_records(run_dir)
    n_members = len(members)
    write_report(path, members[0], sets, records, results, command=command, n_members=n_members, warnings=warnings)


def write_report(
    path: Path,
    loaded: LoadedModel,
    sets: Sequence[Evaluation],
    records: Sequence[dict[str, Any]] = (),
    results: Sequence[Result] | None = None,
    command: str | None = None,
    n_members: int = 1,
    warnings: Sequence[str] = (),
) -> None:
    """Write a report, atomically. It is self-contained, and opens without a network.

    Args:
        path: the file, ``NAME.html``.
        loaded: the model, or the first member of an ensemble, whose RPE and configuration are shown.
        sets: evaluations of it; the worst structures are of the first.
        records: of :func:`molflt.training.run_dir.read_records`; without any there are no learning curves.
        results: of :func:`molflt.invariance.run_suite`; None explains how to get them.
        command: by which the model was trained or evaluated.
        n_members: size of the ensemble.
        warnings: on the training data; those of the evaluations are shown as well.
    """
    page, metadata = Page("report.html"), loaded.metadata
    n_structures = sum(map(len, sets))
    of = f"{loaded.name}, ensemble of {n_members}" if n_members > 1 else f"{loaded.path}, epoch {metadata.epoch + 1}"
    best, curves = best_epoch(records), [(learning_curves(records, name), shown) for name, shown in _CURVES.items()]
    content: dict[str, Any] = {
        "title": "molflt report",
        "subtitle": f"{of}, {metadata.target}",
        "summary": summary(loaded, n_members),
        "sets": sets,
        "key_numbers": [_key_numbers(s) for s in sets],
        "sources": [(f"data of {s.name}", s.source) for s in sets],
        "left_out": ", ".join(f"{len(s.skipped):,} of {s.name}" for s in sets if s.skipped),
        "warnings": dict.fromkeys([*warnings, *(warning for s in sets for warning in s.warnings)]),
        "doubtful": [(s.name, s.prediction.doubts()[0]) for s in sets if s.prediction.warnings],
        "ewt_threshold": f"{EWT_THRESHOLD:g}",
        "curves": [svg(figure(figures.draw_learning, found, quantity, best)) for found, quantity in curves if found],
    }
    if sets:
        found = {"element": by_element(sets), "adsorbate": by_adsorbate(sets), "size": by_size(sets)}
        with_forces = [s for s in sets if s.forces is not None and s.forces[0].size]
        groups = {name: errors for name, errors in found.items() if errors is not None}
        content |= {
            "parity": svg(figure(figures.draw_parity, sets, metadata.target)),
            "residuals": svg(figure(figures.draw_residuals, sets, metadata.target)),
            "forces": svg(figure(figures.draw_forces, with_forces)) if with_forces else None,
            "force_numbers": [_force_numbers(s) for s in with_forces],
            "most_points": MOST_POINTS,
            "n_structures": n_structures,
            "error_bars": n_structures <= MOST_ERROR_BARS and any(s.uncertainty_eV is not None for s in sets),
            "uncertainty": _uncertainty([s for s in sets if s.uncertainty_eV is not None]),
            "groups": [_group(name, errors) for name, errors in groups.items()],
            "worst": [_card(page, sets[0], place) for place in sets[0].worst()],
        }
    content |= {
        "far": _far(loaded),
        "local": _local(loaded, sets),
        "invariance": _invariance(results),
        "provenance": provenance(loaded, command),
        "configuration": configuration(loaded),
    }
    page.write(path, **content, headings=_headings(content))


def _headings(content: dict[str, Any]) -> dict[str, str]:
    """Headings of the page's sections, by their anchors."""
    found = {"overview": "Overview"}
    if content["curves"]:
        found["curves"] = "Learning curves"
    if content["sets"]:
        found["residuals"] = "Residuals"
        if content["forces"]:
            found["forces"] = "Forces"
        if content["uncertainty"]:
            found["uncertainty"] = "Uncertainty"
        *first, last = [group["name"] for group in content["groups"]]
        found["groups"] = f"Errors by {', '.join(first)} and {last}"
        n = len(content["worst"])
        found["worst"] = f"The {n} largest errors" if n > 1 else "The largest error"
    return found | {"rpe": "Learned RPE", "invariance": "Invariance", "provenance": "Provenance"}


def _key_numbers(evaluation: Evaluation) -> list[str]:
    metrics = evaluation.metrics
    share = f"{metrics.mae_over_mad:.3f}" if np.isfinite(metrics.mae_over_mad) else "–"
    numbers = f"{metrics.energy_mae:.4f}", f"{metrics.energy_rmse:.4f}", f"{metrics.mad:.4f}"
    return [evaluation.name, f"{metrics.n:,}", *numbers, share, f"{metrics.ewt:.1%}"]


def _force_numbers(evaluation: Evaluation) -> list[str]:
    found = evaluation.force_metrics
    assert found is not None
    assert evaluation.forces is not None
    share = f"{found.force_rmse / (found.force_rms or 1.0):.3f}"
    numbers = [f"{x:.4f}" for x in (found.force_mae, found.force_rmse, found.force_rms)]
    return [evaluation.name, f"{len(evaluation.forces[0]):,}", *numbers, share]


def _uncertainty(sets: Sequence[Evaluation]) -> dict[str, Any] | None:
    """Compare predicted uncertainties with the errors; None without uncertainties."""
    if not sets:
        return None
    rows, reasons = [], []
    for evaluation in sets:
        try:
            found = evaluation.calibration()
        except InputError as error:
            reasons.append(f"{evaluation.name}: {error}.")
            continue
        assert found is not None
        assert evaluation.uncertainty_eV is not None
        rank = f"{found.rank_correlation:.2f}" if np.isfinite(found.rank_correlation) else "–"
        numbers = f"{evaluation.uncertainty_eV.mean():.4f}", f"{found.factor:.2f}", rank
        rows.append([evaluation.name, f"{found.n:,}", *numbers, *(f"{share:.1%}" for share in found.coverage)])
    head = ["set", "structures", "mean ± / eV", "factor", "rank corr.", *(f"in {level:.1%}" for level in LEVELS)]
    coverage = svg(figure(figures.draw_coverage, sets))
    return {"figure": coverage, "head": head, "rows": rows, "reasons": " ".join(reasons)}


def _group(name: str, found: GroupErrors) -> dict[str, Any]:
    axis = "number of atoms" if name == "size" else name
    columns = [f"{set_name}: {what}" for set_name in found.sets for what in ("structures", "MAE / eV")]
    rows = [
        [group, *(cell for n, mae in zip(found.n[:, j], found.mae[:, j], strict=True)
                  for cell in (f"{n:,}", f"{mae:.4f}" if n else "–"))]
        for j, group in enumerate(found.groups)
    ]  # fmt: skip
    bars = svg(figure(figures.draw_groups, found, axis))
    return {"name": name, "figure": bars, "head": [axis, *columns], "rows": rows}


def _card(page: Page, evaluation: Evaluation, place: int) -> dict[str, Any]:
    """Describe one of the structures with the largest errors."""
    table = evaluation.table
    adsorbate = f", adsorbate {table.adsorbates[place]}" if table.adsorbates[place] else ""
    return {
        "name": table.names[place],
        "about": f"{table.formulas[place]}, {table.sizes[place]:,} atoms{adsorbate}",
        "figure": structure_view(page, evaluation.structures[place]),
        "error": evaluation.error[place],
        "expected": evaluation.expected[place],
        "predicted": evaluation.predicted[place],
    }


def _far(loaded: LoadedModel) -> dict[str, Any] | None:
    """Learnt far-field functions of each head; None without a far field."""
    curves = far_curves(loaded.model)
    if curves is None:
        return None
    return {
        "figures": [svg(figures.far_figure(curves)), svg(figures.spectrum_figure(curves))],
        "n_waves": 0 if curves.nodes is None else len(curves.nodes),
        "dotted": curves.intended is not None,
        "spectrum": curves.spectrum is not None,
    }


def _local(loaded: LoadedModel, sets: Sequence[Evaluation]) -> dict[str, Any] | None:
    """Learnt local functions of each head, for the two most frequent elements."""
    counts = Counter(z for evaluation in sets for elements in evaluation.table.elements for z in elements)
    known = [z for z, _ in counts.most_common()] or loaded.metadata.elements
    # A single element is paired with itself.
    curves = local_curves(loaded.model, (known[0], known[min(1, len(known) - 1)]))
    if curves is None:
        return None
    a, b = (chemical_symbols[z] for z in curves.pair)
    return {"a": a, "b": b, "figure": svg(figures.local_figure(curves))}


def _invariance(results: Sequence[Result] | None) -> dict[str, Any] | None:
    """Table of ``molflt check-invariance``."""
    if not results:
        return None
    columns = list(dict.fromkeys((r.far_scaled, r.dtype) for r in results))
    found = {(r.name, r.far_scaled, r.dtype): r for r in results}
    names = dict.fromkeys(r.name for r in results)
    failed = sorted({r.name for r in results if r.verdict == "fail"})
    return {
        "columns": columns,
        "rows": [(name, [_cell(found.get((name, *column))) for column in columns]) for name in names],
        "verdict": f"Failed: {', '.join(failed)}." if failed else "All properties hold.",
    }


def _cell(result: Result | None) -> dict[str, str]:
    if result is None or result.n == 0:
        return {"verdict": "none", "title": "", "text": "–"}
    share = f"{result.used:.0%}" if result.used < 100 else f"{result.used:.0e} ×"
    worst = f"{result.worst:.1e}" if result.worst else "0"
    return {
        "verdict": result.verdict,
        "title": f"median {result.median:.1e} eV of {result.n} comparisons; bound: {result.bound}",
        "text": f"{worst} ({share}) {result.verdict}",
    }


def summary(loaded: LoadedModel, n_members: int = 1) -> list[tuple[str, str]]:
    """Describe the model in a few lines; for an ensemble, what its members have in common."""
    metadata, config = loaded.metadata, loaded.model.config
    recycles = f", applied {config.n_recycles} times" if config.n_recycles > 1 else ""
    data = metadata.training_data
    skipped = Path(loaded.path).parent / SKIPPED
    origin = metadata.fine_tuned_from
    left_out = [("left out of its data", f"structures that cannot be used, listed in {SKIPPED}")]
    return [
        *(left_out if skipped.is_file() else []),
        ("target", f"{metadata.target}, eV"),
        ("attention", _in_words(config.attention)),
        ("size", f"{config.n_layers} layers{recycles}, {config.n_heads} heads, width {config.dim}"),
        ("parameters", f"{loaded.model.n_parameters():,}"),
        ("local cutoff", f"{config.cutoff:g} Å"),
        ("elements", " ".join(chemical_symbols[z] for z in metadata.elements)),
        ("trained on", f"{data.n_structures:,} structures of {data.path}"),
        ("fingerprint of these", data.fingerprint),
        *([("fine-tuned from", f"{origin.model}, trained on {origin.trained_on.path}")] if origin else []),
        *(
            [("epoch", str(metadata.epoch + 1)), ("model file", str(loaded.path))]
            if n_members == 1
            else [("ensemble", f"{n_members} models in {loaded.name}; curves and RPE are of the first")]
        ),
    ]


def _in_words(config: AttentionConfig) -> str:
    parts = [f"mechanism {config.mechanism}"]
    if isinstance(config, MethodKeys):
        parts.append(f"far field by {config.frequencies}")
    if isinstance(config, ContentKeys):
        parts.append(f"far rank {config.far_rank}")
    if isinstance(config, FarFieldKeys):
        kind = f"{config.spectrum}, " if isinstance(config, MethodKeys) else ""
        parts.append(f"{config.n_basis} members ({kind}up to {config.widest:.3g} Å wide)")
    if isinstance(config, KernelisedConfig):
        parts.append(f"kernel {config.kernel}")
    return ", ".join(parts)


def provenance(loaded: LoadedModel, command: str | None) -> list[tuple[str, str]]:
    """List date, machine, seed, command and versions."""
    trained_with = ", ".join(f"{name} {version}" for name, version in loaded.metadata.versions.items())
    written_with = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    found = [
        ("report written", datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")),
        ("molflt", __version__),
        ("machine", f"{platform.platform()}, {platform.machine()}, {os.cpu_count()} logical CPUs"),
        ("seed", str(loaded.metadata.seed)),
        ("model trained with", trained_with),
        ("report written with", written_with),
    ]
    return [*found, ("command", command)] if command else found


def configuration(loaded: LoadedModel) -> tuple[str, str]:
    """Name and YAML of the run's configuration if it lies beside the model, else of the model's."""
    beside = Path(loaded.path).parent / "config.yaml"
    if beside.is_file():
        try:
            config = load_config(beside)
        except InputError:
            pass
        else:
            # The file may belong to another model. Only the model knows values that depend on the training set.
            settled: Any = {"auxiliary_head": True, "read_out": True, "attention": set(FROM_TRAINING_SET)}
            if config.model.model_dump(exclude=settled) == loaded.metadata.config.model_dump(exclude=settled):
                return f"Full configuration ({beside.name} of the run)", to_yaml(config)
    return "Configuration of the model", to_yaml(loaded.metadata.config)
