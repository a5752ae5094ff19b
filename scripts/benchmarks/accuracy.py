"""Accuracy of molflt, of what becomes of it when a part is taken away, and of its peers.

All rows have the same trainer, divisions, budget and seeds; the peers are given the processor time that molflt's
default took on the same data and the same kind of processor. A finished run is not repeated, and an interrupted one
resumes after its last epoch. Start the same command once for each core: no two processes take the same run.

    python -m scripts.benchmarks.accuracy --out runs/accuracy           # the main sets: 33 hours of one core
    python -m scripts.benchmarks.accuracy --out runs/accuracy --data qm7 --rows flt softmax SchNet --seeds 0
    python -m scripts.benchmarks.accuracy --out runs/quick --quick          # two minutes
    python -m scripts.benchmarks.accuracy --out runs/accuracy --data perovskites --epochs 40 \
        --rows "flt, muon" "no far field, muon" --mean                  # models that differ, and their mean
    python -m scripts.benchmarks.accuracy --out runs/accuracy --results docs/results/accuracy.csv
    python -m scripts.tools.tables                    # writes the tables of the pages from docs/results/accuracy.csv

The results are one CSV with a row for each run and each set of structures that it was judged on: ``set`` is qm7, fg,
perovskites or atoms, or fg-RULE for a division of scripts.benchmarks.fg_splits; ``model`` the row of the table;
``fold`` 0 where there is one division; ``mae`` in eV, of the perovskites per cell; ``steps`` are a peer's, whose
``epochs`` end where its time is over; ``minutes`` are of the processor, for training. The ``note`` of a mean says of
which models it is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from molflt.data.oc20.lmdb import LmdbDataset
from molflt.files import resolve_path
from molflt.model.file import load_model
from molflt.prediction.evaluate import evaluate
from molflt.training.run import train
from molflt.training.run_dir import read_records
from scripts import results
from scripts.benchmarks import fg_splits
from scripts.benchmarks.accuracy_data import DATA_SETS, Split, available, split
from scripts.benchmarks.accuracy_peers import PEERS, train_peer
from scripts.benchmarks.accuracy_rows import VARIANTS, ProcessorTime, callbacks, run_config
from scripts.tools.fg import describe

COLUMNS = (
    "set", "model", "seed", "fold", "split", "mae", "parameters", "epochs", "steps", "minutes", "note",
)  # fmt: skip
KEPT = results.DOCS / "results" / "accuracy.csv"
"""The results that the pages quote."""
FOLD_ROWS = ("flt", "softmax", "DimeNet++", "PaiNN")
"""The contest where there are folds; of the peers, the two that are best on QM7."""
MAIN = [name for name, data in DATA_SETS.items() if not data.rule]
"""Data sets of the table; those that hold out something of the FG set are asked for by name."""
GROUPS = {
    "": [*VARIANTS, *PEERS],
    "contest": [
        *("flt, muon", "no far field, muon", "flt", "gaussians", "softmax", "softmax, pair types"),
        *PEERS,
    ],
    "ablations": list(VARIANTS),
}
"""Rows of a table, in their order."""
MEAN = "mean of models"
"""Row of the mean of the predictions of several others."""
ROWS = [*GROUPS[""], *describe.BASELINES]
"""Rows that can be asked for."""
QUICK, QUICK_STEPS, QUICK_ROWS = 90, 6, ("flt", "softmax", "concat, turned at random", "SchNet")


Members = Sequence[tuple[str, int]]
"""Row and seed of each model of a mean."""


def table(data: str, group: str = "", rows: list[results.Row] | None = None) -> str:
    """Markdown of a data set: mean and deviation over seeds and folds, median of the minutes.

    ``rows`` are those that the pages quote, unless they are given.
    """
    mine = [row for row in (results.read(KEPT) if rows is None else rows) if row["set"] == data]
    judged = list(dict.fromkeys(row["split"] for row in mine))
    cells = []
    for model in [MEAN, *GROUPS[group]]:
        runs = [row for row in mine if row["model"] == model]
        errors = [[float(run["mae"]) for run in runs if run["split"] == name] for name in judged]
        # What is of a run, and not of a split, is taken once.
        runs = [run for run in runs if run["split"] == judged[0]]
        if runs:
            epochs, minutes = ([float(run[name]) for run in runs] for name in ("epochs", "minutes"))
            numbers = (str(len(runs)), f"{np.mean(epochs):.3g}", f"{np.median(minutes):.1f}")
            cells.append([model, *map(mean_and_spread, errors), *numbers, f"{int(runs[0]['parameters']):,}"])
    return results.markdown(
        ["", *(f"MAE, {name}" for name in judged), "runs", "epochs", "minutes", "parameters"], cells
    )


def divisions(rows: list[results.Row] | None = None) -> str:
    """Markdown of the divisions of the FG set: a row for each, one column for a model, of 20 epochs or as said."""
    mine = [
        row
        for row in (results.read(KEPT) if rows is None else rows)
        if DATA_SETS[row["set"]].rule not in ("", *fg_splits.PAIRS)
    ]
    columns: dict[str, dict[str, list[float]]] = {}
    order = [*VARIANTS, MEAN, *ROWS]
    for row in sorted(mine, key=lambda row: (order.index(row["model"]), float(row["epochs"] or 0))):
        longer = row["model"] in (*VARIANTS, MEAN) and row["epochs"] != "20"
        name = f"{row['model']}, {row['epochs']} epochs" if longer else row["model"]
        columns.setdefault(name, {}).setdefault(row["set"], []).append(float(row["mae"]))
    cells = [
        [f"`{data}`", *(mean_and_spread(errors.get(data, [])) for errors in columns.values())]
        for data in DATA_SETS
        if any(data in errors for errors in columns.values())
    ]
    return results.markdown(["MAE, eV", *columns], cells)


def nested(rows: list[results.Row] | None = None) -> str:
    """Markdown of a cross-validation of the FG set that is nested: three slices choose the epochs, the fourth judges.

    A choice has the mean error of three models, each trained on two of the three slices and judged on the third. The
    error of the fourth slice is that of one model, trained on all three for as long as was chosen.
    """
    mine = [row for row in (results.read(KEPT) if rows is None else rows) if row["model"] == "flt"]
    tried = sorted({row["epochs"] for row in mine if DATA_SETS[row["set"]].rule in fg_splits.PAIRS}, key=int)
    # Slice 1 is also the val of the bundled division.
    mine = [row | {"set": "fg-slice1", "split": "test"} if row["set"] == "fg" else row for row in mine]

    def error(data: str, split: str, epochs: str) -> float:
        found = results.find(mine, set=f"fg-{data}", split=split, epochs=epochs, seed=0)
        return float(found["mae"]) if found else np.nan

    cells, judged = [], []
    for kept_apart in fg_splits.SLICES:
        inner = [
            np.mean([error(pair, f"slice {third}", epochs) for pair, third in _inner(kept_apart)]) for epochs in tried
        ]
        if not tried or np.isnan(inner).any():
            continue
        chosen = tried[int(np.argmin(inner))]
        if np.isnan(outer := error(f"slice{kept_apart}", "test", chosen)):
            continue
        judged.append(outer)
        cells.append([kept_apart, *(f"{one:.4f}" for one in inner), chosen, f"{outer:.4f}"])
    cells.append(["mean", *len(tried) * [""], "", mean_and_spread(judged)])
    head = ["slice", *(f"the other three, {epochs} epochs" for epochs in tried), "chosen", "MAE, eV"]
    return results.markdown(head, cells)


def _inner(kept_apart: str) -> list[tuple[str, str]]:
    """Pairs of slices to train on without one that is kept apart, each with the third."""
    return [
        (pair, next(number for number in fg_splits.SLICES if number not in slices + kept_apart))
        for pair, slices in fg_splits.PAIRS.items()
        if kept_apart not in slices
    ]


def mean_and_spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    if not values:
        return ""
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def run_variant(
    row: str, data: str, files: Split, seed: int, options: argparse.Namespace, run: Path
) -> dict[str, Any]:
    """Train and judge a row of molflt's own: the moving average after the last step."""
    epochs = options.epochs or DATA_SETS[data].epochs
    config = run_config(row, data, files, seed, epochs, QUICK_STEPS if options.quick else -1)
    spent = ProcessorTime(run.parent / f"{run.name}-seconds.json")
    train(config, run, resume=True, say=lambda line: None, callbacks=[spent, *callbacks(row, seed)])
    # The last epoch is always validated, by the model that is saved.
    last = read_records(run)[-1]
    return {
        "mae": {name: last[f"{name}/energy_mae"] for name in files.held_out},
        "epochs": last["epoch"],
        "seconds": spent.seconds,
        "parameters": load_model(run / "last.safetensors").model.n_parameters(),
    }


