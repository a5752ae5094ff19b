"""Speed and memory of attention layers, of whole models, and of molecular dynamics.

    scripts/benchmarks/peers_environment.sh                                   # once: .venv-peers, for PaiNN
    python -m scripts.benchmarks.speed --peers-python .venv-peers/bin/python  # half an hour, the machine idle
    python -m scripts.tools.tables                                            # tables in docs/benchmarks/README.md

Writes docs/results/speed.csv. What is in it is not measured again, so that a run that was stopped goes on.
Every size runs in a process of its own, in which layers take turns. docs/benchmarks/README.md says what is measured.

A row of speed.csv is one layer or model: part (layer, model or md), kind of structure, size (atoms, or slabs), row,
direction, threads, how it ended (status, note), seconds of single layers or steps and of the preparations before
them, bytes that were resident at the most and while the structure was made (of a training step: bytes it took in
addition), how the far field was computed or the sizes of the model, the machine's load before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import ase.io
import torch

from molflt.data.ase import to_atoms
from scripts import results
from scripts.benchmarks import layers, models, structures
from scripts.benchmarks.layer_worker import DENSE
from scripts.benchmarks.measuring import DONE, UNAVAILABLE, duration, isolated, size
from scripts.benchmarks.speed_report import GAUSSIANS, OURS, PATH

COLUMNS = (
    "part", "kind", "size", "row", "direction", "threads", "status", "note", "layer_seconds", "prepare_seconds",
    "peak_bytes", "making_bytes", "how", "load_before",
)  # fmt: skip
PARTS = ("model", "md", "layer")
THREADS = (1, 2)
LIMIT = 900.0
"""Seconds after which a process is given up."""


def layer_jobs(options: argparse.Namespace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Threads and arguments of :func:`layer_worker.measure`, small structures first."""
    all_rows, both = [*OURS, DENSE], ["forward", "train"]

    def job(kind: str, size: int, rows: list[str], directions: list[str], threads: int) -> tuple[int, dict[str, Any]]:
        memory = options.memory if DENSE in rows else 0.0
        how = {"device": options.device, "repeats": options.repeats, "seconds": options.seconds}
        return threads, {
            "kind": kind,
            "size": size,
            "rows": rows,
            "directions": directions,
            "gibibytes": memory,
            **how,
        }

    if options.quick:
        yield job("oc20", 1, all_rows, both, 1)
        for n in (32, 64):
            yield job("isolated", n, all_rows, both, 1)
        return
    if options.device != "cpu":
        # Threads of the processor count for nothing here.
        yield job("oc20", 48, all_rows, both, 1)
        for n in (1024, 4096, 16_384):
            yield job("isolated", n, all_rows, both, 1)
        for kind in ("isolated", "periodic"):
            yield job(kind, 131_072, list(OURS), ["forward"], 1)
        yield job("periodic", 1_000_000, [GAUSSIANS], ["forward"], 1)
        return
    for threads in THREADS:
        yield job("oc20", 48, all_rows, both, threads)
        for n in (256, 512, 1024, 2048, 4096):
            yield job("isolated", n, all_rows, both, threads)
        yield job("periodic", 4096, all_rows, ["forward"], threads)
    for threads in reversed(THREADS):
        # At this size the dense bias takes minutes with one thread: that is extrapolated.
        rows = all_rows if threads == 2 else list(OURS)
        for kind in ("isolated", "periodic"):
            yield job(kind, 16_384, rows, ["forward"], threads)
        for kind in ("isolated", "periodic"):
            yield job(kind, 131_072, list(OURS), ["forward"], threads)
    yield job("periodic", 1_000_000, [GAUSSIANS], ["forward"], 2)


def run_layers(options: argparse.Namespace, store: results.Store) -> None:
    """All layers that are not in the results yet."""
    for threads, job in layer_jobs(options):
        points = [
            {"part": "layer", "kind": job["kind"], "size": job["size"], "threads": threads}
            | {"row": row, "direction": direction}
            for direction, row in product(job["directions"], job["rows"])
        ]
        missing = [point for point in points if not results.find(store.rows, **point)]
        if not missing:
            continue
        print(f"{job['kind']}, size {job['size']:,}, {threads} threads", flush=True)
        answer = isolated("benchmarks.layer_worker:measure", threads, LIMIT, **job)
        found = {(row["row"], row["direction"]): row for row in answer.pop("rows", [])}
        for point in missing:
            add(store, {**point, **answer, **found.get((point["row"], point["direction"]), {})})


