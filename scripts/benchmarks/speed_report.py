"""Tables of docs/benchmarks/README.md from what ``speed.py`` measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import median

import numpy as np

from scripts import results
from scripts.benchmarks.layer_worker import SLAB_LAYERS
from scripts.benchmarks.measuring import DONE, duration, size

PATH = results.DOCS / "results" / "speed.csv"
GAUSSIANS, BOTH = "flt, gaussians", "flt, both"
OURS = (GAUSSIANS, BOTH)
LAYER, WHOLE = "layer alone", "with its preparation"
_DIRECTIONS = {"forward": "forward", "train": "forward and backward"}


def models() -> str:
    """Whole models: steps of training, and steps of molecular dynamics."""
    rows, found = results.read(PATH), []
    for part, what in (("model", "training step on the adsorption set"), ("md", "one step of molecular dynamics")):
        mine = [row for row in rows if row["part"] == part]
        known: dict[str, list[float]] = {}
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
    return results.markdown(["", "atoms", "model", "time", "times molflt's", "memory", "sizes"], found)


def times(kind: str, direction: str) -> str:
    """Medians and quartiles of a preparation and a layer, by layer and number of threads."""
    wanted = {"part": "layer", "kind": kind, "direction": direction, "status": DONE}
    rows = [row for row in results.read(PATH) if wanted.items() <= row.items()]
    names, threads = (list(dict.fromkeys(row[column] for row in rows)) for column in ("row", "threads"))
    sizes = sorted({int(row["size"]) for row in rows})
    cells = []
    for name, n, what in product(names, sorted(threads), (WHOLE, LAYER)):
        found: dict[int, list[float]] = {}
        for row in rows:
            if (row["row"], row["threads"]) == (name, n):
                applied, prepared = results.numbers(row["layer_seconds"]), results.numbers(row["prepare_seconds"])
                share = 0.0 if what == LAYER else 1.0 / (SLAB_LAYERS if kind == "oc20" else 1)
                turns = [a + share * p for a, p in zip(applied, prepared, strict=True)]
                found.setdefault(int(row["size"]), []).extend(turns)
        if found:
            cells.append([name, what, n, *(_with_quartiles(found[k]) if k in found else "" for k in sizes)])
    return results.markdown(["", "", "threads", *(f"{k:,}" for k in sizes)], cells)


def machine() -> str:
    """The machine, the versions, the day and the conditions."""
    rows = results.read(PATH)
    software, days, commits = (
        "; ".join(sorted({row[name] for row in rows})) for name in ("software", "date", "commit")
    )
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
        kind = {"oc20": "slabs", "isolated": "isolated balls", "periodic": "cells"}[row["kind"]]
        what = [kind, f"{int(row['size']):,}", _DIRECTIONS[row["direction"]], row["row"]]
        found.append([*what, duration(float(alone)), duration(float(whole)), size(float(row["peak_bytes"]))])
    return results.markdown(["", "atoms or slabs", "", "layer", LAYER, WHOLE, "memory"], found)


VIEWS: dict[str, Callable[..., str]] = {"models": models, "times": times, "machine": machine, "gpu": on_gpu}


def table(view: str, *arguments: str) -> str:
    """The Markdown that stands under ``<!-- table: speed VIEW ... -->``."""
    return VIEWS[view](*arguments)


def _with_quartiles(values: list[float]) -> str:
    low, middle, high = (duration(float(x)) for x in np.percentile(values, [25, 50, 75]))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"
