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
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import ase.io
import torch

from molflt.data.ase import to_atoms
from scripts import results
from scripts.benchmarks import layers, models, structures
from scripts.benchmarks.layer_worker import DENSE
from scripts.benchmarks.measuring import DONE, UNAVAILABLE, isolated
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


def run_layers(options: argparse.Namespace, sweep: Callable[..., None]) -> None:
    """Measure layers, all of the same structures in one process."""
    jobs = {(job["kind"], job["size"], threads): job for threads, job in layer_jobs(options)}

    def judge(part: str, kind: str, size: int, threads: int) -> list[dict[str, Any]]:
        job = jobs[kind, size, threads]
        answer = isolated("benchmarks.layer_worker:measure", threads, LIMIT, **job)
        found = {(row["row"], row["direction"]): row for row in answer.pop("rows", [])}
        return [
            {"row": row, "direction": direction, **answer, **found.get((row, direction), {})}
            for direction, row in product(job["directions"], job["rows"])
        ]

    sweep([{"part": "layer", "kind": kind, "size": n, "threads": threads} for kind, n, threads in jobs], judge)


def run_models(options: argparse.Namespace, sweep: Callable[..., None], folder: Path) -> None:
    """Time a training step of ``small`` and of its peers on the bundled FG set."""
    found, rows = structures.bundled(100 if options.quick else 768), models.rows()
    # Formulas of DimeNet++ are worked out anew in every process: that takes a minute.
    names = [name for name, (family, _) in rows.items() if not (options.quick and family == "dimenet++")]

    def judge(row: str, **_: Any) -> dict[str, Any]:
        family, sizes = rows[row]
        path = folder / f"{family}.pt"
        if not path.exists():
            torch.save(models.prepared(family, found), path)
        job = {"family": family, "sizes": sizes, "structures": str(path), "gibibytes": options.memory}
        job |= {"repeats": options.repeats, "seconds": options.seconds, "device": options.device}
        return elsewhere(options, family, "benchmarks.models:measure", **job)

    known = {"part": "model", "kind": "adsorption", "size": sum(len(data.positions) for data in found)}
    sweep([{**known, "row": n, "direction": "train", "threads": options.threads} for n in names], judge)


def run_dynamics(options: argparse.Namespace, sweep: Callable[..., None], folder: Path) -> None:
    """Time a step of dynamics of ten thousand atoms of bulk."""
    n, path, families = (
        64 if options.quick else 10_000,
        folder / "bulk.xyz",
        {"molflt small": "molflt", "PaiNN": "painn"},
    )
    ase.io.write(path, to_atoms(structures.cube(n)), format="extxyz")

    def judge(row: str, **_: Any) -> dict[str, Any]:
        job = {"model": families[row], "structure": str(path)}
        return elsewhere(options, families[row], "benchmarks.md_step:measure", **job)

    known = {"part": "md", "kind": "periodic", "size": n, "direction": "forces", "threads": options.threads}
    sweep([{**known, "row": name} for name in families], judge)


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
    if options.again:
        done = [row for row in results.read(options.results) if row["status"] == DONE]
        results.write(options.results, done, (*COLUMNS, *results.PROVENANCE))

    def sweep(points: list[dict[str, Any]], judge: Callable[..., Any]) -> None:
        results.sweep(options.results, points, judge, conditions, digits=6, columns=COLUMNS)

    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        parts = {
            "model": lambda: run_models(options, sweep, Path(folder)),
            "md": lambda: run_dynamics(options, sweep, Path(folder)),
            "layer": lambda: run_layers(options, sweep),
        }
        for part in options.parts:
            parts[part]()


if __name__ == "__main__":
    main()
