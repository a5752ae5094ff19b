"""Figures of reports and of ``molflt plot``; each function draws into one pair of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from ase.data import chemical_symbols
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from molflt import vocabulary
from molflt.adsorption import Adsorption
from molflt.data.reading import ReadOptions
from molflt.errors import InputError
from molflt.files import atomic_file
from molflt.prediction.evaluate import Evaluation, evaluate
from molflt.prediction.members import load_members
from molflt.prediction.metrics import GroupErrors, by_adsorbate, by_element, by_size
from molflt.report.curves import (
    TRAIN,
    Curve,
    FarCurves,
    LocalCurves,
    best_epoch,
    best_point,
    far_curves,
    learning_curves,
)
from molflt.terminal_text import printable
from molflt.training.run_dir import read_records

MOST_POINTS = 5000
"""Most structures in one parity plot; a random sample is shown of more."""
MOST_ERROR_BARS = 300
_MOST_IN_LEGEND = 12
_MOST_COLUMNS = 3
_LONGEST_NAME = 24

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#7A6A00", "#333333")
"""Okabe and Ito's colour-blind-safe palette; its yellow is darkened for contrast with white."""
_GREY, _DARK = "#8a8f98", "#4a5563"

_FREQUENCY = "frequency |ξ| / Å⁻¹"

Draw = Callable[[Axes], None]


def write_figure(
    kind: vocabulary.Figure,
    model: Path,
    data: str | None,
    out: Path,
    device: torch.device | str,
    max_atoms: int,
    tags: vocabulary.TagConvention = "auto",
) -> None:
    """Compute a figure and write it, atomically; the suffix of ``out`` is its format.

    ``curves`` need a run directory or a model file in it, other kinds any model or ensemble; kinds that show errors
    need labelled structures, ``data``, read with ``tags`` and predicted in batches of ``max_atoms``.

    Raises:
        InputError: the model, the run or the data lack the content of the figure.
    """
    of_model = kind in ("curves", "rpe", "spectrum")
    if not of_model and data is None:
        raise InputError(f"'{kind}' shows errors: give labelled structures after the model, such as test.lmdb")
    if of_model and data is not None:
        raise InputError(f"'{kind}' needs no structures; leave out {data}")
    if kind == "curves":
        drawn = _learning_of(model)
    elif data is None:
        drawn = _far_of(kind, model)
    else:
        members = load_members(model)
        options = ReadOptions(tags=tags)
        found = evaluate(members, data, forces=False, device=device, max_atoms=max_atoms, options=options)
        drawn = _errors_of(kind, found, members[0].metadata.target)
    with atomic_file(out) as temporary:
        drawn.savefig(temporary, dpi=200)


def _learning_of(model: Path) -> Figure:
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
    return figure(draw_learning, curves, "MAE / eV", best_epoch(records))


def _far_of(kind: vocabulary.Figure, model: Path) -> Figure:
    loaded = load_members(model)[0]
    curves = far_curves(loaded.model)
    if curves is None:
        raise InputError(
            f"{model}: its attention ({loaded.model.config.attention.mechanism}) has no far field, so there is no "
            f"{kind} to plot"
        )
    return far_figure(curves) if kind == "rpe" else spectrum_figure(curves)


def _errors_of(kind: vocabulary.Figure, found: Evaluation, target: str) -> Figure:
    if kind in ("parity", "residuals"):
        return figure(draw_parity if kind == "parity" else draw_residuals, [found], target)
    if kind == "elements":
        return figure(draw_groups, by_element([found]), "element")
    if kind == "sizes":
        return figure(draw_groups, by_size([found]), "number of atoms")
    if (adsorbates := by_adsorbate([found])) is None:
        raise InputError(
            f"{found.source}: its structures do not say what is adsorbed on them (text 'adsorbate'); plot 'elements' "
            "or 'sizes' instead"
        )
    return figure(draw_groups, adsorbates, "adsorbate")


