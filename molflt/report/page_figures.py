"""Charts for a page, with plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from molflt.report.charts import Panel, Series
from molflt.report.html import for_plotly

_GRID, _LINE, _ZERO = "#e6e9ee", "#aab2bd", "#6b7682"
_LONGEST = 16
"""Characters of a group's name on an axis; the hover text has all."""
_MODES = {"line": "lines", "joined": "lines+markers", "points": "markers", "star": "markers"}


def page_figure(choices: Sequence[Panel], height: int) -> go.Figure:
    """One panel.

    Args:
        choices: panels of one kind, such as those of each layer; a menu chooses among several.
        height: in pixels.
    """
    figure, of_choice = go.Figure(), []
    for choice, panel in enumerate(choices):
        for series in panel.series:
            figure.add_trace(_trace(series, shown=choice == 0))
            of_choice.append(choice)
    figure.update_xaxes(_x_axis(choices[0]))
    figure.update_yaxes(_y_axis(choices[0]))
    if len(choices) > 1:
        figure.update_layout(updatemenus=[_menu(of_choice, len(choices))])
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 70, "r": 20, "t": 40, "b": 55},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
        # Where a menu is above, the legend is below: on a narrow screen one would hide the other.
        legend={"orientation": "h", "x": 0} | ({"y": -0.2} if len(choices) > 1 else {"y": 1.02, "yanchor": "bottom"}),
        hoverlabel={"align": "left"},
        hovermode="closest",
        barmode="group",
        bargap=0.25,
    )
    figure.update_xaxes(gridcolor=_GRID, linecolor=_LINE, zeroline=False, ticks="outside", automargin=True)
    figure.update_yaxes(gridcolor=_GRID, linecolor=_LINE, ticks="outside", automargin=True)
    return figure


def _trace(series: Series, shown: bool) -> Any:
    name = for_plotly(series.name)
    common: dict[str, Any] = {"name": name, "legendgroup": name, "showlegend": series.legend, "visible": shown}
    if series.hover is None:
        common["hoverinfo"] = "skip"
    else:
        common["hovertemplate"] = series.hover + ("<extra></extra>" if series.mark in ("line", "star") else "")
    if series.numbers is not None:
        common["customdata"] = series.numbers
    y = [None if np.isnan(value) else value for value in series.y.tolist()]
    if series.spread is not None:
        colour, width = ("#333333", 4) if series.mark == "bars" else (series.colour, 0)
        common["error_y"] = {
            "type": "data", "array": series.spread, "thickness": 1, "width": width, "color": colour
        }  # fmt: skip
    if series.mark == "bars":
        return go.Bar(x=[for_plotly(group) for group in series.x], y=y, marker={"color": series.colour}, **common)
    marker: dict[str, Any] = {"color": series.colour, "size": 6}
    if series.mark == "star":
        marker |= {"symbol": "star", "size": 15, "line": {"color": "white", "width": 1}}
    elif series.mark == "points":
        marker["opacity"] = 0.6
    if series.texts is not None:
        common["text"] = [for_plotly(text).replace("\n", "<br>") for text in series.texts]
    line = {"color": series.colour, "dash": series.dash, "width": series.width, "simplify": False}
    return go.Scatter(x=series.x, y=series.y, mode=_MODES[series.mark], marker=marker, line=line, **common)


def _x_axis(panel: Panel) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": for_plotly(panel.x), "range": panel.x_range}
    if panel.square:
        axis["constrain"] = "domain"
    if panel.whole and max(int(series.x.max()) for series in panel.series) <= 12:
        axis["dtick"] = 1
    if panel.series[0].mark == "bars":
        names = list(panel.series[0].x)
        groups = [for_plotly(name) for name in names]
        # Names such as 12 are no numbers here; long ones would leave no room for the bars.
        short = [for_plotly(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…") for name in names]
        axis |= {"type": "category", "categoryorder": "array", "categoryarray": groups}
        axis |= {"tickvals": groups, "ticktext": short}
    return axis


def _y_axis(panel: Panel) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": for_plotly(panel.y), "range": panel.y_range, "zeroline": panel.zero}
    axis["zerolinecolor"] = _ZERO
    if panel.square:
        axis |= {"scaleanchor": "x", "constrain": "domain"}
    if panel.log:
        axis["type"] = "log"
    if panel.ticks is not None:
        axis |= {"tickvals": panel.ticks, "ticktext": [f"{tick:g}" for tick in panel.ticks]}
    if panel.percent:
        axis["tickformat"] = ".0%"
    # Of errors and weights, which have no sign, nothing below zero is shown.
    if panel.zero and not any((series.y < 0).any() for series in panel.series):
        axis["rangemode"] = "tozero"
    return axis


def _menu(of_choice: Sequence[int], n: int) -> dict[str, Any]:
    """Shows the traces of one choice at a time."""
    buttons = [
        {"method": "restyle", "label": f"Layer {k + 1}", "args": ["visible", [choice == k for choice in of_choice]]}
        for k in range(n)
    ]
    return {"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.04, "yanchor": "bottom", "bgcolor": "white"}
