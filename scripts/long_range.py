"""What the long-range pilots share: files of ions with known energies, one run per attention and seed, the table."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from molflt import __version__
from molflt.data.labels import LabelSpec
from molflt.data.lmdb_writer import write_lmdb
from molflt.data.progress import track
from molflt.data.sources import open_dataset
from molflt.errors import InputError
from molflt.files import atomic_file
from molflt.model.model_file import load_model
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predictor import predict
from molflt.training.config import TrainConfig
from molflt.training.run import train
from molflt.training.screening import Screening, labels

SODIUM, CHLORINE = 11, 17


@dataclass(frozen=True)
class Ions:
    """Positions (n, 3) in Å, charges (n,) in units of e, and the energy in eV to learn."""

    positions: NDArray[np.float64]
    charges: NDArray[np.float64]
    energy: float


def write_ions(path: Path, structures: Iterable[Ions], count: int, what: str) -> None:
    """An LMDB file of ions, Na where the charge is positive and Cl elsewhere; kept if it is there."""
    if path.exists():
        return
    records = (
        {
            "pos": ions.positions.astype(np.float32),
            "cell": np.zeros((1, 3, 3), dtype=np.float32),
            "pbc": np.zeros((1, 3), dtype=bool),
            "atomic_numbers": np.where(ions.charges > 0, SODIUM, CHLORINE).astype(np.uint8),
            "tags": np.full(len(ions.charges), 2, dtype=np.uint8),
            "natoms": len(ions.charges),
            "sid": index,
            "y_relaxed": ions.energy,
        }
        for index, ions in enumerate(track(structures, what, total=count))
    )
    write_lmdb(path, records, progress=False)


def config(
    train_file: Path, val_file: Path, attention: Mapping[str, Any], seed: int, epochs: int, max_atoms: int, lr: float
) -> TrainConfig:
    """The same model and trainer for every attention of a pilot; a local cutoff of 4 Å."""
    return TrainConfig.model_validate(
        {
            "seed": seed,
            "data": {
                "train": str(train_file),
                "val": {"val": str(val_file)},
                "standardise": "element",
                "max_atoms": max_atoms,
            },
            "model": {
                "dim": 96,
                "n_heads": 8,
                "n_layers": 3,
                "ffn_dim": 192,
                "cutoff": 4.0,
                "n_rbf": 16,
                "auxiliary_head": False,
                # Moments of the neighbours see no further than these; here the far field is judged.
                "attention": {"moment_channels": 0, **attention},
            },
            "optimiser": {"lr": lr},
            "trainer": {"max_epochs": epochs},
        }
    )


def errors(name: str, chosen: TrainConfig, run: Path, tests: Mapping[str, Path]) -> dict[str, Any]:
    """Train, or go on, and measure on each test file: mean absolute error and deviation, eV."""
    train(chosen, run, resume=True, say=print)
    loaded = load_model(run / "best.safetensors")
    row: dict[str, Any] = {"attention": name, "seed": chosen.seed}
    for label, path in tests.items():
        data = open_dataset(path)
        prediction, _ = predict(loaded, data)
        metrics = energy_metrics(prediction.energies, labels(Screening(data, LabelSpec(target="y_relaxed"), label)))
        row[label] = {"mae": metrics.energy_mae, "mad": metrics.mad}
    found = "  ".join(f"{label}: {row[label]['mae']:.4f}" for label in tests)
    print(f"{name}, seed {chosen.seed}: {found}", flush=True)
    return row


def arguments(
    description: str | None, attentions: Mapping[str, Any], epochs: int, n_train: int
) -> argparse.Namespace:
    """The command line of a pilot."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for data, runs and the table")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--train", type=int, default=n_train, help="structures to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--attention", nargs="+", default=list(attentions), choices=list(attentions))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def compare(
    options: argparse.Namespace,
    attentions: Mapping[str, Mapping[str, Any]],
    train_file: Path,
    tests: Mapping[str, Path],
    max_atoms: int,
    record: str,
) -> None:
    """Train every attention with every seed, test each on all files, print the table and write it.

    Args:
        options: from :func:`arguments`.
        attentions: configurations by name.
        train_file: structures to train on.
        tests: files by the names of the columns; the first validates.
        max_atoms: of a batch.
        record: name of the JSON file.

    Raises:
        SystemExit: a run in the folder was started with other settings.
    """
    rows = []
    for name in options.attention:
        for seed in options.seeds:
            run = options.out / f"{name.split(',')[0].split(' ')[0]}-{list(attentions).index(name)}-{seed}"
            first = next(iter(tests.values()))
            chosen = config(train_file, first, attentions[name], seed, options.epochs, max_atoms, options.lr)
            try:
                rows.append(errors(name, chosen, run, tests))
            except InputError as error:
                raise SystemExit(f"error: {error}") from error
    report(rows, tests, options.out / record, epochs=options.epochs, lr=options.lr, n_train=options.train)


def report(rows: Sequence[Mapping[str, Any]], labels_of_tests: Iterable[str], path: Path, **settings: Any) -> None:
    """Print the table, and write it with settings and versions as JSON."""
    tests = list(labels_of_tests)
    print(f"\n{'MAE in eV':<32}" + "".join(f"{label:>10}" for label in tests))
    for row in rows:
        print(f"{row['attention']:<32}" + "".join(f"{row[label]['mae']:>10.4f}" for label in tests))
    print(f"{'mean absolute deviation':<32}" + "".join(f"{rows[0][label]['mad']:>10.4f}" for label in tests))
    record = {
        **settings,
        "versions": {"molflt": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": list(rows),
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1))
