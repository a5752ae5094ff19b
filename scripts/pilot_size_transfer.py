"""The long-range pilot: train on clusters of 24 ions, predict clusters of 48, 96 and 192 of the same density.

The energy is that of smeared charges, Σ_{i<j} q_i q_j erf(d_ij/2)/d_ij with d in Å, q = ±1 (Na and Cl), in eV. The
neighbour list ends at 4 Å, so that a model without a far field is blind to nearly all of it.
Prints, and writes to FOLDER/size_transfer.json, the mean absolute error at each size for each attention.

    python scripts/pilot_size_transfer.py --out runs/size --epochs 15
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import erf

from molflt import __version__
from molflt.atomic_file import atomic_file
from molflt.data.labels import LabelSpec
from molflt.data.lmdb_writer import write_lmdb
from molflt.data.progress import track
from molflt.data.sources import open_dataset
from molflt.model.model_file import load_model
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predictor import predict
from molflt.training.config import TrainConfig
from molflt.training.datasets import labels
from molflt.training.run import train

TRAIN_SIZE, SIZES = 24, (24, 48, 96, 192)
SIDE, CLOSEST = 16.0, 1.8
"""Å: the box of 24 ions, and the least distance between two."""

ATTENTIONS: dict[str, dict[str, Any]] = {
    "molflt": {},
    "molflt, all channels": {"far_dim": 96},
    "molflt, sigma_max=6": {"sigma_max": 6.0},
    "molflt, free budget r=8 l=8": {
        "frequencies": "sampled",
        "spectrum": "free",
        "n_frequencies": 8,
        "l_max": 8,
    },
    "flt": {"far_rank": "m", "frequencies": "sampled"},
    "softmax (global normaliser)": {"mechanism": "softmax"},
    "no far field": {"far_field": False},
}


def cluster(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Positions (n, 3) Å, charges (n,), energy."""
    side = SIDE * (n / TRAIN_SIZE) ** (1 / 3)
    positions = np.zeros((0, 3))
    while len(positions) < n:
        candidate = random.uniform(0, side, 3)
        if np.all(np.linalg.norm(positions - candidate, axis=1) > CLOSEST):
            positions = np.vstack([positions, candidate])
    charges = random.permutation(np.repeat([1.0, -1.0], n // 2))
    i, j = np.triu_indices(n, 1)
    distance = np.linalg.norm(positions[i] - positions[j], axis=1)
    return positions, charges, float((charges[i] * charges[j] * erf(distance / 2) / distance).sum())


def write_clusters(path: Path, n: int, count: int, seed: int) -> None:
    """An LMDB file of ``count`` clusters; the same seed gives the same file."""
    if path.exists():
        return
    random = np.random.default_rng([seed, n])
    records = []
    for index in track(range(count), f"{n} ions", total=count):
        positions, charges, energy = cluster(n, random)
        records.append(
            {
                "pos": positions.astype(np.float32),
                "cell": np.zeros((1, 3, 3), dtype=np.float32),
                "pbc": np.zeros((1, 3), dtype=bool),
                "atomic_numbers": np.where(charges > 0, 11, 17).astype(np.uint8),
                "tags": np.full(n, 2, dtype=np.uint8),
                "natoms": n,
                "sid": index,
                "y_relaxed": energy,
            }
        )
    write_lmdb(path, records, progress=False)


def config(folder: Path, attention: dict[str, Any], epochs: int, seed: int) -> TrainConfig:
    """The same for every attention."""
    return TrainConfig.model_validate(
        {
            "seed": seed,
            "data": {
                "train": str(folder / "train.lmdb"),
                "val": {"val": str(folder / f"{TRAIN_SIZE}.lmdb")},
                "standardise": "element",
                "max_atoms": 768,
            },
            "model": {
                "dim": 96,
                "n_heads": 8,
                "n_layers": 3,
                "ffn_dim": 192,
                "cutoff": 4.0,
                "n_rbf": 16,
                "auxiliary_head": False,
                "attention": attention,
            },
            "optimiser": {"lr": 2e-3},
            "trainer": {"max_epochs": epochs},
        }
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for data, runs and the table")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--train", type=int, default=3000, help="clusters to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--attention", nargs="+", default=list(ATTENTIONS), choices=list(ATTENTIONS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_clusters(options.out / "train.lmdb", TRAIN_SIZE, options.train, seed=1)
    for n in SIZES:
        write_clusters(options.out / f"{n}.lmdb", n, 200, seed=2)
    rows = []
    for name in options.attention:
        for seed in options.seeds:
            run = options.out / f"{name.split(',')[0].split(' ')[0]}-{list(ATTENTIONS).index(name)}-{seed}"
            train(config(options.out, ATTENTIONS[name], options.epochs, seed), run, resume=True, say=print)
            loaded = load_model(run / "best.safetensors")
            row: dict[str, Any] = {"attention": name, "seed": seed}
            for n in SIZES:
                data = open_dataset(options.out / f"{n}.lmdb")
                prediction, _ = predict(loaded, data)
                metrics = energy_metrics(prediction.energies, labels(data, LabelSpec(target="y_relaxed"), str(n)))
                row[str(n)] = {"mae": metrics.energy_mae, "mad": metrics.mad}
            rows.append(row)
            print(f"{name}, seed {seed}: " + "  ".join(f"{n}: {row[str(n)]['mae']:.3f}" for n in SIZES), flush=True)
    print(f"\n{'MAE in eV':<32}" + "".join(f"{n:>10}" for n in SIZES))
    for row in rows:
        print(f"{row['attention']:<32}" + "".join(f"{row[str(n)]['mae']:>10.3f}" for n in SIZES))
    print(f"{'mean absolute deviation':<32}" + "".join(f"{rows[0][str(n)]['mad']:>10.3f}" for n in SIZES))
    record = {
        "epochs": options.epochs,
        "n_train": options.train,
        "versions": {"molflt": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    with atomic_file(options.out / "size_transfer.json") as temporary:
        temporary.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