def run_peer(row: str, data: str, files: Split, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train and judge a peer for as long as molflt's default took on the same processor."""
    processor, first = results.processor(), next(iter(files.held_out))
    ours = [r for r in results.read(options.results) if (r["set"], r["model"], r["split"]) == (data, "flt", first)]
    took = [60 * float(r["minutes"]) for r in ours if r["machine"].partition(",")[0] == processor]
    if not took:
        return {"status": "waiting", "note": f"its time is that of flt on {data}, not yet run on {processor}"}
    folder = options.out / "plain"
    folder.mkdir(exist_ok=True)
    seconds, python = float(np.median(took)), options.peers_python
    return train_peer(row, files, data == "qm7", seconds, seed, options.threads, folder, python)


def run_baseline(row: str, files: Split) -> dict[str, Any]:
    """Fit and judge a simple baseline of the FG set."""
    start = time.process_time()
    train, *held_out = (list(LmdbDataset(resolve_path(path))) for path in (files.train, *files.held_out.values()))
    errors = {name: describe.errors(train, some)[row] for name, some in zip(files.held_out, held_out, strict=True)}
    return {"mae": errors, "seconds": time.process_time() - start}


def run_mean(data: str, files: Split, fold: int, members: Members, options: argparse.Namespace) -> dict[str, Any]:
    """Judge the mean of what other runs of the same division predict, once they are finished."""
    known = results.read(options.results)
    rows = [results.find(known, set=data, model=row, seed=seed, fold=fold) for row, seed in members]
    if None in rows:
        return {"status": "waiting", "note": "another process trains some of its models"}
    models = [
        load_model(options.out / "runs" / run_name(data, *member, fold) / "last.safetensors") for member in members
    ]
    return {
        "mae": {name: evaluate(models, path).mae for name, path in files.held_out.items()},
        "epochs": rows[0]["epochs"],
        "seconds": sum(60 * float(row["minutes"]) for row in rows),
        "parameters": sum(model.model.n_parameters() for model in models),
        "note": "; ".join(f"{row} with seed {seed}" for row, seed in members),
    }


def run_name(data: str, row: str, seed: int, fold: int) -> str:
    """Name of the folder of a run."""
    return "-".join([data, row, str(seed), str(fold)]).replace(" ", "_").replace(",", "").replace("=", "").lower()


def run_one(row: str, data: str, seed: int, fold: int, options: argparse.Namespace, members: Members = ()) -> None:
    """One run, or the mean of those of ``members``, unless it is finished or another process is at it."""
    name = run_name(data, row, seed, fold)
    claims = options.out / "claims"
    claims.mkdir(exist_ok=True)
    try:
        claim = FileLock(claims / name).acquire(timeout=0)
    except Timeout:
        return
    with claim:
        # Asked of the claimed run only: another process may have finished it a moment ago.
        if results.find(results.read(options.results), set=data, model=row, seed=seed, fold=fold):
            return
        with FileLock(claims / "data"):
            files = split(data, fold, options.out / "data", QUICK if options.quick else None)
        if row in describe.BASELINES:
            found = run_baseline(row, files)
        elif row in PEERS:
            found = run_peer(row, data, files, seed, options)
        elif members:
            found = run_mean(data, files, fold, members, options)
        else:
            found = run_variant(row, data, files, seed, options, options.out / "runs" / name)
        if "mae" not in found:
            print(f"{data:<12}{row:<26}{found['status']}: {found.get('note', '')}", flush=True)
            return
        known = {"set": data, "model": row, "seed": seed, "fold": fold, "minutes": found["seconds"] / 60, **found}
        known |= results.provenance({"threads": options.threads})
        new = [{**known, "split": name, "mae": error} for name, error in found["mae"].items()]
        columns = (*COLUMNS, *results.PROVENANCE)
        with FileLock(claims / "results"):
            rows = [*results.read(options.results), *({name: r.get(name) for name in columns} for r in new)]
            results.write(options.results, rows, columns, digits=7)
    errors = "  ".join(f"{name} {error:.4f}" for name, error in found["mae"].items())
    print(f"{data:<12}{row:<26}seed {seed} fold {fold}  {errors} eV  {found['seconds']:.0f} s", flush=True)


def run_missing(options: argparse.Namespace) -> None:
    """Every run that is asked for and not finished."""
    for data in options.data:
        if not available(data):
            print(f"{data}: MOLFLT_DATA is not set or has no {DATA_SETS[data].file}; left out")
            continue
        folds = options.folds or range(DATA_SETS[data].n_folds)
        folds = [fold for fold in folds if fold < DATA_SETS[data].n_folds][: 1 if options.quick else None]
        # Folds are spread enough: each has one seed.
        seeds = options.seeds if DATA_SETS[data].n_folds == 1 and not options.quick else options.seeds[:1]
        default = GROUPS[""] if DATA_SETS[data].n_folds == 1 else FOLD_ROWS
        rows = options.rows or (QUICK_ROWS if options.quick else default)
        for fold in folds:
            for seed, row in product(seeds, rows):
                if row not in describe.BASELINES or not DATA_SETS[data].file:
                    run_one(row, data, seed, fold, options)
            if options.mean:
                members = [(row, seed) for seed, row in product(seeds, rows) if row in VARIANTS]
                run_one(MEAN, data, seeds[0], fold, options, members)


def main() -> None:
    """Train what is missing, then print the tables."""
    parser = results.parser(__doc__, "data and runs")
    parser.add_argument("--results", type=Path, help="CSV of the finished runs; default: OUT/accuracy.csv")
    parser.add_argument("--data", nargs="+", choices=list(DATA_SETS), default=MAIN, help=f"default: {' '.join(MAIN)}")
    parser.add_argument("--rows", nargs="+", choices=ROWS, help=f"default: models; on folds {FOLD_ROWS}")
    parser.add_argument(
        "--mean", action="store_true", help="judge the mean of the models of all rows and seeds as well"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folds", type=int, nargs="+", help="of the sets that have any; default: all")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of each run")
    parser.add_argument("--epochs", type=int, help="instead of each data set's own")
    parser.add_argument("--peers-python", help="interpreter with SchNetPack; see peers_environment.sh")
    options = parser.parse_args()
    options.results = options.results or options.out / "accuracy.csv"
    torch.set_num_threads(options.threads)
    with results.input_errors(parser):
        run_missing(options)
    rows = results.read(options.results)
    for data in (name for name in MAIN if any(row["set"] == name for row in rows)):
        print(f"\n{data}, {DATA_SETS[data].unit}\n\n{table(data, rows=rows)}", end="")
    if any(DATA_SETS[row["set"]].rule for row in rows):
        print(f"\ndivisions of the FG set\n\n{divisions(rows)}", end="")
        print(f"\nnested cross-validation of the FG set\n\n{nested(rows)}", end="")


if __name__ == "__main__":
    main()
