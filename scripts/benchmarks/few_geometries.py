"""Acetylacetone from a few geometries: fine-tuned from ``pretrained:organic``, and from nothing.

10, 30, 100 and 450 of the training geometries of ``scripts.benchmarks.acetylacetone``, spread over the run, are
learnt for as many steps by both; the 650 others at 300 K judge the moving average after the last step. The level of
theory is another than that of the model (PBE-D3 and SO3LR). Two variants are tried on 30 geometries: with embedding
and first layer frozen, and with 150 old molecules replayed, SPICE's with the model's own energies and forces as their
labels, for twice the steps. What is forgotten is the mean absolute change of the forces on 150 others.

    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.few_geometries --out runs/few       # 25 minutes of one core
    python -m scripts.tools.tables                                                   # the tables of the page

A finished run is not repeated. Writes a row for each run into docs/results/few_geometries.csv, errors in meV and
meV/Å, and the figure into docs/figures.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read as read_frames
from ase.io import write as write_frames
from matplotlib.figure import Figure

from molflt.data.ase import from_atoms
from molflt.data.dataset import ListDataset
from molflt.files import atomic_file
from molflt.model.file import LoadedModel, load_model
from molflt.prediction.evaluate import evaluate
from molflt.prediction.members import member_paths
from molflt.prediction.output import Prediction
from molflt.prediction.predict import predict
from molflt.training.config import TrainConfig, preset_config
from molflt.training.run import train
from molflt.training.run_dir import LAST
from scripts import results
from scripts.benchmarks.accuracy_data import shared
from scripts.benchmarks.acetylacetone import write_parts
from scripts.tools.organic.geometries import monomers

ROWS = {"fine-tuned": "from pretrained:organic", "from nothing": "from nothing"}
FROZEN, REPLAY, VARIANTS_AT = "frozen", "with replay", 30
SIZES = (10, 30, 100, 450)
MACE = 5.1
"""meV/Å of MACE from 450 geometries (arXiv 2206.07697)."""
RATE = 1e-3
KEPT = results.DOCS / "results" / "few_geometries.csv"
OLD = 150
"""Molecules to replay, and others on which it is measured what is forgotten."""
COLUMNS = ("row", "n", "seed", "energy_rmse", "force_rmse", "force_mae", "forgotten", *results.PROVENANCE)


def run_config(row: str, seed: int, steps: int, start: str, parts: dict[str, Path]) -> TrainConfig:
    """The recipe of forces; what is fine-tuned has a trained model's architecture and a lower rate."""
    values = preset_config("forces").model_dump(mode="json", exclude_unset=True)
    values["data"] |= {"train": str(parts["train"]), "val": {"val": str(parts["val"])}}
    values["trainer"] = {"max_epochs": 100_000, "max_steps": steps, "val_every": 100_000}
    if row != "from nothing":
        del values["model"]
        values["init"] = {"model": start, "freeze": ["embedding", "layers.0"] if row == FROZEN else []}
        values["optimiser"]["lr"] = RATE
    return TrainConfig.model_validate({**values, "seed": seed})


def old_molecules() -> tuple[list[Atoms], list[Atoms]]:
    """One conformation of each molecule: some to replay, and others."""
    each = {atoms.info["smiles"]: atoms for atoms in monomers(shared("organic"))}
    frames = list(each.values())
    return frames[:OLD], frames[OLD : 2 * OLD]


def predicted(loaded: LoadedModel, frames: list[Atoms]) -> Prediction:
    """Energies and forces."""
    return predict(loaded, ListDataset([from_atoms(a, str(k)) for k, a in enumerate(frames)]), forces=True)


def with_old(few: list[Atoms], loaded: LoadedModel) -> list[Atoms]:
    """As many geometries of the new molecule as old ones; the new energies are shifted to the model's."""
    old, _ = old_molecules()
    shift = float(np.mean(predicted(loaded, few).energies - [a.get_potential_energy() for a in few]))
    labels = [(a, a.get_potential_energy() + shift, a.get_forces()) for a in few] * (OLD // len(few))
    known = predicted(loaded, old)
    labels += zip(old, known.energies, known.forces, strict=True)
    found = []
    for atoms, energy, forces in labels:
        found.append(Atoms(atoms.numbers, atoms.positions))
        found[-1].calc = SinglePointCalculator(found[-1], energy=float(energy), forces=forces)
    return found


def judge(row: str, n: int, seed: int, out: Path, steps: int, start: str) -> dict[str, Any]:
    """Train and judge."""
    parts, started = write_parts(out, "300 K"), load_model(member_paths(start)[0])
    name = f"{n}-{OLD}" if row == REPLAY else f"{n}"
    few = out / f"{name}.extxyz"
    if not few.exists():
        frames = read_frames(parts["train"], index=":")
        chosen = [frames[k] for k in np.linspace(0, len(frames) - 1, min(n, len(frames))).round().astype(int)]
        with atomic_file(few) as unfinished:
            write_frames(unfinished, with_old(chosen, started) if row == REPLAY else chosen, format="extxyz")
    run = out / f"{row}-{n}-{seed}".replace(" ", "-")
    config = run_config(row, seed, steps * (2 if row == REPLAY else 1), start, {**parts, "train": few})
    train(config, run, resume=True, say=lambda line: None)
    loaded = load_model(run / LAST)
    errors = evaluate(loaded, parts["test"])
    found = {
        # With old molecules, energies count from the old zero.
        "energy_rmse": None if row == REPLAY else 1000 * errors.metrics.energy_rmse,
        "force_rmse": 1000 * errors.force_metrics.force_rmse,
        "force_mae": 1000 * errors.force_metrics.force_mae,
    }
    if row != "from nothing":
        _, others = old_molecules()
        now, before = (np.concatenate(predicted(model, others).forces) for model in (loaded, started))
        found["forgotten"] = 1000 * float(np.abs(now - before).mean())
    return found


def figure(rows: list[results.Row]) -> Figure:
    """Errors of forces by the number of geometries."""
    drawn = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = drawn.subplots()
    for row, words in ROWS.items():
        points = sorted((int(r["n"]), float(r["force_rmse"])) for r in rows if r["row"] == row)
        axes.loglog(*zip(*points, strict=True), "o-", label=words)
    axes.plot([SIZES[-1]], [MACE], "k*", markersize=10, label="MACE, trained to the end")
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.set_yticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    axes.minorticks_off()
    axes.set_xlabel("geometries of acetylacetone, PBE-D3, 300 K")
    axes.set_ylabel("RMSE of forces, meV/Å")
    axes.legend()
    return drawn


def main() -> None:
    """Every run that is asked for and not finished."""
    parser = results.parser(__doc__, "data and runs", kept=KEPT)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--start", default="pretrained:organic")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        options.sizes, options.steps = [10], 2
    points = [{"row": row, "n": n, "seed": seed} for seed, n, row in product(options.seeds, options.sizes, ROWS)]
    if VARIANTS_AT in options.sizes:
        points += [{"row": row, "n": VARIANTS_AT, "seed": seed} for row in (FROZEN, REPLAY) for seed in options.seeds]
    with results.input_errors(parser):
        work = partial(judge, out=options.out, steps=options.steps, start=options.start)
        results.sweep(options.results, points, work, {"steps": options.steps}, 3, COLUMNS)
    results.save(figure(results.read(options.results)), results.figure_path(options.results))


if __name__ == "__main__":
    main()
