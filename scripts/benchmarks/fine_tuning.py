"""Fine-tuning on few structures: groups of the FG set that a model has never seen.

For each of two groups of adsorbates, a model is trained on all others. Then 100 structures of the group are learnt
from that model on (fine-tuned), and from nothing, with the same architecture, batches and number of steps. The others
of the group are the test. Nothing is chosen by it: what is judged is the moving average after the last step.

    python -m scripts.benchmarks.fine_tuning --out runs/accuracy
    python -m scripts.benchmarks.fine_tuning --out runs/short --base-epochs 8 --epochs 30    # a few minutes

Training on all others takes long; a folder of scripts.benchmarks.accuracy in which the row flt of these divisions is
finished has it already. A finished run is not repeated, and an interrupted one goes on from its last epoch. Writes
docs/results/fine_tuning.csv with a row for each run; ``n`` are structures learnt, ``mad`` is the mean absolute
deviation of the labels of the test, eV.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.record import to_record
from molflt.model.file import read_metadata
from molflt.prediction.evaluate import evaluate
from molflt.training.config import FINE_TUNING_RATE, TrainConfig
from molflt.training.run import train
from molflt.training.run_dir import LAST
from scripts import results
from scripts.benchmarks.accuracy_data import DATA_SETS, split
from scripts.benchmarks.accuracy_rows import run_config

SETS = ("fg-amidines", "fg-carbamate-esters")
ROWS = ("not fine-tuned", "fine-tuned", "from nothing")
N_LEARNT, EPOCHS = 100, 100
KEPT = results.DOCS / "results" / "fine_tuning.csv"


def train_base(data: str, out: Path, most: int | None, epochs: int) -> tuple[Path, Path]:
    """Train the model that never sees the group; returns its file, and that of the group."""
    files = split(data, 0, out / "data", most)
    run = out / "runs" / f"{data}-flt-0-0"
    train(run_config("flt", data, files, 0, epochs), run, resume=True, say=lambda line: None)
    return run / LAST, Path(next(iter(files.held_out.values())))


def divide(held_out: Path, seed: int, n_learnt: int, folder: Path) -> tuple[Path, Path]:
    """Files of the group's structures that are learnt, and of the others; kept if there."""
    learnt, test = (folder / f"{held_out.stem}-{seed}-{part}.lmdb" for part in ("learnt", "test"))
    if not (learnt.exists() and test.exists()):
        structures = open_dataset(held_out)
        order = np.random.default_rng(seed).permutation(len(structures))
        for path, chosen in ((learnt, order[:n_learnt]), (test, order[n_learnt:])):
            path.unlink(missing_ok=True)
            write_lmdb(path, (to_record(structures[int(k)]) for k in chosen), progress=False)
    return learnt, test


def run_settings(row: str, base: Path, learnt: Path, test: Path, seed: int, epochs: int) -> TrainConfig:
    """Configuration of the base with few structures; rows differ in where they start."""
    fine = row == "fine-tuned"
    begin = {"init": str(base)} if fine else {"model": read_metadata(base).config.model_dump()}
    values: dict[str, Any] = {
        "seed": seed,
        "data": {"train": str(learnt), "val": str(test), "target": "y_relaxed", "max_atoms": 384},
        "optimiser": {"name": "adamw", "lr": FINE_TUNING_RATE if fine else 2e-3, "warmup_steps": 50},
        "trainer": {"max_epochs": epochs, "val_every": epochs},
    }
    return TrainConfig.model_validate(values | begin)


def judge(set: str, row: str, seed: int, out: Path, epochs: tuple[int, int], quick: bool) -> dict[str, Any]:
    """Train what is missing and judge it; ``epochs`` are those of the base and of the others."""
    base, held_out = train_base(set, out, 60 if quick else None, epochs[0])
    n_learnt = 30 if quick else N_LEARNT
    learnt, test = divide(held_out, seed, n_learnt, out / "data")
    model = base
    if row != "not fine-tuned":
        run = out / "runs" / f"{set}-{row.replace(' ', '-')}-{seed}"
        train(run_settings(row, base, learnt, test, seed, epochs[1]), run, resume=True, say=lambda line: None)
        model = run / LAST
    metrics = evaluate(model, test).metrics
    return {"n": n_learnt, "mae": metrics.energy_mae, "mad": metrics.mad}


def main() -> None:
    """Every run that is asked for and not finished."""
    parser = results.parser(__doc__, "data and runs", kept=KEPT)
    parser.add_argument("--data", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--base-epochs", type=int, default=DATA_SETS[SETS[0]].epochs, help="where the group is unseen"
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of the few structures; default: {EPOCHS}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    epochs = (2, 2) if options.quick else (options.base_epochs, options.epochs)
    points = [
        {"set": data, "row": row, "seed": seed} for data, seed, row in product(options.data, options.seeds, ROWS)
    ][: 3 if options.quick else None]
    with results.input_errors(parser):
        work = partial(judge, out=options.out, epochs=epochs, quick=options.quick)
        results.sweep(options.results, points, work, {"base_epochs": epochs[0], "epochs": epochs[1]})


if __name__ == "__main__":
    main()
