"""What each chart shows, once: a page draws it with plotly, ``molflt plot`` with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from ase.data import chemical_symbols

from molflt.adsorption.adsorb import Adsorption
from molflt.prediction.evaluate import Evaluation
from molflt.prediction.metrics import GroupErrors
from molflt.report.learning_curves import TRAIN, Curve, best_point, log_ticks
from molflt.report.rpe_curves import FarCurves, LocalCurves

MOST_POINTS = 5000
"""Structures in one parity plot; of more, a random sample is shown."""
MOST_ERROR_BARS = 300

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#7A6A00", "#333333")
"""Okabe and Ito's palette, which colour-blind readers can tell apart; its yellow is darkened to be seen on white."""
GREY = "#8a8f98"
_DARK = "#4a5563"
# Viridis at nine places, without the end that is too light on white.
_VIRIDIS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (150, 210, 60), (190, 215, 40)]
)  # fmt: skip


@dataclass(frozen=True)
class Series:
    """One line, cloud of points or row of bars.

    Attributes:
        x: (n,) numbers; of bars, their names.
        y: (n,) numbers; NaN leaves a gap.
        name: in the legend.
        colour: as ``#rrggbb``.
        mark: how it is drawn; ``joined`` is a line with its points, ``star`` one large point.
        dash: of a line.
        width: of a line.
        legend: whether it has an entry there.
        spread: (n,) half lengths of error bars.
        texts: of each point, for a page that shows it when pointed at.
        numbers: (n, m) further numbers of each point; on bars, the number of structures.
        hover: plotly's template for what a page shows of a point; None shows nothing.
    """

    x: Any
    y: np.ndarray
    name: str
    colour: str
    mark: Literal["line", "joined", "points", "bars", "star"] = "line"
    dash: Literal["solid", "dot", "dash"] = "solid"
    width: float = 1.8
    legend: bool = True
    spread: np.ndarray | None = None
    texts: Sequence[str] | None = None
    numbers: np.ndarray | None = None
    hover: str | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        series: what is drawn, the first below the next.
        x, y: titles of the axes.
        title: of the panel, where no heading says it.
        x_range, y_range: ends of the axes; None leaves them to the drawing.
        zero: mark y = 0.
        log: y on a logarithmic scale.
        ticks: of y; None leaves them to the drawing.
        whole: x is counted.
        percent: y is a share.
        square: both axes have the same range, and one scale.
    """

    series: Sequence[Series]
    x: str
    y: str
    title: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    zero: bool = False
    log: bool = False
    ticks: Sequence[float] | None = None
    whole: bool = False
    percent: bool = False
    square: bool = False


def palette(n: int) -> list[str]:
    """``n`` colours: distinct ones while they last, else steps of one scale that rises in lightness."""
    if n <= len(OKABE_ITO):
        return list(OKABE_ITO[:n])
    place = np.linspace(0, len(_VIRIDIS) - 1, n)
    channels = [np.interp(place, np.arange(len(_VIRIDIS)), _VIRIDIS[:, k]).round().astype(int) for k in range(3)]
    return ["#{:02x}{:02x}{:02x}".format(*rgb) for rgb in zip(*channels, strict=True)]


def curves_panel(curves: Sequence[Curve], quantity: str, epoch: int | None = None) -> Panel:
    """A metric over the epochs on a logarithmic scale, with the best epoch marked; see :func:`best_point`."""
    colours = iter(palette(max(1, sum(curve.split != TRAIN for curve in curves))))
    series = [
        Series(
            curve.epochs,
            curve.values,
            curve.split,
            GREY if curve.split == TRAIN else next(colours),
            mark="joined" if len(curve.epochs) < 40 else "line",
            dash="dot" if curve.split == TRAIN else "solid",
            hover="epoch %{x}: %{y:.4g}",
        )
        for curve in curves
    ]
    best = best_point(curves, epoch)
    if best is not None:
        epoch, value = best
        name, hover = f"best: epoch {epoch}, {value:.4g}", "epoch %{x}: %{y:.4g}"
        series.append(Series(np.array([epoch]), np.array([value]), name, "#D55E00", mark="star", hover=hover))
    return Panel(series, "epoch", quantity, log=True, ticks=log_ticks(curves), whole=True)


def shown(sets: Sequence[Evaluation]) -> list[np.ndarray]:
    """Places of the structures to show of each set, in proportion to its size; the same for the same sets."""
    total = sum(map(len, sets))
    if total <= MOST_POINTS:
        return [np.arange(len(s)) for s in sets]
    random = np.random.default_rng(0)
    sizes = [max(1, len(s) * MOST_POINTS // total) for s in sets]
    return [np.sort(random.choice(len(s), size, replace=False)) for s, size in zip(sets, sizes, strict=True)]


def limits(sets: Sequence[Evaluation]) -> tuple[float, float]:
    """Both energies of every structure, less reference energies, in eV, with a margin."""
    both = np.concatenate([x - s.table.references for s in sets for x in (s.expected, s.predicted)])
    low, high = float(both.min()), float(both.max())
    margin = 0.04 * (high - low) or 0.1
    return low - margin, high + margin


def parity_panels(sets: Sequence[Evaluation], target: str) -> tuple[Panel, Panel]:
    """Predicted against expected energies, and the residuals."""
    ends = limits(sets)
    with_bars = sum(map(len, sets)) <= MOST_ERROR_BARS
    above, below = [Series(np.array(ends), np.array(ends), "", _DARK, width=1, legend=False)], []
    for s, chosen, colour in zip(sets, shown(sets), palette(len(sets)), strict=True):
        std = None if s.std is None else s.std[chosen]
        common: dict[str, Any] = {
            "x": (s.expected - s.table.references)[chosen],
            "name": s.name,
            "colour": colour,
            "mark": "points",
            "spread": std if with_bars else None,
            "texts": [f"{s.table.names[k]}\n{s.table.formulas[k]}" for k in chosen],
            "numbers": np.stack([s.error[chosen]] if std is None else [s.error[chosen], std], axis=1),
            "hover": "%{text}<br>expected %{x:.4f} eV<br>error %{customdata[0]:+.4f} eV"
            + ("" if std is None else "<br>± %{customdata[1]:.4f} eV"),
        }
        above.append(Series(y=(s.predicted - s.table.references)[chosen], **common))
        below.append(Series(y=s.error[chosen], **common))
    count = "; ".join(f"{s.name}: {len(s):,} structures" for s in sets)
    mae = "; ".join(f"{s.name}: {len(s):,} structures, MAE {s.metrics.energy_mae:.4f} eV" for s in sets)
    less = " − references" if any(s.table.references.any() for s in sets) else ""
    x = f"expected {target}{less} / eV"
    return (
        # One scale for both axes, so one unit.
        Panel(above, x, "predicted", title=mae, x_range=ends, y_range=ends, square=True),
        Panel(below, x, "error / eV", title=count, x_range=ends, zero=True),
    )


def forces_panel(sets: Sequence[Evaluation]) -> Panel | None:
    """Predicted against expected components of forces, of all sets that have them; None where none has."""
    found = [(s, s.forces) for s in sets if s.forces is not None and s.forces[0].size]
    if not found:
        return None
    components = [(s, expected.ravel(), predicted.ravel()) for s, (expected, predicted) in found]
    longest = max(float(np.abs(x).max()) for _, *both in components for x in both)
    ends = -1.04 * longest or -0.1, 1.04 * longest or 0.1
    series = [Series(np.array(ends), np.array(ends), "", _DARK, width=1, legend=False)]
    total = sum(len(expected) for _, expected, _ in components)
    random = np.random.default_rng(0)
    for (s, expected, predicted), colour in zip(components, palette(len(components)), strict=True):
        n = min(len(expected), max(1, len(expected) * MOST_POINTS // total))
        chosen = np.sort(random.choice(len(expected), n, replace=False))
        hover = "expected %{x:.4f} eV/Å<br>predicted %{y:.4f} eV/Å"
        series.append(Series(expected[chosen], predicted[chosen], s.name, colour, mark="points", hover=hover))
    title = "; ".join(f"{s.name}: RMSE {f.force_rmse:.4f} eV/Å" for s, _ in found if (f := s.force_metrics))
    # One scale for both axes, so one unit.
    x = "expected force component / eV Å⁻¹"
    return Panel(series, x, "predicted", title=title, x_range=ends, y_range=ends, square=True)


def groups_panel(found: GroupErrors, group: str) -> Panel:
    """Bars of mean absolute errors, one colour for each set."""
    series = [
        Series(found.groups, mae, name, colour, mark="bars", numbers=n[:, None],
               hover="%{x}: MAE %{y:.4f} eV<br>%{customdata[0]} structures")
        for name, mae, n, colour in zip(found.sets, found.mae, found.n, palette(len(found.sets)), strict=True)
    ]  # fmt: skip
    return Panel(series, group, "MAE / eV", title=f"{found.sets[0]}; on the bars: number of structures", zero=True)


def adsorption_panel(results: Sequence[Adsorption]) -> Panel:
    """Bars of the adsorption energies of one molecule, with their uncertainties where these are known."""
    spread = np.array([one.uncertainty for one in results])
    style: dict[str, Any] = {"hover": "%{x}: %{y:.3f} eV"}
    if np.isfinite(spread).all():
        style = {"hover": "%{x}: %{y:.3f} ± %{customdata[0]:.3f} eV", "numbers": spread[:, None], "spread": spread}
    series = Series([f"{one.metal}{one.face[3:]}" for one in results], np.array([one.energy for one in results]),
                    results[0].molecule, OKABE_ITO[0], mark="bars", legend=False, **style)  # fmt: skip
    return Panel([series], "surface", "adsorption energy / eV", zero=True)


def coverage_panel(sets: Sequence[Evaluation]) -> Panel:
    """Share of errors within k times their predicted uncertainty, beside that of a normal distribution."""
    k, series = np.linspace(0, 3, 61), []
    for one, colour in zip(sets, palette(len(sets)), strict=True):
        assert one.std is not None
        share = (np.abs(one.error) <= k[:, None] * one.std).mean(axis=1)
        series.append(Series(k, share, one.name, colour, hover="%{y:.1%} of errors within %{x:.2f} ±"))
    normal = np.array([math.erf(x / math.sqrt(2)) for x in k])
    series.append(Series(k, normal, "normal distribution", GREY, dash="dash", hover="%{y:.1%} within %{x:.2f} ±"))
    x = "k, multiples of the predicted uncertainty"
    return Panel(series, x, "share of |error| ≤ k·uncertainty", y_range=(0, 1.02), percent=True)


def far_panels(curves: FarCurves) -> list[tuple[Panel, Panel]]:
    """For each layer f over the distance, dotted the f that an estimator stands for, and its spectrum."""
    return [
        (_function(curves, layer, f"layer {layer + 1}"), _spectrum(curves, layer, f"layer {layer + 1}"))
        for layer in range(len(curves.values))
    ]


def _function(curves: FarCurves, layer: int, title: str) -> Panel:
    series = list(_heads(curves.distances, curves.values[layer], "Å"))
    if curves.intended is not None:
        series += _heads(curves.distances, curves.intended[layer], "Å", dash="dot", width=1.0, legend=False)
    return Panel(series, "distance r / Å", "f(r)", title=title, x_range=(0, curves.reach), zero=True)


def _spectrum(curves: FarCurves, layer: int, title: str) -> Panel:
    x = "frequency |ξ| / Å⁻¹"
    if curves.spectrum is not None:
        return Panel(_heads(curves.xi, curves.spectrum[layer], "Å⁻¹"), x, "g(ξ) / Å³", title=title, zero=True)
    assert curves.nodes is not None
    assert curves.coefficients is not None
    series = _heads(curves.nodes, curves.coefficients[layer], "Å⁻¹", mark="points")
    return Panel(series, x, "coefficient a_k", title=title, zero=True)


def local_panels(curves: LocalCurves) -> list[Panel]:
    """For each layer the local RPE over the distance."""
    a, b = (chemical_symbols[z] for z in curves.pair)
    return [
        Panel(_heads(curves.distances, heads, "Å"), f"distance {a}–{b} / Å", "exp(b(r)) · env(r)",
              title=f"layer {layer + 1}", zero=True)
        for layer, heads in enumerate(curves.values)
    ]  # fmt: skip


def _heads(x: np.ndarray, rows: Iterable[np.ndarray], unit: str, **style: Any) -> list[Series]:
    """One series of each head, (n,) numbers in ``rows``."""
    rows = list(rows)
    return [
        Series(x, y, f"head {head + 1}", colour, hover=f"head {head + 1}: %{{y:.4g}} at %{{x:.3g}} {unit}", **style)
        for head, (y, colour) in enumerate(zip(rows, palette(len(rows)), strict=True))
    ]
