"""Speed and memory of the default attention against dense attention, of whole models, and of molecular dynamics.

    scripts/benchmarks/peers_environment.sh                                   # once: .venv-peers, for PaiNN
    python -m scripts.benchmarks.speed --peers-python .venv-peers/bin/python  # half an hour, the machine idle
    python -m scripts.tools.tables                                            # tables in docs/benchmarks/README.md
    python -m scripts.benchmarks.speed --quick --out runs/speed               # a minute: does everything run?

Writes speed.csv and speed_profile.csv. What is in them is not measured again, so that a run that was stopped goes on.
Every size runs in a process of its own, in which layers take turns. docs/benchmarks/README.md says what is measured.

A row of speed.csv is one layer or model: part (layer, model or md), kind of structure, size (atoms, or slabs), row,
direction, threads, how it ended (status, note), seconds of single layers or steps and of the preparations before
them, bytes that were resident at the most and while the structure was made (of a training step: bytes it took in
addition), how the far field was computed or the sizes of the model, the machine's load before.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import ase.io

from molflt.data.ase import to_atoms
from scripts import results
from scripts.benchmarks import layers, models, profile_layer, structures
from scripts.benchmarks.layer_worker import DENSE, Spec
from scripts.benchmarks.measuring import DONE, UNAVAILABLE, duration, run_isolated, size
from scripts.benchmarks.speed_report import BOTH, GAUSSIANS, MILLION, OURS, PATH, RATIO_AT

COLUMNS = (
    "part", "kind", "size", "row", "direction", "threads", "status", "note", "layer_seconds", "prepare_seconds",
    "peak_bytes", "making_bytes", "how", "load_before",
)  # fmt: skip
PROFILE_COLUMNS = ("kind", "atoms", "row", "threads", "stage", "ms", "how", "load_before")
PARTS = ("layer", "model", "md", "profile")
THREADS = (1, 2)
LIMIT = 900.0
"""Seconds after which a process is given up."""


def layer_jobs(options: argparse.Namespace) -> Iterator[Spec]:
    """Layers that take turns on the same structures: small ones first, and the largest cell once."""
    all_rows, both = [*OURS, DENSE], ["forward", "train"]

    def job(kind: str, size: int, rows: list[str], directions: list[str], threads: int) -> Spec:
        memory = options.memory if DENSE in rows else 0.0
        how = {"device": options.device, "repeats": options.repeats, "seconds": options.seconds}
        return Spec(kind=kind, size=size, rows=rows, directions=directions, threads=threads, gibibytes=memory, **how)

    if options.quick:
        yield job("oc20", 1, all_rows, both, 1)
        for n in (32, 64):
            yield job("isolated", n, all_rows, both, 1)
        return
    if options.device != "cpu":
        # Threads of the processor count for nothing here.
        yield job("oc20", 48, all_rows, both, 1)
        for n in (1024, 4096, RATIO_AT):
            yield job("isolated", n, all_rows, both, 1)
        for kind in ("isolated", "periodic"):
            yield job(kind, 131_072, list(OURS), ["forward"], 1)
        yield job("periodic", MILLION, [GAUSSIANS], ["forward"], 1)
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
            yield job(kind, RATIO_AT, rows, ["forward"], threads)
        for kind in ("isolated", "periodic"):
            yield job(kind, 131_072, list(OURS), ["forward"], threads)
    yield job("periodic", MILLION, [GAUSSIANS], ["forward"], 2)


def run_layers(options: argparse.Namespace, store: results.Store) -> None:
    """All layers that are not in the results yet."""
    for spec in layer_jobs(options):
        points = [
            {"part": "layer", "kind": spec.kind, "size": spec.size, "threads": spec.threads}
            | {"row": row, "direction": direction}
            for direction, row in product(spec.directions, spec.rows)
        ]
        missing = [point for point in points if not results.find(store.rows, **point)]
        if not missing:
            continue
        print(f"{spec.kind}, size {spec.size:,}, {spec.threads} threads", flush=True)
        command = [sys.executable, "-m", "scripts.benchmarks.layer_worker", json.dumps(asdict(spec))]
        answer = run_isolated(command, spec.threads, LIMIT)
        found = {(row["row"], row["direction"]): row for row in answer.pop("rows", [])}
        for point in missing:
            add(store, {**point, **answer, **found.get((point["row"], point["direction"]), {})})


def run_models(options: argparse.Namespace, store: results.Store, folder: Path) -> None:
    """A training step of ``small``, and of peers as wide and as large as it is, on the bundled FG set."""
    found = structures.bundled(100 if options.quick else 768)
    atoms = sum(len(data.positions) for data in found)
    for row in models.rows():
        point = {"part": "model", "kind": "adsorption", "size": atoms, "row": row.name}
        point |= {"direction": "train", "threads": options.threads}
        if results.find(store.rows, **point):
            continue
        print(f"training step of {row.name}", flush=True)
        answer = models.measure(options, row, models.batch_files(folder, found, row))
        named = {
            "layer_seconds": answer.get("seconds"),
            "peak_bytes": answer.get("bytes"),
            "how": answer.get("sizes"),
        }
        add(store, {**point, **answer, **named}, **elsewhere(options, row.family))


def run_dynamics(options: argparse.Namespace, store: results.Store, folder: Path) -> None:
    """A step of dynamics of ten thousand atoms of bulk."""
    n = 64 if options.quick else 10_000
    path = folder / "bulk.xyz"
    for model, name in (("molflt", "molflt small"), ("painn", "PaiNN")):
        point = {"part": "md", "kind": "periodic", "size": n, "row": name}
        point |= {"direction": "forces", "threads": options.threads}
        if results.find(store.rows, **point):
            continue
        print(f"dynamics with {name}", flush=True)
        if not path.exists():
            ase.io.write(path, to_atoms(structures.cube(n)), format="extxyz")
        python = models.interpreter(options, model)
        answer: dict[str, Any] = {"status": UNAVAILABLE, "note": "needs --peers-python"}
        if python is not None:
            command = [python, "-m", "scripts.benchmarks.md_step", model, str(path)]
            answer = run_isolated([*command, "--threads", str(options.threads)], options.threads, LIMIT)
        add(store, {**point, **answer, "layer_seconds": answer.get("seconds")}, **elsewhere(options, model))


def run_profile(options: argparse.Namespace, store: results.Store) -> None:
    """Where the time of a layer goes, with one thread."""
    for n in (64,) if options.quick else profile_layer.ATOMS:
        if results.find(store.rows, atoms=n):
            continue
        print(f"profile, {n:,} atoms", flush=True)
        command = [sys.executable, "-m", "scripts.benchmarks.profile_layer", "--json", "--row", BOTH]
        answer = run_isolated([*command, "--threads", "1", "--atoms", str(n)], 1, LIMIT)
        if answer["status"] != DONE:
            print(summary(answer), flush=True)
        for row in answer.get("rows", []):
            store.add({**row, "threads": 1, "load_before": answer["load_before"]})


def elsewhere(options: argparse.Namespace, family: str) -> dict[str, str]:
    """The software of a model that runs in the peers' environment, where it is not that of this process."""
    versions = models.peer_versions(options.peers_python) if family == "painn" else ""
    return {"software": versions} if versions else {}


