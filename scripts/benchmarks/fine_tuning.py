"""What a trained model is worth where there are few structures: groups of the FG set that it has never seen.

For each of two groups of adsorbates, a model is trained on all others. Then 100 structures of the group are learnt
from that model on (fine-tuned), and from nothing, with the same architecture, batches and number of steps. The others
of the group are the test. Nothing is chosen by it: what is judged is the moving average after the last step.

    python -m scripts.benchmarks.fine_tuning --out runs/accuracy
    python -m scripts.benchmarks.fine_tuning --out runs/short --base-epochs 8 --epochs 30    # a few minutes
    python -m scripts.benchmarks.fine_tuning --out runs/few --miniature     # a few structures and steps

Training on all others takes long; a folder of scripts.benchmarks.accuracy in which the row flt of these divisions is
finished has it already. A finished run is not repeated, and an interrupted one goes on from its last epoch. Writes
docs/results/fine_tuning.csv with a row for each run:

    set         the division of scripts.benchmarks.fg_splits
    row         not fine-tuned: the model that never saw the group; fine-tuned: from it on; from nothing
    seed        of the run, and of which structures of the group are learnt
    n           structures learnt
    mae         mean absolute error on the others of the group, eV
    mad         mean absolute deviation of their labels, eV

and behind them scripts.results.PROVENANCE.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.record import to_record
from molflt.model.model_file import read_metadata
from molflt.prediction.evaluate import evaluate
from molflt.training.config import FINE_TUNING_RATE, TrainConfig
from molflt.training.run import train
from molflt.training.run_directory import LAST
from scripts import results
from scripts.benchmarks.accuracy_data import DATA_SETS, split
from scripts.benchmarks.accuracy_rows import run_config

SETS = ("fg-amidines", "fg-carbamate-esters")
ROWS = ("not fine-tuned", "fine-tuned", "from nothing")
N_LEARNT, EPOCHS = 100, 100
KEPT = results.DOCS / "results" / "fine_tuning.csv"
MINIATURE, MINIATURE_LEARNT, MINIATURE_EPOCHS = 60, 30, 2


def train_base(data: str, out: Path, most: int | None, epochs: int) -> tuple[Path, Path]:
    """The model that never saw the group, where the accuracy benchmark has it, and the structures of the group."""
    files = split(data, 0, out / "data", most)
    run = out / "runs" / f"{data}-flt-0-0"
    train(run_config("flt", data, files, 0, epochs), run, resume=True, say=lambda line: None)
    return run / LAST, Path(next(iter(files.held_out.values())))


def divide(held_out: Path, seed: int, n_learnt: int, folder: Path) -> tuple[Path, Path]:
    """Files of the structures of the group that are learnt, and of the others; kept if they are there."""
    learnt, test = (folder / f"{held_out.stem}-{seed}-{part}.lmdb" for part in ("learnt", "test"))
    if not (learnt.exists() and test.exists()):
        structures = open_dataset(held_out)
        order = np.random.default_rng(seed).permutation(len(structures))
        for path, chosen in ((learnt, order[:n_learnt]), (test, order[n_learnt:])):
            path.unlink(missing_ok=True)
            write_lmdb(path, (to_record(structures[int(k)]) for k in chosen), progress=False)
    return learnt, test


def run_settings(row: str, base: Path, learnt: Path, test: Path, seed: int, epochs: int) -> TrainConfig:
    """The configuration of the base with few structures; what differs between the rows is where they start."""
    fine = row == "fine-tuned"
    begin = {"init": str(base)} if fine else {"model": read_metadata(base).config.model_dump()}
    values: dict[str, Any] = {
        "seed": seed,
        "data": {"train": str(learnt), "val": str(test), "target": "y_relaxed", "max_atoms": 384},
        "optimiser": {"name": "adamw", "lr": FINE_TUNING_RATE if fine else 2e-3, "warmup_steps": 50},
        "trainer": {"max_epochs": epochs, "val_every": epochs},
    }
    return TrainConfig.model_validate(values | begin)


def judge(data: str, row: str, seed: int, out: Path, miniature: bool, epochs: tuple[int, int]) -> dict[str, Any]:
    """Train what is missing and judge it: a row of the CSV; ``epochs`` are those of the base and of the others."""
    base, held_out = train_base(data, out, MINIATURE if miniature else None, epochs[0])
    n_learnt = MINIATURE_LEARNT if miniature else N_LEARNT
    learnt, test = divide(held_out, seed, n_learnt, out / "data")
    model = base
    if row != "not fine-tuned":
        run = out / "runs" / f"{data}-{row.replace(' ', '-')}-{seed}"
        train(run_settings(row, base, learnt, test, seed, epochs[1]), run, resume=True, say=lambda line: None)
        model = run / LAST
    found = evaluate(model, test)
    metrics = found.metrics
    return {"set": data, "row": row, "seed": seed, "n": n_learnt, "mae": metrics.energy_mae, "mad": metrics.mad}


def main() -> None:
    """Every run that is asked for and not finished."""
    parser = results.parser(__doc__, "data and runs")
    parser.add_argument("--data", nargs="+", choices=[name for name in DATA_SETS if name in SETS], default=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--base-epochs", type=int, help="of the models that never saw the group")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of the few structures; default: {EPOCHS}")
    parser.add_argument("--results", type=Path, help=f"CSV of the finished runs; default: {KEPT.name} of the pages")
    parser.add_argument("--miniature", action="store_true", help="a few structures and epochs: shows that all runs")
    options = parser.parse_args()
    path = options.results or (options.out / KEPT.name if options.miniature else KEPT)
    torch.set_num_threads(1)
    with results.input_errors(parser):
        for data, seed, row in product(options.data, options.seeds, ROWS):
            if results.find(results.read(path), set=data, row=row, seed=seed):
                continue
            epochs = options.base_epochs or DATA_SETS[data].epochs, options.epochs
            if options.miniature:
                epochs = MINIATURE_EPOCHS, MINIATURE_EPOCHS
            found = judge(data, row, seed, options.out, options.miniature, epochs)
            print(f"{data:<22}{row:<14}seed {seed}: {found['mae']:.4f} eV (MAD {found['mad']:.4f} eV)", flush=True)
            results.extend(path, [found], {"base_epochs": epochs[0], "epochs": epochs[1]})


if __name__ == "__main__":
    main()