def run_models(options: argparse.Namespace, store: results.Store, folder: Path) -> None:
    """Time a training step of ``small`` and of its peers on the bundled FG set."""
    found = structures.bundled(100 if options.quick else 768)
    for name, (family, sizes) in models.rows().items():
        point = {"part": "model", "kind": "adsorption", "size": sum(len(data.positions) for data in found)}
        point |= {"row": name, "direction": "train", "threads": options.threads}
        # Formulas of DimeNet++ are worked out anew in every process: that takes a minute.
        if results.find(store.rows, **point) or (options.quick and family == "dimenet++"):
            continue
        print(f"training step of {name}", flush=True)
        path = folder / f"{family}.pt"
        if not path.exists():
            torch.save(models.prepared(family, found), path)
        job = {"family": family, "sizes": sizes, "structures": str(path), "gibibytes": options.memory}
        job |= {"repeats": options.repeats, "seconds": options.seconds, "device": options.device}
        add(store, {**point, **elsewhere(options, family, "benchmarks.models:measure", **job)})


def run_dynamics(options: argparse.Namespace, store: results.Store, folder: Path) -> None:
    """A step of dynamics of ten thousand atoms of bulk."""
    n, path = 64 if options.quick else 10_000, folder / "bulk.xyz"
    ase.io.write(path, to_atoms(structures.cube(n)), format="extxyz")
    for family, name in (("molflt", "molflt small"), ("painn", "PaiNN")):
        point = {"part": "md", "kind": "periodic", "size": n, "row": name}
        point |= {"direction": "forces", "threads": options.threads}
        if results.find(store.rows, **point):
            continue
        print(f"dynamics with {name}", flush=True)
        job = {"model": family, "structure": str(path)}
        add(store, {**point, **elsewhere(options, family, "benchmarks.md_step:measure", **job)})


def elsewhere(options: argparse.Namespace, family: str, function: str, /, **job: Any) -> dict[str, Any]:
    """Call a function in a process of its own, for PaiNN in the peers' environment."""
    python = options.peers_python if family == "painn" else sys.executable
    if python is None or not Path(python).exists():
        return {
            "status": UNAVAILABLE,
            "note": "needs --peers-python, made by scripts/benchmarks/peers_environment.sh",
        }
    found = isolated(function, options.threads, LIMIT, python, **job)
    if family == "painn":
        code = "from importlib.metadata import version as v\n"
        code += "print(*(f'{name} {v(name)}' for name in ('schnetpack', 'torch', 'numpy')), sep=', ')"
        found["software"] = subprocess.check_output([python, "-c", code], text=True).strip()
    return found


def add(store: results.Store, row: dict[str, Any]) -> None:
    """Keep a row, and say what it is."""
    store.add(row, **({"software": row["software"]} if "software" in row else {}))
    print(f"  {row['row']:16} {row['direction']:9}{summary(row)}", flush=True)


def summary(found: dict[str, Any]) -> str:
    """One line on a point."""
    if found["status"] != DONE:
        return f"{found['status']}: {found.get('note', '')}"
    if "rows" in found or not found.get("layer_seconds"):
        return ""
    text = duration(median(found["layer_seconds"]))
    if found.get("prepare_seconds"):
        text += f", prepared in {duration(median(found['prepare_seconds']))}"
    return f"{text}, {len(found['layer_seconds'])} times, {size(found['peak_bytes'])}  {found.get('how', '')}"


def main() -> None:
    """Measure what is not there yet."""
    parser = results.parser(__doc__, kept=PATH)
    parser.add_argument("--peers-python", help="the interpreter that has SchNetPack")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the layers; needs another --results")
    parser.add_argument("--again", action="store_true", help="try points again that failed or did not fit")
    options = parser.parse_args()
    if options.results == PATH and options.device != "cpu":
        parser.error("--device needs --results: docs/results holds the published numbers")
    options.threads = 1 if options.quick else max(THREADS)
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    options.memory = round(0.9 * available / 2**20, 1)
    options.repeats, options.seconds = (2, 1.0) if options.quick else (9, 4.0)
    conditions = {
        "dim": layers.DIM,
        "heads": layers.HEADS,
        "members": layers.N_BASIS,
        "cutoff": layers.CUTOFF,
        "n_rbf": layers.N_RBF,
        "density": structures.DENSITY,
        "device": options.device,
        "dtype": "float32",
        "seconds": options.seconds,
    }
    store = results.Store(options.results, COLUMNS, conditions)
    if options.again:
        store.rows = [row for row in store.rows if row["status"] == DONE]
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        parts = {
            "model": lambda: run_models(options, store, Path(folder)),
            "md": lambda: run_dynamics(options, store, Path(folder)),
            "layer": lambda: run_layers(options, store),
        }
        for part in options.parts:
            parts[part]()


if __name__ == "__main__":
    main()
