"""The single figures of ``molflt plot``, with matplotlib. What they show is computed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from molflt.prediction.evaluation import Evaluation, GroupErrors
from molflt.report.colours import GREY, palette
from molflt.report.learning_curves import TRAIN, Curve, best_point, log_ticks
from molflt.report.parity import MOST_ERROR_BARS, limits, shown
from molflt.report.rpe_curves import FarCurves

_WIDTH, _HEIGHT = 6.4, 4.4
_MOST_COLUMNS = 3
_MOST_IN_LEGEND = 12


def _axes(figure: Figure, *place: int) -> Any:
    axes = figure.add_subplot(*place) if place else figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e9ee", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def plain(text: str) -> str:
    """Text of data for matplotlib, which reads formulas between dollar signs."""
    return text.replace("$", r"\$")


def curves_picture(curves: Sequence[Curve], quantity: str) -> Figure:
    """See :func:`molflt.report.figures.curves_figure`."""
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = _axes(figure)
    colours = iter(palette(max(1, len(curves))))
    for curve in curves:
        style = {"color": GREY, "linestyle": ":"} if curve.split == TRAIN else {"color": next(colours)}
        axes.plot(curve.epochs, curve.values, marker="o" if len(curve.epochs) < 40 else "", ms=3, **style,
                  label=plain(curve.split))  # fmt: skip
    best = best_point(curves)
    if best is not None:
        axes.plot(best[1], best[2], "*", color="#D55E00", ms=12, label=f"best: epoch {best[1]}, {best[2]:.4g}")
    axes.set(xlabel="epoch", ylabel=quantity, yscale="log")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_yticks(log_ticks(curves))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.legend(frameon=False)
    return figure


def parity_picture(described: Evaluation, target: str) -> Figure:
    """Predicted against expected energies; see :func:`molflt.report.figures.parity_figure`."""
    figure = Figure(figsize=(5.2, 5.2), layout="constrained")
    axes = _axes(figure)
    low, high = limits([described])
    axes.plot([low, high], [low, high], color="#4a5563", linewidth=1)
    _points(axes, described, described.predicted)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set(xlabel=f"expected {target} / eV", ylabel=f"predicted {target} / eV")
    mae = float(np.abs(described.error).mean())
    axes.set_title(f"{plain(described.name)}: {len(described):,} structures, MAE {mae:.4f} eV", fontsize=10)
    return figure


def residuals_picture(described: Evaluation, target: str) -> Figure:
    """Errors over expected energies."""
    figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
    axes = _axes(figure)
    axes.axhline(0, color="#4a5563", linewidth=1)
    _points(axes, described, described.error)
    axes.set(xlabel=f"expected {target} / eV", ylabel="predicted − expected / eV", xlim=limits([described]))
    axes.set_title(f"{plain(described.name)}: {len(described):,} structures", fontsize=10)
    return figure


def _points(axes: Any, described: Evaluation, values: np.ndarray) -> None:
    (chosen,) = shown([described])
    colour = palette(1)[0]
    x, y = described.expected[chosen], values[chosen]
    if described.std is not None and len(described) <= MOST_ERROR_BARS:
        axes.errorbar(x, y, yerr=described.std[chosen], fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.5)
    axes.plot(x, y, "o", color=colour, ms=4, alpha=0.6, markeredgewidth=0)


def groups_picture(found: GroupErrors, group: str) -> Figure:
    """Bars of the mean absolute errors of one set, with the number of structures on each."""
    figure = Figure(figsize=(max(_WIDTH, 0.42 * len(found.groups)), 3.6), layout="constrained")
    axes = _axes(figure)
    bars = axes.bar([plain(name) for name in found.groups], found.mae[0], color=palette(1)[0])
    axes.bar_label(bars, [f"{n:,}" for n in found.n[0]], fontsize=7, padding=2, color="#4a5563")
    axes.grid(visible=False, axis="x")
    axes.set(xlabel=group, ylabel="MAE / eV")
    axes.set_title(f"{plain(found.sets[0])}; on the bars: number of structures", fontsize=10)
    axes.tick_params(axis="x", rotation=90 if max(map(len, found.groups)) > 6 else 0)
    return figure


def rpe_picture(curves: FarCurves) -> Figure:
    """F over distance, one panel per layer; dotted: the f that an estimator stands for."""
    figure, panels = _panels(len(curves.values), "distance r / Å", "f(r)")
    for axes, layer in zip(panels, range(len(panels)), strict=True):
        for head, colour in enumerate(palette(curves.values.shape[1])):
            axes.plot(curves.distances, curves.values[layer, head], color=colour, lw=1.3, label=f"head {head + 1}")
            if curves.intended is not None:
                axes.plot(curves.distances, curves.intended[layer, head], color=colour, lw=0.8, ls=":")
        axes.set_xlim(0, curves.reach)
    _legend(figure, panels, curves.values.shape[1])
    return figure


def spectrum_picture(curves: FarCurves) -> Figure:
    """G over frequency, one panel per layer; of free frequencies, their coefficients."""
    label = "g(ξ) / Å³" if curves.spectrum is not None else "coefficient $a_k$"
    figure, panels = _panels(len(curves.values), "frequency |ξ| / Å⁻¹", label)
    for axes, layer in zip(panels, range(len(panels)), strict=True):
        for head, colour in enumerate(palette(curves.values.shape[1])):
            if curves.spectrum is not None:
                axes.plot(curves.xi, curves.spectrum[layer, head], color=colour, lw=1.3, label=f"head {head + 1}")
            elif curves.nodes is not None and curves.coefficients is not None:
                y = curves.coefficients[layer, head]
                axes.plot(curves.nodes, y, "o", color=colour, ms=4, label=f"head {head + 1}")
    _legend(figure, panels, curves.values.shape[1])
    return figure


def _panels(n: int, x: str, y: str) -> tuple[Figure, list[Any]]:
    columns = min(n, _MOST_COLUMNS)
    rows = -(-n // columns)
    figure = Figure(figsize=(max(_WIDTH, 3.4 * columns), 3.2 * rows), layout="constrained")
    panels = [_axes(figure, rows, columns, k + 1) for k in range(n)]
    for k, axes in enumerate(panels):
        axes.axhline(0, color="#aab2bd", linewidth=0.8)
        axes.set_title(f"layer {k + 1}", fontsize=10)
        axes.set_xlabel(x)
        if k % columns == 0:
            axes.set_ylabel(y)
    return figure, panels


def _legend(figure: Figure, panels: Sequence[Any], n_heads: int) -> None:
    if n_heads <= _MOST_IN_LEGEND:
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