def figure(draw: Callable[..., None], *arguments: Any) -> Figure:
    """Make a figure of one chart; its pair of axes follows the arguments."""
    return _side_by_side([partial(draw, *arguments)])


def _side_by_side(draws: Sequence[Draw]) -> Figure:
    """Arrange charts with one legend; only the first of a row labels its vertical axis."""
    columns = min(len(draws), _MOST_COLUMNS)
    rows = -(-len(draws) // columns)
    drawn = Figure(figsize=(6.4, 4.0) if len(draws) == 1 else (3.4 * columns, 3.2 * rows), layout="constrained")
    for k, draw in enumerate(draws):
        axes = drawn.add_subplot(rows, columns, k + 1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e9ee", linewidth=0.8)
        axes.set_axisbelow(True)
        draw(axes)
        axes.set_title(axes.get_title(), fontsize=10, wrap=True)
        if k % columns:
            axes.set_ylabel("")
    handles, names = drawn.axes[0].get_legend_handles_labels()
    if 1 < len(names) <= _MOST_IN_LEGEND:
        drawn.legend(handles, names, loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return drawn


def plain(text: str) -> str:
    """Shorten a name from data; matplotlib would read formulas between dollar signs."""
    text = printable(text)
    return (text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…").replace("$", r"\$")


def palette(n: int) -> list[str]:
    """Return ``n`` distinct colours, or steps of one scale without its end too light for white."""
    if n <= len(OKABE_ITO):
        return list(OKABE_ITO[:n])
    scale = matplotlib.colormaps["viridis"]
    return [to_hex(scale(place)) for place in np.linspace(0, 0.9, n)]


def draw_learning(curves: Sequence[Curve], quantity: str, epoch: int | None, axes: Axes) -> None:
    """Draw a metric over the epochs on a logarithmic scale, with the best epoch marked."""
    colours = iter(palette(max(1, sum(curve.split != TRAIN for curve in curves))))
    for curve in curves:
        fmt = "o-" if len(curve.epochs) < 40 else "-"
        colour = _GREY if curve.split == TRAIN else next(colours)
        (line,) = axes.plot(curve.epochs, curve.values, fmt, color=colour, markersize=3, label=plain(curve.split))
        line.set_linestyle(":" if curve.split == TRAIN else "-")
    if (best := best_point(curves, epoch)) is not None:
        name = f"best: epoch {best[0]}, {best[1]:.4g}"
        axes.plot(*best, "*", color="#D55E00", markersize=12, markeredgewidth=0, label=name)
    # Label the axis even if the curves span less than a decade.
    axes.set_yscale("log", subs=(2, 5))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(xlabel="epoch", ylabel=quantity)


def shown(sets: Sequence[Sized]) -> list[np.ndarray]:
    """Choose the items of each set to show, in proportion to its size; always the same ones."""
    sizes = [len(s) for s in sets]
    total = max(sum(sizes), MOST_POINTS)
    random = np.random.default_rng(0)
    return [np.sort(random.choice(n, max(1, n * MOST_POINTS // total) if total > MOST_POINTS else n, replace=False))
            for n in sizes]  # fmt: skip


def limits(sets: Sequence[Evaluation]) -> tuple[float, float]:
    """Range of both energies of all structures, less reference energies, in eV, with a margin."""
    both = np.concatenate([x - s.table.references for s in sets for x in (s.expected, s.predicted)])
    low, high = float(both.min()), float(both.max())
    margin = 0.04 * (high - low) or 0.1
    return low - margin, high + margin


def draw_parity(sets: Sequence[Evaluation], target: str, axes: Axes) -> None:
    """Draw predicted against expected energies."""
    _energies(axes, sets, target, [s.predicted - s.table.references for s in sets])
    _square(axes, limits(sets))
    numbers = [f"{plain(s.name)}: {len(s):,} structures, MAE {s.metrics.energy_mae:.4f} eV" for s in sets]
    axes.set(ylabel="predicted / eV", title="\n".join(numbers))


def draw_residuals(sets: Sequence[Evaluation], target: str, axes: Axes) -> None:
    """Draw errors against expected energies."""
    axes.axhline(0, color=_DARK, linewidth=0.8)
    _energies(axes, sets, target, [s.error for s in sets])
    numbers = [f"{plain(s.name)}: {len(s):,} structures" for s in sets]
    axes.set(xlim=limits(sets), ylabel="error / eV", title="\n".join(numbers))


def _energies(axes: Axes, sets: Sequence[Evaluation], target: str, values: Sequence[np.ndarray]) -> None:
    """Draw a value of every structure, in eV, against its expected energy."""
    with_bars = sum(map(len, sets)) <= MOST_ERROR_BARS
    for s, y, chosen, colour in zip(sets, values, shown(sets), palette(len(sets)), strict=True):
        x = s.expected - s.table.references
        if s.uncertainty_eV is not None and with_bars:
            axes.errorbar(x, y, s.uncertainty_eV, fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.5)
        line = _points(axes, x[chosen], y[chosen], s.name, colour)
        line.texts = [_about(s, k) for k in chosen]
    less = " − references" if any(s.table.references.any() for s in sets) else ""
    axes.set_xlabel(f"expected {target}{less} / eV")


def _about(s: Evaluation, k: int) -> str:
    spread = "" if s.uncertainty_eV is None else f" ± {s.uncertainty_eV[k]:.4f}"
    numbers = f"expected {s.expected[k]:.4f} eV, error {s.error[k]:+.4f}{spread} eV"
    return f"{s.table.names[k]}\n{s.table.formulas[k]}\n{numbers}"


def _points(axes: Axes, x: np.ndarray, y: np.ndarray, name: str, colour: str) -> Any:
    return axes.plot(x, y, "o", color=colour, markersize=4, markeredgewidth=0, alpha=0.6, label=plain(name))[0]


def _square(axes: Axes, ends: tuple[float, float]) -> None:
    """Give both axes one scale, and draw the diagonal."""
    axes.plot(ends, ends, color=_DARK, linewidth=0.8, zorder=1)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    _resize(axes, 5.2, 5.2)


def _resize(axes: Axes, width: float, height: float) -> None:
    assert isinstance(axes.figure, Figure)
    axes.figure.set_size_inches(width, height)


def draw_forces(sets: Sequence[Evaluation], axes: Axes) -> None:
    """Draw predicted against expected force components; at least one set must have them."""
    found = [(s, s.forces[0].ravel(), s.forces[1].ravel()) for s in sets if s.forces is not None and s.forces[0].size]
    longest = max(float(np.abs(x).max()) for _, *both in found for x in both)
    chosen = shown([expected for _, expected, _ in found])
    for (s, expected, predicted), k, colour in zip(found, chosen, palette(len(found)), strict=True):
        _points(axes, expected[k], predicted[k], s.name, colour)
    _square(axes, (-1.04 * longest or -0.1, 1.04 * longest or 0.1))
    numbers = [f"{plain(s.name)}: RMSE {f.force_rmse:.4f} eV/Å" for s, _, _ in found if (f := s.force_metrics)]
    axes.set(xlabel="expected force component / eV Å⁻¹", ylabel="predicted / eV Å⁻¹", title="\n".join(numbers))


def draw_groups(found: GroupErrors, group: str, axes: Axes) -> None:
    """Draw mean absolute errors as bars, one colour a set, with numbers of structures on them."""
    width = 0.8 / len(found.sets)
    place = np.arange(len(found.groups))
    for k, (name, colour) in enumerate(zip(found.sets, palette(len(found.sets)), strict=True)):
        bars = axes.bar(place + (k + 0.5) * width - 0.4, found.mae[k], width, color=colour, label=plain(name))
        axes.bar_label(bars, [f"{n:,}" for n in found.n[k]], fontsize=7, padding=2, color=_DARK)
    _name_bars(axes, found.groups)
    axes.set(xlabel=group, ylabel="MAE / eV", title="on the bars: number of structures")


def draw_adsorption(results: Sequence[Adsorption], axes: Axes) -> None:
    """Draw adsorption energies of a molecule as bars, with their uncertainties if known; none outside the domain."""
    energies, spread = (np.array([getattr(one, name) for one in results]) for name in ("energy", "uncertainty_eV"))
    bars: dict[str, Any] = {"yerr": spread, "error_kw": {"ecolor": "#333333"}} if np.isfinite(spread).any() else {}
    axes.bar(np.arange(len(results)), energies, 0.8, color=OKABE_ITO[0], **bars)
    axes.axhline(0, color=_DARK, linewidth=0.8)
    _name_bars(axes, [one.surface + ": outside" * (not one.is_inside) for one in results])
    axes.set(xlabel="surface", ylabel="adsorption energy / eV")


def _name_bars(axes: Axes, names: Sequence[str]) -> None:
    long = max(map(len, names)) > 8
    axes.set_xticks(range(len(names)), [plain(name) for name in names], rotation=90 if long else 0)
    axes.grid(visible=False, axis="x")
    _resize(axes, max(6.4, 0.42 * len(names)), 3.6)


def draw_coverage(sets: Sequence[Evaluation], axes: Axes) -> None:
    """Draw the share of errors within k uncertainties, beside that of a normal distribution."""
    k = np.linspace(0, 3, 61)
    for one, colour in zip(sets, palette(len(sets)), strict=True):
        assert one.uncertainty_eV is not None
        share = (np.abs(one.error) <= k[:, None] * one.uncertainty_eV).mean(axis=1)
        axes.plot(k, share, color=colour, label=plain(one.name))
    normal = [math.erf(x / math.sqrt(2)) for x in k]
    axes.plot(k, normal, color=_GREY, linestyle="--", label="normal distribution")
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    x = "k, multiples of the predicted uncertainty"
    axes.set(xlabel=x, ylabel="share of |error| ≤ k·uncertainty", ylim=(0, 1.02))


def far_figure(curves: FarCurves) -> Figure:
    """Plot f over the distance for each layer, and dotted the f that is estimated."""
    labels = {"xlabel": "distance r / Å", "ylabel": "f(r)", "xlim": (0, curves.reach)}
    return _of_layers(curves.distances, curves.values, labels, curves.intended)


def spectrum_figure(curves: FarCurves) -> Figure:
    """Plot the spectrum of f for each layer, or the coefficients of free frequencies."""
    if curves.spectrum is not None:
        return _of_layers(curves.xi, curves.spectrum, {"xlabel": _FREQUENCY, "ylabel": "g(ξ) / Å³"})
    assert curves.nodes is not None
    assert curves.coefficients is not None
    labels = {"xlabel": _FREQUENCY, "ylabel": "coefficient a_k"}
    return _of_layers(curves.nodes, curves.coefficients, labels, linestyle="", marker="o", markersize=3)


def local_figure(curves: LocalCurves) -> Figure:
    """Plot the local RPE over the distance for each layer."""
    a, b = (chemical_symbols[z] for z in curves.pair)
    labels = {"xlabel": f"distance {a}–{b} / Å", "ylabel": "exp(b(r)) · env(r)"}
    return _of_layers(curves.distances, curves.values, labels)


def _of_layers(
    x: np.ndarray, values: np.ndarray, labels: dict[str, Any], dotted: np.ndarray | None = None, **style: Any
) -> Figure:
    """Plot a curve per head and a chart per layer; values are (n_layers, n_heads, n)."""
    colours = palette(values.shape[1])

    def draw(layer: int, axes: Axes) -> None:
        axes.axhline(0, color=_DARK, linewidth=0.8)
        for head, colour in enumerate(colours):
            axes.plot(x, values[layer, head], color=colour, label=f"head {head + 1}", **style)
            if dotted is not None:
                axes.plot(x, dotted[layer, head], ":", color=colour, linewidth=1)
        axes.set(title=f"layer {layer + 1}", **labels)

    return _side_by_side([partial(draw, layer) for layer in range(len(values))])