def add(store: results.Store, row: dict[str, Any], **provenance: str) -> None:
    """Keep a row, and say what it is."""
    store.add(row, **provenance)
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
    parser = results.parser(__doc__, "speed.csv and speed_profile.csv; docs/results by default", required=False)
    parser.add_argument("--peers-python", help="the interpreter that has SchNetPack")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, which tell nothing; needs another --out")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the layers; needs another --out")
    parser.add_argument("--again", action="store_true", help="try points again that failed or did not fit")
    options = parser.parse_args()
    if options.out is None and (options.quick or options.device != "cpu"):
        parser.error("--quick and --device need --out: docs/results holds the published numbers")
    options.out = options.out or PATH.parent
    options.threads = 1 if options.quick else max(THREADS)
    options.limit, options.memory = LIMIT, available_memory()
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
    store = results.Store(options.out / PATH.name, COLUMNS, conditions)
    profiles = results.Store(options.out / "speed_profile.csv", PROFILE_COLUMNS, conditions)
    if options.again:
        store.rows = [row for row in store.rows if row["status"] == DONE]
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        parts = {
            "model": lambda: run_models(options, store, Path(folder)),
            "md": lambda: run_dynamics(options, store, Path(folder)),
            "profile": lambda: run_profile(options, profiles),
            "layer": lambda: run_layers(options, store),
        }
        for part, measure in parts.items():
            if part in options.parts:
                measure()
    print("python -m scripts.tools.tables writes the tables")


def available_memory() -> float:
    """GiB: what is available now, less a tenth."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return round(0.9 * available / 2**20, 1)


if __name__ == "__main__":
    main()
