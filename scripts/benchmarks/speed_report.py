"""Tables of docs/benchmarks/README.md from what ``speed.py`` measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scripts import results
from scripts.benchmarks.layer_worker import DENSE, SLAB_LAYERS
from scripts.benchmarks.measuring import DONE, duration, size, spread

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
        return {n: spread(values)["median"] for n, values in found.items()}

    def peak(self, kind: str, n: int, row: str) -> float | None:
        """Resident bytes at the most, whether while the structure was made or while the layer ran."""
        found = [
            r for r in self.rows if r["part"] == "layer" and (r["kind"], r["row"], r["size"]) == (kind, row, str(n))
        ]
        return max((max(float(r["peak_bytes"]), float(r["making_bytes"])) for r in found), default=None)


def targets() -> str:
    """The numbers against the targets: a column for each spectrum and number of threads."""
    measured = Measured(results.read(PATH))
    columns = [(row, threads) for row in OURS for threads in measured.threads]
    found = []

    def line(what: str, target: str, value: Callable[[str, str], str]) -> None:
        found.append([what, target, *(value(row, threads) for row, threads in columns)])

    for kind, target in (("isolated", "≤ 1.15"), ("periodic", "≤ 1.15")):
        what = f"{_KINDS[kind]}, {WHOLE}: exponent"
        line(what, target, lambda row, threads, kind=kind: _exponent(measured, kind, threads, row))
    line(f"{_KINDS['periodic']}, {MILLION:,} atoms: peak memory", "≤ 20 GiB", lambda row, _: _memory(measured, row))
    for direction, target in (("forward", "≤ 1,000 atoms"), ("train", "≤ 700 atoms")):
        for what in (WHOLE, LAYER):

            def even(row: str, threads: str, direction: str = direction, what: str = what) -> str:
                return _break_even(measured, direction, threads, row, what)

            line(f"isolated balls, break-even with {DENSE}, {_DIRECTIONS[direction]}, {what}", target, even)
    for kind, target in (("isolated", "≥ 5, going for 10"), ("periodic", "≥ 10")):
        for what in (WHOLE, LAYER):

            def times(row: str, threads: str, kind: str = kind, what: str = what) -> str:
                return _ratio(measured, kind, threads, row, what)

            line(f"{_KINDS[kind]}, {RATIO_AT:,} atoms: {DENSE} takes, times as long, {what}", target, times)
    for direction, target in (("forward", "≤ 0.8"), ("train", "≤ 1.0")):
        for what in (LAYER, WHOLE):

            def share(row: str, threads: str, direction: str = direction, what: str = what) -> str:
                of = [measured.medians("oc20", direction, threads, name, what) for name in (row, DENSE)]
                n = next(iter(of[0].keys() & of[1].keys()), None)
                return MISSING if n is None else f"{of[0][n] / of[1][n]:.2f}"

            part = what if what == LAYER else "with its share of the preparation"
            line(f"slabs of 80 to 200 atoms, time over {DENSE}'s, {_DIRECTIONS[direction]}, {part}", target, share)
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
        ours = next((spread(known[name])["median"] for name in known if name.startswith("molflt")), None)
        for name in dict.fromkeys(row["row"] for row in mine):
            row = next(row for row in reversed(mine) if row["row"] == name)
            cells = [row["status"], "", ""]
            if name in known:
                s = spread(known[name])
                times = "" if ours is None or name.startswith("molflt") else f"{s['median'] / ours:.2f}"
                cells = [_with_quartiles(s), times, size(float(row["peak_bytes"]))]
            found.append([what, f"{int(row['size']):,}", name, *cells, row["how"]])
    header = ["", "atoms", "model", "time", "times molflt's", "memory", "sizes"]
    return results.markdown(header, found)


def times(kind: str, direction: str) -> str:
    """Medians and quartiles of a preparation and one layer: a row for each layer and number of threads."""
    measured = Measured(results.read(PATH))
    found, sizes = [], set()
    names = dict.fromkeys(row["row"] for row in measured.rows if row["part"] == "layer")
    for row in names:
        for threads in measured.threads:
            seconds = {what: measured.seconds(kind, direction, threads, row, what) for what in (WHOLE, LAYER)}
            for what, values in seconds.items():
                if values:
                    sizes |= values.keys()
                    found.append((row, what, threads, values))
    header = ["", "", "threads", *(f"{n:,}" for n in sorted(sizes))]
    return results.markdown(
        header,
        [
            [row, what, threads, *(_with_quartiles(spread(values[n])) if n in values else "" for n in sorted(sizes))]
            for row, what, threads, values in found
        ],
    )


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


def _with_quartiles(s: dict[str, float]) -> str:
    if s["n"] == 1:
        return duration(s["median"])
    return f"{duration(s['median'])} ({duration(s['q1'])} to {duration(s['q3'])})"


def _exponent(measured: Measured, kind: str, threads: str, row: str) -> str:
    found = measured.medians(kind, "forward", threads, row, WHOLE)
    power = exponent(list(found), list(found.values()))
    return MISSING if power is None else f"{power:.2f} ({min(found):,} to {max(found):,})"


def _memory(measured: Measured, row: str) -> str:
    peak = measured.peak("periodic", MILLION, row)
    return MISSING if peak is None else size(peak)


def _break_even(measured: Measured, direction: str, threads: str, row: str, what: str) -> str:
    ours, theirs = (measured.medians("isolated", direction, threads, name, what) for name in (row, DENSE))
    both = [n for n in ours if n in theirs]
    if len(both) < 2:
        return MISSING
    point = break_even(both, [ours[n] for n in both], [theirs[n] for n in both])
    if point is None:
        return f"none up to {both[-1]:,}"
    return f"{point:,.0f}" if point > both[0] else f"{both[0]:,} or less"


def _ratio(measured: Measured, kind: str, threads: str, row: str, what: str) -> str:
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
    if not sizes:
        return None
    difference = np.log(np.asarray(ours) / np.asarray(theirs))
    if difference[-1] > 0:
        return None
    above = np.flatnonzero(difference > 0)
    if len(above) == 0:
        return float(sizes[0])
    k = int(above[-1])
    fraction = difference[k] / (difference[k] - difference[k + 1])
    return float(np.exp((1 - fraction) * np.log(sizes[k]) + fraction * np.log(sizes[k + 1])))
