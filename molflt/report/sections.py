"""The sections of a report that speak of errors: key numbers, curves, parity, groups, worst structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from molflt.errors import InputError
from molflt.model.model_file import LoadedModel
from molflt.prediction.calibration import LEVELS
from molflt.prediction.evaluation import Evaluation, GroupErrors, by_adsorbate, by_element, by_size
from molflt.prediction.metrics import EWT_THRESHOLD
from molflt.report.document import Document, Section, caption, definitions, folded, table
from molflt.report.figures import coverage_figure, curves_figure, groups_figure, parity_figure
from molflt.report.learning_curves import learning_curves
from molflt.report.parity import MOST_ERROR_BARS, MOST_POINTS
from molflt.report.plain_text import for_html
from molflt.report.provenance import summary
from molflt.report.structure_view import structure_figure

_CURVES = {"energy_mae": "MAE / eV", "force_mae": "force MAE / eV Å⁻¹"}
_CARD_HEIGHT = 300


def overview(loaded: LoadedModel, sets: Sequence[Evaluation]) -> Section:
    """The model in a few lines, and the numbers it is judged by."""
    rows = []
    for described in sets:
        metrics = described.metrics
        share = f"{metrics.mae_over_mad:.3f}" if np.isfinite(metrics.mae_over_mad) else "–"
        numbers = f"{metrics.energy_mae:.4f}", f"{metrics.energy_rmse:.4f}", f"{metrics.mad:.4f}"
        rows.append([described.name, f"{metrics.n:,}", *numbers, share, f"{metrics.ewt:.1%}"])
    body = definitions(summary(loaded))
    if sets:
        head = ["set", "structures", "MAE / eV", "RMSE / eV", "MAD / eV", "MAE/MAD", "EwT"]
        body += "<h3>Key numbers</h3>" + table(head, rows)
        body += caption(
            f"EwT: share of structures with an error below {EWT_THRESHOLD:g} eV. MAD: mean absolute deviation of the "
            "labels from their mean; a model with MAE/MAD near 1 knows no more than that mean."
        )
        body += definitions((f"data of {described.name}", described.source) for described in sets)
    failed = [f"{len(s.skipped):,} of {s.name}" for s in sets if s.skipped]
    if failed:
        body += caption(f"Left out everywhere, because they cannot be used: {', '.join(failed)}.")
    return Section("overview", "Overview", body)


def curves_section(document: Document, records: Sequence[dict[str, Any]]) -> Section | None:
    """Metrics over epochs; None without records."""
    body = ""
    for metric, quantity in _CURVES.items():
        curves = learning_curves(records, metric)
        if curves:
            body += document.figure(curves_figure(curves, quantity))
    if not body:
        return None
    body += caption(
        "Errors after each validated epoch, on a logarithmic scale. The star marks the epoch with the smallest error "
        "on the first validation set; its weights are best.safetensors. Training errors (dotted) are measured while "
        "the weights still move. A training curve that goes on falling while validation stays or rises is "
        "overfitting; curves that still fall together at the end ask for more epochs."
    )
    return Section("curves", "Learning curves", body)


def parity_section(document: Document, sets: Sequence[Evaluation], target: str) -> Section:
    """Predicted against expected."""
    n = sum(map(len, sets))
    text = (
        "Above: predicted against expected energies, on the line where they agree. Below: their difference. A slope "
        "below one in the cloud means that the model shrinks towards the mean; structure in the residuals means "
        "something it has not learnt. Point at a dot for the structure's name; click on a name in the legend to hide "
        "a set."
    )
    if n > MOST_POINTS:
        text += f" Shown is a random sample of {MOST_POINTS:,} of the {n:,} structures."
    if any(s.std is not None for s in sets) and n <= MOST_ERROR_BARS:
        text += " Bars: one standard deviation over the ensemble."
    body = document.figure(parity_figure(sets, target)) + caption(text)
    return Section("parity", "Parity and residuals", body)


def groups_section(document: Document, sets: Sequence[Evaluation]) -> Section:
    """Errors by element, adsorbate and size."""
    many = len(sets) > 1
    body = "<h3>By element</h3>" + _groups(document, by_element(sets), "element")
    body += caption(
        "Mean absolute error over the structures that contain the element, the hardest element first"
        + (" (all sets pooled). " if many else ". ")
        + "A structure counts for each of its elements. Few structures make an uncertain bar: see the numbers."
    )
    adsorbates = by_adsorbate(sets)
    if adsorbates is not None:
        body += "<h3>By adsorbate</h3>" + _groups(document, adsorbates, "adsorbate")
        body += caption("Mean absolute error over the structures with that adsorbate, the hardest first.")
    body += "<h3>By size</h3>" + _groups(document, by_size(sets), "number of atoms")
    body += caption(
        "Ranges that hold about equally many structures. An error that grows with size says that the model adds up "
        "too many wrong contributions, or has not seen such sizes."
    )
    heading = "Errors by element, adsorbate and size" if adsorbates is not None else "Errors by element and size"
    return Section("groups", heading, body)


def _groups(document: Document, found: GroupErrors, group: str) -> str:
    head = [group, *(f"{name}: {what}" for name in found.sets for what in ("structures", "MAE / eV"))]
    rows = [
        [
            name,
            *(
                cell
                for k in range(len(found.sets))
                for cell in (f"{found.n[k, j]:,}", f"{found.mae[k, j]:.4f}" if found.n[k, j] else "–")
            ),
        ]
        for j, name in enumerate(found.groups)
    ]
    return document.figure(groups_figure(found, group)) + folded("Numbers", table(head, rows))


def worst_section(document: Document, described: Evaluation) -> Section:
    """The structures with the largest errors, in 3D."""
    cards = []
    table = described.table
    places = described.worst()
    for rank, place in enumerate(places, start=1):
        figure = structure_figure(described.structures[place])
        expected, predicted = signed(described.expected[place], ""), signed(described.predicted[place], "")
        numbers = f"expected {expected} eV, predicted {predicted} eV"
        error = f"<strong>error {signed(described.error[place])} eV</strong>"
        adsorbate = f", adsorbate {table.adsorbates[place]}" if table.adsorbates[place] else ""
        about = f"{table.formulas[place]}, {table.sizes[place]:,} atoms{adsorbate}"
        cards.append(
            f'<div class="card"><h3>{rank}. {for_html(table.names[place])}</h3><p>{for_html(about)}</p>'
            f"{document.figure(figure, _CARD_HEIGHT)}<p>{error}</p><p>{numbers}</p></div>"
        )
    heading = f"The {len(places)} largest errors" if len(places) > 1 else "The largest error"
    body = f'<div class="cards">{"".join(cards)}</div>' + caption(
        f"Of {described.name}, the largest first. Drag to turn, right-drag to move; the tools above a structure "
        "zoom. Point at an atom for its index and tag (0 sub-surface, 1 surface, 2 adsorbate). What do they have in "
        "common: an element, a site, an atom that has come loose? Labels can be wrong, too."
    )
    return Section("worst", heading, body)


def signed(energy: float, plus: str = "+") -> str:
    """An energy in eV to a tenth of a meV, with a minus sign that is one."""
    return f"{energy:{plus}.4f}".replace("-", "−")


def uncertainty_section(document: Document, sets: Sequence[Evaluation]) -> Section | None:
    """Whether the spread of an ensemble fits its errors; None for one model."""
    spread = [s for s in sets if s.std is not None]
    if not spread:
        return None
    rows, reasons = [], []
    for described in spread:
        assert described.std is not None
        try:
            found = described.calibration()
        except InputError as error:
            reasons.append(f"{described.name}: {error}.")
            continue
        assert found is not None
        shares = [f"{share:.1%}" for share in found.coverage]
        rank = f"{found.rank_correlation:.2f}" if np.isfinite(found.rank_correlation) else "–"
        mean = f"{described.std.mean():.4f}"
        rows.append([described.name, f"{found.n:,}", mean, f"{found.factor:.2f}", rank, *shares])
    body = document.figure(coverage_figure(spread))
    if rows:
        head = ["set", "structures", "mean std / eV", "factor", "rank corr."]
        body += table([*head, *(f"in {level:.1%}" for level in LEVELS)], rows)
    body += caption(
        "Share of structures whose error is within k standard deviations of the ensemble, against the share a normal "
        "distribution would have. A curve below the dashed one: the ensemble is too sure of itself. Factor: what the "
        "standard deviation would have to be multiplied with. Rank correlation: of standard deviation and |error|; 0 "
        "means that the spread does not know which structures are hard. In 50 %: share of errors within the central "
        "interval that should hold half of them, and so on. " + " ".join(reasons)
    )
    return Section("uncertainty", "Uncertainty", body)
