"""Members of f, and learning of their scales, on clusters with an interaction of long range.

The clusters are those of Euclidean fast attention (Frank et al., arXiv 2412.08541): one element, a pair interaction
of long range, energies and forces in units of their own. The division is the publishers': the first 1,500 of
``permutation(arange(2500))`` after ``random.seed(0)`` to train on, the next 500 to validate, the others to test. So
is the loss, 0.01 times the mean square error of the energy and 0.99 times that of a component of the forces.

    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.clusters --out runs/clusters       # 45 minutes of one core
    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.clusters --out runs/clusters --rows both --seeds 1 --atoms 16
    python -m scripts.tools.tables                                                     # the table of the page

A finished run is not repeated, and an interrupted one goes on from its last epoch. Writes a row for each run into
docs/results/clusters.csv and the figure into docs/figures.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import ase
import numpy as np
import torch
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write as write_frames
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure

from molflt.data.labels import LabelSpec
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.files import atomic_file
from molflt.model.file import LoadedModel, load_model
from molflt.prediction.predict import predict
from molflt.training.config import TrainConfig
from molflt.training.run import train
from scripts import results
from scripts.benchmarks.accuracy_data import shared
from scripts.benchmarks.accuracy_rows import FrozenScales, ProcessorTime

FILES = {16: "efa/3D_cluster_16_atoms_radius_2point5.npz", 32: "efa/3D_cluster_32_atoms_radius_5.npz"}
"""By atoms of a cluster."""
PARTS = {"train": slice(0, 1500), "val": slice(1500, 2000), "test": slice(2000, None)}
ROWS: dict[str, dict[str, Any]] = {
    "gaussians": {"spectrum": "gaussians"},
    "both": {"spectrum": "both"},
    "sampled": {"spectrum": "sampled"},
    "both, scales frozen": {"spectrum": "both"},
    "sampled, scales frozen": {"spectrum": "sampled"},
    "both, muon": {"spectrum": "both"},
    "both, vectors": {"spectrum": "both", "vector_channels": 8},
    "both, matrices, muon": {"mechanism": "matrices", "spectrum": "both"},
    "no far field": {"mechanism": "local"},
}
PUBLISHED = {"fast attention": 8.4e-4, "local": 6.0e-3}
"""Losses of the paper, with Euclidean fast attention and of a local model of four iterations."""
KEPT = results.DOCS / "results" / "clusters.csv"


def write_parts(folder: Path, n_atoms: int) -> dict[str, Path]:
    """The three parts of the publishers' division as extxyz; kept if they are there."""
    paths = {name: folder / f"{name}-{n_atoms}.extxyz" for name in PARTS}
    if all(path.exists() for path in paths.values()):
        return paths
    with np.load(shared(FILES[n_atoms])) as found:
        order = np.random.RandomState(0).permutation(np.arange(len(found["energy"])))
        arrays = {name: found[name][order] for name in ("atomic_numbers", "positions", "energy", "forces")}
    for name, path in paths.items():
        frames = []
        for numbers, positions, energy, forces in zip(*(a[PARTS[name]] for a in arrays.values()), strict=True):
            frame = ase.Atoms(numbers.astype(int), positions)
            frame.calc = SinglePointCalculator(frame, energy=float(energy), forces=forces)
            frames.append(frame)
        with atomic_file(path) as partial:
            write_frames(partial, frames, format="extxyz")
    return paths


