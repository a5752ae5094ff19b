"""The figures of ``molflt plot``: charts as PNG, SVG or PDF, with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from molflt import vocabulary as choices
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.files import atomic_file
from molflt.prediction.evaluate import Evaluation, evaluate
from molflt.prediction.members import load_members
from molflt.prediction.metrics import by_adsorbate, by_element, by_size
from molflt.report.charts import Panel, Series, curves_panel, far_panels, groups_panel, parity_panels
from molflt.report.learning_curves import best_epoch, learning_curves
from molflt.report.rpe_curves import far_curves
from molflt.training.run_directory import read_records

_NEED_DATA = ("parity", "residuals", "elements", "adsorbates", "sizes")
_DPI = 200
_MOST_COLUMNS = 3
_MOST_IN_LEGEND = 12
_MARKERS = {"line": "", "joined": "o", "points": "o", "star": "*"}
_DASHES = {"solid": "-", "dot": ":", "dash": "--"}


def draw(
    kind: choices.Figure,
    model: Path,
    data: str | None,
    out: Path,
    device: torch.device | str,
    max_atoms: int,
    tags: choices.TagConvention = "auto",
) -> None:
    """Compute a figure and write it, atomically.

    Args:
        kind: what it shows.
        model: a model file, a run directory or an ensemble's; for ``curves`` a run directory, or a model file in it.
        data: labelled structures, for the kinds that show errors.
        out: the file; its suffix is its format.
        device: where to compute.
        max_atoms: atoms per batch; bounds memory, changes no result.
        tags: how to read tags, see :func:`molflt.data.ase.from_atoms`.

    Raises:
        InputError: the model, the run or the data lack what the figure shows.
    """
    if kind in _NEED_DATA and data is None:
        raise InputError(f"'{kind}' shows errors: give labelled structures after the model, such as test.lmdb")
    if kind not in _NEED_DATA and data is not None:
        raise InputError(f"'{kind}' needs no structures; leave out {data}")
    if kind == "curves":
        panels = [_curves(model)]
    elif data is None:
        panels = _rpe(kind, model)
    else:
        members = load_members(model)
        found = evaluate(
            members, data, forces=False, device=device, max_atoms=max_atoms, options=ReadOptions(tags=tags)
        )
        panels = [_errors(kind, found, members[0].metadata.target)]
    with atomic_file(out) as temporary:
        picture(panels).savefig(temporary, dpi=_DPI)


def _curves(model: Path) -> Panel:
    if not model.exists():
        raise InputError(f"{model}: no such file or folder; give the directory of a run")
    run_dir = model if model.is_dir() else model.parent
    records = read_records(run_dir)
    curves = learning_curves(records, "energy_mae")
    if not curves:
        raise InputError(
            f"{run_dir}: holds no metrics.jsonl with a validated epoch; give the directory of a run (of an ensemble, "
            "that of one member)"
        )
    return curves_panel(curves, "MAE / eV", best_epoch(records))


def _rpe(kind: choices.Figure, model: Path) -> list[Panel]:
    loaded = load_members(model)[0]
    curves = far_curves(loaded.model)
    if curves is None:
        raise InputError(
            f"{model}: its attention ({loaded.model.config.attention.mechanism}) has no far field, so there is no "
            f"{kind} to plot"
        )
    return [panels[0 if kind == "rpe" else 1] for panels in far_panels(curves)]


def _errors(kind: choices.Figure, found: Evaluation, target: str) -> Panel:
    if kind in ("parity", "residuals"):
        return parity_panels([found], target)[0 if kind == "parity" else 1]
    if kind == "elements":
        return groups_panel(by_element([found]), "element")
    if kind == "sizes":
        return groups_panel(by_size([found]), "number of atoms")
    adsorbates = by_adsorbate([found])
    if adsorbates is None:
        raise InputError(
            f"{found.source}: its structures do not say what is adsorbed on them (text 'adsorbate'); plot 'elements' "
            "or 'sizes' instead"
        )
    return groups_panel(adsorbates, "adsorbate")


def picture(panels: Sequence[Panel]) -> Figure:
    """One chart by itself, or several side by side with one legend."""
    columns = min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=_size(panels[0]) if len(panels) == 1 else (3.4 * columns, 3.2 * rows))
    figure.set_layout_engine("constrained")
    for k, panel in enumerate(panels):
        _draw(figure.add_subplot(rows, columns, k + 1), panel, first=k % columns == 0)
    handles, names = figure.axes[0].get_legend_handles_labels()
    if len(panels) > 1 and 1 < len(names) <= _MOST_IN_LEGEND:
        figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
    elif 1 < len(names) <= _MOST_IN_LEGEND:
        figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def _size(panel: Panel) -> tuple[float, float]:
    """Inches."""
    if panel.square:
        return 5.2, 5.2
    if panel.series[0].mark == "bars":
        return max(6.4, 0.42 * len(panel.series[0].x)), 3.6
    return 6.4, 4.0


def _draw(axes: Any, panel: Panel, first: bool) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e9ee", linewidth=0.8)
    axes.set_axisbelow(True)
    if panel.zero:
        axes.axhline(0, color="#6b7682", linewidth=0.8)
    for series in panel.series:
        if series.mark == "bars":
            _bars(axes, series)
        else:
            _points(axes, series)
    axes.set(xlabel=plain(panel.x), ylabel=plain(panel.y) if first else "", xlim=panel.x_range, ylim=panel.y_range)
    axes.set_title(plain(panel.title), fontsize=10)
    if panel.square:
        axes.set_aspect("equal")
    if panel.whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if panel.log:
        axes.set_yscale("log")
    if panel.ticks is not None:
        axes.set_yticks(panel.ticks)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def _bars(axes: Any, series: Series) -> None:
    names = [plain(name) for name in series.x]
    bars = axes.bar(names, series.y, color=series.colour)
    if series.numbers is not None:
        labels = [f"{n:,}" for n in series.numbers[:, 0]]
        axes.bar_label(bars, labels, fontsize=7, padding=2, color="#4a5563")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", rotation=90 if max(map(len, names)) > 6 else 0)


def _points(axes: Any, series: Series) -> None:
    label = plain(series.name) if series.legend else "_nolegend_"
    if series.spread is not None:
        bars = {"ecolor": series.colour, "elinewidth": 0.6, "alpha": 0.5}
        axes.errorbar(series.x, series.y, yerr=series.spread, fmt="none", **bars)
    axes.plot(
        series.x,
        series.y,
        color=series.colour,
        linestyle="" if series.mark in ("points", "star") else _DASHES[series.dash],
        linewidth=0.75 * series.width,
        marker=_MARKERS[series.mark],
        markersize={"star": 12, "joined": 3}.get(series.mark, 4),
        markeredgewidth=0,
        alpha=0.6 if series.mark == "points" else 1,
        label=label,
    )


def plain(text: str) -> str:
    """Text of data for matplotlib, which reads formulas between dollar signs."""
    return text.replace("$", r"\$")
