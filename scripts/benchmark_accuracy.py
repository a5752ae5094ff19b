"""Accuracy of molflt, of what becomes of it when a part is taken away, and of its peers: one table.

The same trainer, divisions, budget and seeds for all rows; the peers are given the processor time that molflt's
default took on the same data and the same kind of processor. Every run that is finished has a file of its own and is
not repeated, an interrupted one goes on from its last epoch. Start the same command once for each core: no two
processes take the same run.

    python scripts/benchmark_accuracy.py --out runs/accuracy                       # everything: 33 hours of one core
    python scripts/benchmark_accuracy.py --out runs/accuracy --data qm7 --rows molflt softmax SchNet --seeds 0
    python scripts/benchmark_accuracy.py --out runs/miniature --miniature        # two minutes
    python scripts/benchmark_accuracy.py --out runs/accuracy --report --results docs/accuracy --page docs/accuracy.md
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy.callbacks import ProcessorTime, RandomRotations, WithoutLocalRPE
from accuracy.claims import claimed
from accuracy.data_sets import DATA_SETS, Split, available, split
from accuracy.peers import PEERS, train_peer
from accuracy.report import tables
from accuracy.variants import ONLY_RELAXED, TURNED, UNBIASED, VARIANTS, run_config
from benchmarks.results import machine
from lightning.pytorch.callbacks import Callback
from literature.tables import insert

from molflt.errors import InputError
from molflt.files import atomic_file
from molflt.model.model_file import load_model
from molflt.training.run import train
from molflt.training.run_directory import read_records

FOLD_ROWS = ("molflt", "softmax", "DimeNet++", "PaiNN")
"""The contest where there are folds; of the peers, the two that are best on QM7."""
MINIATURE, MINIATURE_STEPS, MINIATURE_ROWS = 90, 6, ("molflt", "softmax", "concat, turned at random", "SchNet")


def wanted(row: str, data: str) -> bool:
    """Whether a row says anything about a data set."""
    return row not in ONLY_RELAXED or bool(DATA_SETS[data].model.get("auxiliary_head"))


def run_variant(
    row: str, data: str, files: Split, seed: int, options: argparse.Namespace, run: Path
) -> dict[str, Any]:
    """Train and judge a row of molflt's own: the moving average after the last step, chosen by nothing."""
    epochs = options.epochs or DATA_SETS[data].epochs
    config = run_config(row, data, files, seed, epochs, MINIATURE_STEPS if options.miniature else -1)
    spent = ProcessorTime(run.parent / f"{run.name}-seconds.json")
    callbacks: list[Callback] = [spent]
    callbacks += [RandomRotations(seed)] if row in TURNED else []
    callbacks += [WithoutLocalRPE()] if row in UNBIASED else []
    train(config, run, resume=True, say=lambda line: None, callbacks=callbacks)
    # The last epoch is always validated, by the model that is saved.
    last = read_records(run)[-1]
    return {
        "mae": {name: last[f"{name}/energy_mae"] for name in files.held_out},
        "epochs": last["epoch"] + 1,
        "seconds": spent.seconds,
        "parameters": load_model(run / "last.safetensors").model.n_parameters(),
    }


