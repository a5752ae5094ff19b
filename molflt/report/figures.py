"""The figures of the HTML report, with plotly. What they show is computed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from ase.data import chemical_symbols
from plotly.subplots import make_subplots

from molflt.prediction.evaluation import Evaluation, GroupErrors
from molflt.report.colours import GREY, palette
from molflt.report.learning_curves import TRAIN, Curve, best_point, log_ticks
from molflt.report.parity import MOST_ERROR_BARS, limits, shown
from molflt.report.plain_text import for_plotly
from molflt.report.rpe_curves import FarCurves, LocalCurves

_GRID = "#e6e9ee"
_LONGEST = 16
"""Characters of a group's name on an axis; the hover text has all."""


def _styled(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 70, "r": 20, "t": 40, "b": 55},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        hoverlabel={"align": "left"},
        **layout,
    )
    figure.update_xaxes(gridcolor=_GRID, linecolor="#aab2bd", zeroline=False, ticks="outside", automargin=True)
    figure.update_yaxes(gridcolor=_GRID, linecolor="#aab2bd", zeroline=False, ticks="outside", automargin=True)
    return figure


def curves_figure(curves: Sequence[Curve], quantity: str) -> go.Figure:
    """A metric over epochs, on a logarithmic scale, with the best epoch marked."""
    figure = go.Figure()
    colours = iter(palette(max(1, sum(curve.split != TRAIN for curve in curves))))
    for curve in curves:
        line = {"color": GREY, "dash": "dot"} if curve.split == TRAIN else {"color": next(colours)}
        figure.add_scatter(
            x=curve.epochs,
            y=curve.values,
            mode="lines+markers" if len(curve.epochs) < 40 else "lines",
            line=line,
            name=for_plotly(curve.split),
            hovertemplate="epoch %{x}: %{y:.4g}",
        )
    best = best_point(curves)
    if best is not None:
        split, epoch, value = best
        figure.add_scatter(
            x=[epoch],
            y=[value],
            mode="markers",
            marker={"symbol": "star", "size": 15, "color": "#D55E00", "line": {"color": "white", "width": 1}},
            name=f"best: epoch {epoch}, {value:.4g}",
            hovertemplate=f"best {for_plotly(split)}: epoch {epoch}, {value:.4g}<extra></extra>",
        )
    ticks = log_ticks(curves)
    figure.update_yaxes(type="log", title=quantity, tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    figure.update_xaxes(title="epoch")
    longest = max(int(curve.epochs.max()) for curve in curves)
    if longest <= 12:
        figure.update_xaxes(dtick=1)
    return _styled(figure, 380)


def parity_figure(sets: Sequence[Evaluation], target: str) -> go.Figure:
    """Predicted against expected energies, and the residuals below."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.68, 0.32], vertical_spacing=0.04)
    low, high = limits(sets)
    with_bars = sum(len(s) for s in sets) <= MOST_ERROR_BARS
    line = {"color": "#4a5563", "width": 1}
    for row, y in ((1, [low, high]), (2, [0, 0])):
        figure.add_scatter(
            x=[low, high], y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, row=row, col=1
        )
    for described, chosen, colour in zip(sets, shown(sets), palette(len(sets)), strict=True):
        expected, error = described.expected[chosen], described.error[chosen]
        std = None if described.std is None else described.std[chosen]
        texts = [f"{for_plotly(described.table.names[i])}<br>{described.table.formulas[i]}" for i in chosen]
        spread = "" if std is None else "<br>ensemble std %{customdata[1]:.4f} eV"
        columns = [error] if std is None else [error, std]
        common = {
            "x": expected,
            "mode": "markers",
            "marker": {"color": colour, "size": 6, "opacity": 0.6},
            "text": texts,
            "customdata": np.stack(columns, axis=1),
            "name": for_plotly(described.name),
            "legendgroup": for_plotly(described.name),
            "hovertemplate": "%{text}<br>expected %{x:.4f} eV<br>error %{customdata[0]:+.4f} eV" + spread,
        }
        bars = None
        if std is not None and with_bars:
            bars = {"type": "data", "array": std, "thickness": 1, "width": 0, "color": colour}
        figure.add_scatter(**common, y=described.predicted[chosen], error_y=bars, row=1, col=1)
        figure.add_scatter(**common, y=error, error_y=bars, showlegend=False, row=2, col=1)
    figure.update_xaxes(range=[low, high])
    figure.update_xaxes(title=f"expected {for_plotly(target)} / eV", row=2, col=1)
    figure.update_yaxes(title="predicted / eV", range=[low, high], row=1, col=1)
    figure.update_yaxes(title="error / eV", row=2, col=1)
    return _styled(figure, 680, hovermode="closest")


def groups_figure(found: GroupErrors, group: str) -> go.Figure:
    """Bars of mean absolute errors, one colour per set."""
    figure = go.Figure()
    groups = [for_plotly(name) for name in found.groups]
    for name, mae, n, colour in zip(found.sets, found.mae, found.n, palette(len(found.sets)), strict=True):
        figure.add_bar(
            x=groups,
            y=[None if np.isnan(value) else value for value in mae],
            customdata=n,
            marker={"color": colour},
            name=for_plotly(name),
            hovertemplate="%{x}: MAE %{y:.4f} eV<br>%{customdata} structures",
        )
    # Names such as 12 are no numbers here; long ones would leave no room for the bars.
    short = [for_plotly(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…") for name in found.groups]
    figure.update_xaxes(type="category", title=group, categoryorder="array", categoryarray=groups)
    figure.update_xaxes(tickvals=groups, ticktext=short)
    figure.update_yaxes(title="MAE / eV", rangemode="tozero")
    return _styled(figure, 330, barmode="group", bargap=0.25)


def far_figure(curves: FarCurves) -> go.Figure:
    """F over distance and its spectrum; a menu chooses the layer."""
    n_layers, n_heads = curves.values.shape[:2]
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.11)
    layers: list[int] = []

    def add(column: int, layer: int, **trace: Any) -> None:
        figure.add_scatter(**trace, visible=layer == 0, row=1, col=column)
        layers.append(layer)

    for layer in range(n_layers):
        for head, colour in enumerate(palette(n_heads)):
            name = f"head {head + 1}"
            common = {"name": name, "legendgroup": name}
            hover = name + ": %{y:.4g} at %{x:.3g}"
            line = {"color": colour, "width": 1.8, "simplify": False}
            thin = {"color": colour, "width": 1, "dash": "dot"}
            add(1, layer, x=curves.distances, y=curves.values[layer, head], line=line, hovertemplate=hover, **common)
            if curves.intended is not None:
                y = curves.intended[layer, head]
                add(1, layer, x=curves.distances, y=y, line=thin, hoverinfo="skip", showlegend=False, **common)
            if curves.spectrum is not None:
                y = curves.spectrum[layer, head]
                add(2, layer, x=curves.xi, y=y, line=line, hovertemplate=hover, showlegend=False, **common)
            elif curves.nodes is not None and curves.coefficients is not None:
                y = curves.coefficients[layer, head]
                dots = {"mode": "markers", "marker": {"color": colour, "size": 7}, "hovertemplate": hover}
                add(2, layer, x=curves.nodes, y=y, showlegend=False, **dots, **common)
    figure.update_xaxes(title="distance r / Å", range=[0, curves.reach], row=1, col=1)
    figure.update_xaxes(title="frequency |ξ| / Å⁻¹", row=1, col=2)
    figure.update_yaxes(title="f(r)", row=1, col=1)
    figure.update_yaxes(title="g(ξ) / Å³" if curves.spectrum is not None else "coefficient a_k", row=1, col=2)
    return _with_layers(_styled(figure, 420), layers)


def local_figure(curves: LocalCurves) -> go.Figure:
    """The local RPE over distance; a menu chooses the layer."""
    figure = go.Figure()
    layers = []
    for layer, heads in enumerate(curves.values):
        for head, (y, colour) in enumerate(zip(heads, palette(len(heads)), strict=True)):
            name = f"head {head + 1}"
            line = {"color": colour, "width": 1.8, "simplify": False}
            hover = name + ": %{y:.4g} at %{x:.3g} Å"
            figure.add_scatter(x=curves.distances, y=y, line=line, name=name, hovertemplate=hover, visible=layer == 0)
            layers.append(layer)
    a, b = (chemical_symbols[z] for z in curves.pair)
    figure.update_xaxes(title=f"distance {a}–{b} / Å")
    figure.update_yaxes(title="exp(b(r)) · env(r)", rangemode="tozero")
    return _with_layers(_styled(figure, 380), layers)


def _with_layers(figure: go.Figure, layers: Sequence[int]) -> go.Figure:
    """A menu that shows the traces of one layer at a time."""
    figure.update_traces(mode="lines", selector=lambda trace: trace.mode is None)
    if max(layers) == 0:
        return figure
    buttons = [
        {"method": "restyle", "label": f"Layer {k + 1}", "args": ["visible", [layer == k for layer in layers]]}
        for k in range(max(layers) + 1)
    ]
    menu = {"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.04, "yanchor": "bottom", "bgcolor": "white"}
    return figure.update_layout(updatemenus=[menu], margin={"t": 70})


def coverage_figure(sets: Sequence[Evaluation]) -> go.Figure:
    """Share of errors within k standard deviations, against that of a normal distribution."""
    figure = go.Figure()
    curves = [(s.name, s.coverage) for s in sets]
    for (name, found), colour in zip(curves, palette(len(sets)), strict=True):
        if found is None:
            continue
        figure.add_scatter(
            x=found.multiples,
            y=found.found,
            mode="lines",
            line={"color": colour},
            name=for_plotly(name),
            hovertemplate="%{y:.1%} of errors within %{x:.2f} std",
        )
        any_set = found
    figure.add_scatter(
        x=any_set.multiples,
        y=any_set.expected,
        mode="lines",
        line={"color": GREY, "dash": "dash"},
        name="normal distribution",
        hovertemplate="%{y:.1%} within %{x:.2f} std",
    )
    figure.update_xaxes(title="k, multiples of the ensemble's standard deviation")
    figure.update_yaxes(title="share of |error| ≤ k·std", tickformat=".0%", range=[0, 1.02])
    return _styled(figure, 380)
