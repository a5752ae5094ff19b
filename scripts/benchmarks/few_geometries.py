"""Acetylacetone from a few geometries: fine-tuned from ``pretrained:organic``, and from nothing.

10, 30, 100 and 450 of the training geometries of ``scripts.benchmarks.acetylacetone``, spread over the run, are
learnt for as many steps by both; the 650 others at 300 K judge the moving average after the last step. The level of
theory is another than that of the model (PBE-D3 and SO3LR).

    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.few_geometries --out runs/few       # 20 minutes of one core
    python -m scripts.tools.tables                                                   # the table of the page

A finished run is not repeated. Writes a row for each run into docs/results/few_geometries.csv, root mean square
errors in meV and meV/Å, and the figure into docs/figures.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase.io import read as read_frames
from ase.io import write as write_frames
from matplotlib.figure import Figure

from molflt.files import atomic_file
from molflt.model.file import load_model
from molflt.training.config import TrainConfig, preset_config
from molflt.training.run import train
from molflt.training.run_dir import LAST
from scripts import results
from scripts.benchmarks.acetylacetone import write_parts
from scripts.benchmarks.clusters import mean_squares

ROWS = {"fine-tuned": "from pretrained:organic", "from nothing": "from nothing"}
SIZES = (10, 30, 100, 450)
MACE = 5.1
"""meV/Å of MACE from 450 geometries (arXiv 2206.07697)."""
RATE = 1e-3
KEPT = results.DOCS / "results" / "few_geometries.csv"


def run_config(row: str, seed: int, steps: int, start: str, parts: dict[str, Path]) -> TrainConfig:
    """The recipe of forces; what is fine-tuned has a trained model's architecture and a lower rate."""
    values = preset_config("forces").model_dump(mode="json", exclude_unset=True)
    values["data"] |= {"train": str(parts["train"]), "val": {"val": str(parts["val"])}}
    values["trainer"] = {"max_epochs": 100_000, "max_steps": steps, "val_every": 100_000}
    if row == "fine-tuned":
        del values["model"]
        values["init"] = {"model": start}
        values["optimiser"]["lr"] = RATE
    return TrainConfig.model_validate({**values, "seed": seed})


def judge(row: str, n: int, seed: int, out: Path, steps: int, start: str) -> dict[str, Any]:
    """Train and judge."""
    parts = write_parts(out, "300 K")
    few = out / f"{n}.extxyz"
    if not few.exists():
        frames = read_frames(parts["train"], index=":")
        chosen = [frames[k] for k in np.linspace(0, len(frames) - 1, min(n, len(frames))).round().astype(int)]
        with atomic_file(few) as unfinished:
            write_frames(unfinished, chosen, format="extxyz")
    run = out / f"{row}-{n}-{seed}".replace(" ", "-")
    config = run_config(row, seed, steps, start, {**parts, "train": few})
    train(config, run, resume=True, say=lambda line: None)
    energy, force = mean_squares(load_model(run / LAST), parts["test"])
    return {"energy_rmse": 1000 * energy**0.5, "force_rmse": 1000 * force**0.5}


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
    with results.input_errors(parser):
        work = partial(judge, out=options.out, steps=options.steps, start=options.start)
        results.sweep(options.results, points, work, {"steps": options.steps}, digits=3)
    results.save(figure(results.read(options.results)), results.figure_path(options.results))


if __name__ == "__main__":
    main()