def run_peer(row: str, data: str, files: Split, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train and judge a peer for as long as molflt's default took on the same processor."""
    processor = machine()["processor"]
    ours = [r for r in results(options.results) if r["row"] == "molflt" and r["data"] == data]
    took = [r["seconds"] for r in ours if r["machine"]["processor"] == processor]
    if not took:
        return {"status": "waiting", "note": f"its time is that of molflt on {data}, not yet run on {processor}"}
    molecules = data == "qm7"
    seconds, python = float(np.median(took)), options.peers_python
    folder = options.out / "plain"
    folder.mkdir(exist_ok=True)
    return train_peer(row, files, molecules, seconds, seed, options.threads, folder, python)


def results(folder: Path) -> list[dict[str, Any]]:
    """Every finished run."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def run_one(row: str, data: str, seed: int, fold: int, options: argparse.Namespace) -> None:
    """One run, unless it is finished or another process is at it."""
    name = "-".join([data, row, str(seed), str(fold)]).replace(" ", "_").replace(",", "").replace("=", "").lower()
    path = options.results / f"{name}.json"
    with claimed(options.out / "claims" / name) as mine:
        # Asked of the claimed run only: another process may have finished it a moment ago.
        if not mine or path.exists():
            return
        with claimed(options.out / "claims" / "data", wait=True):
            files = split(data, fold, options.out / "data", MINIATURE if options.miniature else None)
        if row in PEERS:
            found = run_peer(row, data, files, seed, options)
            if "mae" not in found:
                print(f"{data:<12}{row:<26}{found['status']}: {found.get('note', '')}", flush=True)
                return
        else:
            found = run_variant(row, data, files, seed, options, options.out / "runs" / name)
        record = {"machine": machine(), "data": data, "row": row, "seed": seed, "fold": fold}
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps({**record, "threads": options.threads, **found}, indent=1))
    errors = "  ".join(f"{split_name} {error:.4f}" for split_name, error in found["mae"].items())
    print(f"{data:<12}{row:<26}seed {seed} fold {fold}  {errors} eV  {found['seconds']:.0f} s", flush=True)


def arguments() -> argparse.ArgumentParser:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*VARIANTS, *PEERS]
    parser.add_argument("--out", type=Path, required=True, help="folder for data and runs")
    parser.add_argument("--results", type=Path, help="folder for one file of each finished run; default: OUT/results")
    parser.add_argument("--data", nargs="+", choices=list(DATA_SETS), default=list(DATA_SETS))
    parser.add_argument("--rows", nargs="+", choices=every, help=f"default: all; on folds {FOLD_ROWS}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folds", type=int, nargs="+", help="of the sets that have any; default: all")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each run")
    parser.add_argument("--epochs", type=int, help="instead of each data set's own")
    parser.add_argument("--peers-python", help="interpreter with SchNetPack (scripts/bench_peers_environment.sh)")
    parser.add_argument("--miniature", action="store_true", help="a few structures and epochs: shows that all runs")
    parser.add_argument("--report", action="store_true", help="only the table, from what is finished")
    parser.add_argument("--page", type=Path, help="write the tables into this page, between its marks")
    return parser


def run_missing(options: argparse.Namespace) -> None:
    """Every run that is asked for and not finished."""
    for data in options.data:
        if not available(data):
            print(f"{data}: MOLFLT_DATA is not set or has no {DATA_SETS[data].file}; left out")
            continue
        folds = options.folds or range(DATA_SETS[data].n_folds)
        folds = [fold for fold in folds if fold < DATA_SETS[data].n_folds][: 1 if options.miniature else None]
        # Folds are spread enough: each has one seed.
        seeds = options.seeds if DATA_SETS[data].n_folds == 1 and not options.miniature else options.seeds[:1]
        rows = options.rows or (MINIATURE_ROWS if options.miniature else default_rows(data))
        for fold, seed, row in product(folds, seeds, rows):
            if wanted(row, data):
                run_one(row, data, seed, fold, options)


def main() -> None:
    """Train what is missing, then report."""
    parser = arguments()
    options = parser.parse_args()
    options.results = options.results or options.out / "results"
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report:
        try:
            run_missing(options)
        except InputError as error:
            parser.exit(2, f"error: {error}\n")
    found = results(options.results)
    if not found:
        print("no run is finished")
        return
    text = tables(found, [*VARIANTS, *PEERS])
    if options.page:
        insert(options.page, "accuracy", text)
    print(text)


def default_rows(data: str) -> list[str]:
    """Ablations where there is one division, the contest where there are folds."""
    return [*VARIANTS, *PEERS] if DATA_SETS[data].n_folds == 1 else list(FOLD_ROWS)


if __name__ == "__main__":
    main()
