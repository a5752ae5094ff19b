"""Tables of docs/benchmarks/README.md from what ``speed.py`` measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import median

import numpy as np

from scripts import results
from scripts.benchmarks.layer_worker import DENSE, SLAB_LAYERS
from scripts.benchmarks.measuring import DONE, duration, size

PATH = results.DOCS / "results" / "speed.csv"
GAUSSIANS, BOTH = "flt, gaussians", "flt, both"
OURS = (GAUSSIANS, BOTH)
RATIO_AT, MILLION = 16_384, 1_000_000
LAYER, WHOLE = "layer alone", "with its preparation"
MISSING = "not measured"

Values = dict[int, list[float]]
"""Seconds by number of atoms."""


class Measured:
    """The layers' times.

    Args:
        rows: of the CSV.
    """

    def __init__(self, rows: Sequence[results.Row]) -> None:
        self.rows = [row for row in rows if row["status"] == DONE]
        self.threads = sorted({row["threads"] for row in rows if row["part"] == "layer"}) or ["1"]

    def seconds(self, kind: str, direction: str, threads: str, row: str, what: str) -> Values:
        """Of every turn, by the number of atoms or slabs: of a layer alone, or with its preparation."""
        found: Values = {}
        for one in self.rows:
            of = one["part"], one["kind"], one["direction"], one["threads"], one["row"]
            if of == ("layer", kind, direction, threads, row):
                applied, prepared = results.numbers(one["layer_seconds"]), results.numbers(one["prepare_seconds"])
                among = SLAB_LAYERS if kind == "oc20" else 1
                turns = [a + p / among for a, p in zip(applied, prepared, strict=True)]
                found.setdefault(int(one["size"]), []).extend(applied if what == LAYER else turns)
        return dict(sorted(found.items()))

    def medians(self, kind: str, direction: str, threads: str, row: str, what: str) -> dict[int, float]:
        """Their medians."""
        found = self.seconds(kind, direction, threads, row, what)
        return {n: median(values) for n, values in found.items()}


def targets() -> str:
    """The numbers against the targets: a column for each spectrum and number of threads."""
    measured = Measured(results.read(PATH))
    columns = [(row, threads) for row in OURS for threads in measured.threads]
    found = []

    def line(what: str, target: str, value: Callable[..., str], *arguments: str) -> None:
        found.append([what, target, *(value(measured, row, threads, *arguments) for row, threads in columns)])

    for kind in ("isolated", "periodic"):
        line(f"{_KINDS[kind]}, {WHOLE}: exponent", "≤ 1.15", _exponent, kind)
    line(f"{_KINDS['periodic']}, {MILLION:,} atoms: peak memory", "≤ 20 GiB", _memory)
    for direction, target in (("forward", "≤ 1,000 atoms"), ("train", "≤ 700 atoms")):
        for part in (WHOLE, LAYER):
            what = f"isolated balls, break-even with {DENSE}, {_DIRECTIONS[direction]}, {part}"
            line(what, target, _break_even, direction, part)
    for kind, target in (("isolated", "≥ 5, going for 10"), ("periodic", "≥ 10")):
        for part in (WHOLE, LAYER):
            what = f"{_KINDS[kind]}, {RATIO_AT:,} atoms: {DENSE} takes, times as long, {part}"
            line(what, target, _ratio, kind, part)
    for direction, target in (("forward", "≤ 0.8"), ("train", "≤ 1.0")):
        for part in (LAYER, WHOLE):
            said = part if part == LAYER else "with its share of the preparation"
            what = f"slabs of 80 to 200 atoms, time over {DENSE}'s, {_DIRECTIONS[direction]}, {said}"
            line(what, target, _share, direction, part)
    header = ["", "target", *(f"{row}, {_threads(threads)}" for row, threads in columns)]
    return results.markdown(header, found)


def models() -> str:
    """Whole models: steps of training, and steps of molecular dynamics."""
    rows = results.read(PATH)
    found = []
    for part, what in (
        ("model", "training step on the adsorption set"),
        ("md", "one step of molecular dynamics"),
    ):
        mine = [row for row in rows if row["part"] == part]
        known = {}
        for row in mine:
            if row["status"] == DONE:
                known.setdefault(row["row"], []).extend(results.numbers(row["layer_seconds"]))
        ours = next((median(known[name]) for name in known if name.startswith("molflt")), None)
        for name in dict.fromkeys(row["row"] for row in mine):
            row = next(row for row in reversed(mine) if row["row"] == name)
            cells = [row["status"], "", ""]
            if name in known:
                times = "" if ours is None or name.startswith("molflt") else f"{median(known[name]) / ours:.2f}"
                cells = [_with_quartiles(known[name]), times, size(float(row["peak_bytes"]))]
            found.append([what, f"{int(row['size']):,}", name, *cells, row["how"]])
    header = ["", "atoms", "model", "time", "times molflt's", "memory", "sizes"]
    return results.markdown(header, found)


def times(kind: str, direction: str) -> str:
    """Medians and quartiles of a preparation and one layer: a row for each layer and number of threads."""
    measured = Measured(results.read(PATH))
    names = dict.fromkeys(row["row"] for row in measured.rows if row["part"] == "layer")
    lines = list(product(names, measured.threads, (WHOLE, LAYER)))
    found = {line: measured.seconds(kind, direction, line[1], line[0], line[2]) for line in lines}
    sizes = sorted(set().union(*found.values()))
    cells = [
        [row, what, threads, *(_with_quartiles(values[n]) if n in values else "" for n in sizes)]
        for (row, threads, what), values in found.items()
        if values
    ]
    return results.markdown(["", "", "threads", *(f"{n:,}" for n in sizes)], cells)


def machine() -> str:
    """The machine, the versions, the day and the conditions."""
    rows = results.read(PATH)
    if not rows:
        return "Not measured yet.\n"
    names = ("software", "date", "commit")
    software, days, commits = ("; ".join(sorted({row[name] for row in rows})) for name in names)
    loads = [float(row["load_before"]) for row in rows if row["load_before"]]
    return (
        f"{rows[0]['machine']}; {software}; {days}, commits {commits}. "
        f"Conditions: {rows[0]['conditions'].replace('=', ' = ')}. "
        f"The machine's load before a measurement was {max(loads, default=0):.1f} at most.\n"
    )


def on_gpu() -> str:
    """Medians on a GPU: the layer alone and with its preparation, and the memory of the GPU.

    Without the spectrum of both kinds, which is within a fifth of Gaussians alone.
    """
    found = []
    for row in results.read(PATH.with_name("speed_gpu.csv")):
        if row["status"] != DONE or row["row"] == BOTH:
            continue
        seconds = [results.numbers(row[name]) for name in ("layer_seconds", "prepare_seconds")]
        alone, whole = np.median(seconds[0]), np.median(np.sum(seconds, axis=0))
        kind = {"oc20": "slabs", **_KINDS}[row["kind"]]
        what = [kind, f"{int(row['size']):,}", _DIRECTIONS[row["direction"]], row["row"]]
        found.append([*what, duration(float(alone)), duration(float(whole)), size(float(row["peak_bytes"]))])
    return results.markdown(["", "atoms or slabs", "", "layer", LAYER, WHOLE, "memory"], found)


def profile() -> str:
    """Where the time of a layer goes."""
    from scripts.benchmarks import profile_layer

    rows = results.read(PATH.with_name("speed_profile.csv"))
    return profile_layer.table(rows) if rows else "Not measured yet.\n"


VIEWS: dict[str, Callable[..., str]] = {
    "targets": targets,
    "models": models,
    "times": times,
    "machine": machine,
    "gpu": on_gpu,
    "profile": profile,
}


def table(view: str, *arguments: str) -> str:
    """The Markdown that stands under ``<!-- table: speed VIEW ... -->``."""
    return VIEWS[view](*arguments)


_KINDS = {"isolated": "isolated balls", "periodic": "cells"}
_DIRECTIONS = {"forward": "forward", "train": "forward and backward"}


def _threads(n: str) -> str:
    return f"{n} thread{'s' if n != '1' else ''}"


def _with_quartiles(values: list[float]) -> str:
    low, middle, high = (duration(float(x)) for x in np.percentile(values, [25, 50, 75]))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def _exponent(measured: Measured, row: str, threads: str, kind: str) -> str:
    found = measured.medians(kind, "forward", threads, row, WHOLE)
    power = exponent(list(found), list(found.values()))
    return MISSING if power is None else f"{power:.2f} ({min(found):,} to {max(found):,})"


def _memory(measured: Measured, row: str, threads: str) -> str:
    """Resident bytes at the most, whether while the structure was made or while the layer ran; of any threads."""
    wanted = {"part": "layer", "kind": "periodic", "row": row, "size": str(MILLION)}
    mine = [one for one in measured.rows if wanted.items() <= one.items()]
    peaks = [float(one[name]) for one in mine for name in ("peak_bytes", "making_bytes")]
    return size(max(peaks)) if peaks else MISSING


def _break_even(measured: Measured, row: str, threads: str, direction: str, what: str) -> str:
    ours, theirs = (measured.medians("isolated", direction, threads, name, what) for name in (row, DENSE))
    both = [n for n in ours if n in theirs]
    if len(both) < 2:
        return MISSING
    point = break_even(both, [ours[n] for n in both], [theirs[n] for n in both])
    if point is None:
        return f"none up to {both[-1]:,}"
    return f"{point:,.0f}" if point > both[0] else f"{both[0]:,} or less"


def _share(measured: Measured, row: str, threads: str, direction: str, what: str) -> str:
    ours, theirs = (measured.medians("oc20", direction, threads, name, what) for name in (row, DENSE))
    n = next(iter(ours.keys() & theirs.keys()), None)
    return MISSING if n is None else f"{ours[n] / theirs[n]:.2f}"


def _ratio(measured: Measured, row: str, threads: str, kind: str, what: str) -> str:
    ours, theirs = (measured.medians(kind, "forward", threads, name, what) for name in (row, DENSE))
    if RATIO_AT not in ours or not theirs:
        return MISSING
    if RATIO_AT in theirs:
        return f"{theirs[RATIO_AT] / ours[RATIO_AT]:.1f}"
    largest = max(theirs)
    estimate = theirs[largest] * (RATIO_AT / largest) ** 2
    return f"{estimate / ours[RATIO_AT]:.1f} (extrapolated from {largest:,})"


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Power p of the least-squares fit values ∝ sizes^p on logarithms; None for fewer than two points."""
    if len(sizes) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def break_even(sizes: Sequence[float], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The size from which on ``ours`` is the smaller one, interpolated on logarithms.

    The smallest size if it always is, None if it is not at the largest.
    """
    difference = np.log(np.asarray(ours) / np.asarray(theirs))
    if difference[-1] > 0:
        return None
    above = np.flatnonzero(difference > 0)
    if len(above) == 0:
        return float(sizes[0])
    k = int(above[-1])
    fraction = difference[k] / (difference[k] - difference[k + 1])
    return float(np.exp((1 - fraction) * np.log(sizes[k]) + fraction * np.log(sizes[k + 1])))