def run_config(row: str, seed: int, epochs: int, parts: dict[str, Path]) -> TrainConfig:
    """The same model and trainer for every row."""
    return TrainConfig.model_validate(
        {
            "seed": seed,
            "data": {
                "train": str(parts["train"]),
                "val": {"val": str(parts["val"])},
                "target": "energy",
                "max_atoms": 512,
            },
            "model": {
                "dim": 64,
                "n_heads": 4,
                "n_layers": 3,
                "ffn_dim": 128,
                "cutoff": 4.0,
                "n_rbf": 16,
                "auxiliary_head": False,
                "attention": ROWS[row],
            },
            # What the other rows were made with, so that rows differ in one thing.
            "optimiser": {"name": "muon" if row.endswith("muon") else "adamw", "lr": 2e-3},
            "loss": {"force_weight": 10.0},
            "trainer": {"max_epochs": epochs, "val_every": max(1, epochs // 10)},
        }
    )


def mean_squares(loaded: LoadedModel, path: Path) -> tuple[float, float]:
    """Mean square errors of a file's energies and force components, eV² and (eV/Å)²."""
    data = open_dataset(path, ReadOptions(labels=LabelSpec(target="energy")))
    prediction = predict(loaded, data, forces=True)
    labels = [data[k] for k in range(len(data))]
    energy = np.mean([(e - float(d.energy)) ** 2 for e, d in zip(prediction.energies, labels, strict=True)])
    force = np.mean([np.mean((f - d.forces.numpy()) ** 2) for f, d in zip(prediction.forces, labels, strict=True)])
    return float(energy), float(force)


def judge(row: str, atoms: int, seed: int, epochs: int, out: Path) -> dict[str, Any]:
    """Train and judge: the other columns of clusters.csv."""
    parts, name = write_parts(out, atoms), f"{row}-{atoms}-{seed}-{epochs}".replace(" ", "_").replace(",", "")
    run, spent = out / name, ProcessorTime(out / f"{name}-seconds.json")
    callbacks: list[Callback] = [spent, *([FrozenScales()] if "frozen" in row else [])]
    train(run_config(row, seed, epochs, parts), run, resume=True, say=lambda line: None, callbacks=callbacks)
    loaded = load_model(run / "last.safetensors")
    (energy, force), of_test = (mean_squares(loaded, parts[part]) for part in ("val", "test"))
    return {
        "loss": 0.01 * energy + 0.99 * force,
        "test_loss": 0.01 * of_test[0] + 0.99 * of_test[1],
        "energy_rmse": energy**0.5,
        "force_rmse": force**0.5,
        "minutes": spent.seconds / 60,
        "parameters": loaded.model.n_parameters(),
    }


def losses_figure(rows: list[results.Row]) -> Figure:
    """The loss of every run with 32 atoms by row, beside what is published."""
    losses: dict[str, list[float]] = {}
    for row in rows:
        if row["atoms"] == "32":
            losses.setdefault(row["row"], []).append(float(row["loss"]))
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    names = sorted(losses, key=lambda name: min(losses[name]))
    for place, name in enumerate(reversed(names)):
        axes.plot(losses[name], [place] * len(losses[name]), "o", color="tab:blue")
    axes.set_yticks(range(len(names)), reversed(names))
    for name, loss in PUBLISHED.items():
        axes.axvline(loss, color="black", linewidth=0.8, linestyle="--")
        axes.text(loss, len(names) - 0.4, name, ha="center", va="bottom", fontsize="small")
    axes.set(xlabel="0.01 · mean square of energies + 0.99 · of forces", xscale="log", ylim=(-0.6, len(names) - 0.4))
    return figure


def main() -> None:
    """Every run that is asked for and not finished."""
    parser = results.parser(__doc__, "data and runs", kept=KEPT)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--atoms", type=int, choices=list(FILES), default=32, help="of a cluster")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        PARTS.update(train=slice(0, 8), val=slice(8, 12), test=slice(12, 16))
        options.rows, options.epochs = ["both"], 1
    points = [
        {"row": row, "atoms": options.atoms, "seed": seed, "epochs": options.epochs}
        for seed, row in product(options.seeds, options.rows)
    ]
    with results.input_errors(parser):
        results.sweep(options.results, points, partial(judge, out=options.out), digits=3)
    results.save(losses_figure(results.read(options.results)), results.figure_path(options.results))


if __name__ == "__main__":
    main()
