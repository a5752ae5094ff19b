"""Energies and forces of acetylacetone by ``molflt config forces``, whole and in parts.

500 geometries of a run at 300 K, of which every tenth is held out to watch the training; judged on the 650 others at
300 K (BOTNet datasets, Batatia et al., arXiv 2205.06643). With ``--test hottest`` the 500 alone show how forces go on
beyond training: the 400 of lowest energy are trained on, and the others judged. The model that is judged is the
moving average after the last step.

    MOLFLT_DATA=FOLDER python -m scripts.benchmarks.acetylacetone --out runs/acetylacetone --rows recipe
    python -m scripts.benchmarks.acetylacetone --out runs/acetylacetone --rows recipe --test hottest --epochs 160
    python -m scripts.tools.tables                                                     # the table of the page

A finished run is not repeated, and an interrupted one resumes after its last epoch. Writes a row for each run into
docs/results/acetylacetone.csv.
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

from molflt.files import atomic_file
from molflt.model.file import load_model
from molflt.training.config import TrainConfig, preset_config
from molflt.training.run import train
from scripts import results
from scripts.benchmarks.accuracy_data import shared
from scripts.benchmarks.accuracy_rows import ProcessorTime
from scripts.benchmarks.clusters import mean_squares

OLDER: dict[str, Any] = {
    "model": {"n_rbf": 11, "spacing": "even", "ffn_dim": 128},
    "optimiser": {"weight_decay": 0.1},
    "loss": {"errors": "absolute"},
}
"""What training with vectors in place of matrices has."""
ROWS: dict[str, dict[str, Any] | None] = {
    "recipe": None,
    "vectors": {"vector_channels": 16},
    "no far field": {"mechanism": "local", "vector_channels": 16},
    "no vectors": {},
    "neither": {"mechanism": "local"},
}
"""The recipe, and the attention of what is compared with it."""
TESTS = ("300 K", "hottest")
"""Sets that are judged; the first is the publishers' test."""
N_HOTTEST = 100
KEPT = results.DOCS / "results" / "acetylacetone.csv"


def write_parts(folder: Path, test: str) -> dict[str, Path]:
    """Training and validation part as extxyz, kept if they are there, and the test file.

    The hottest are validated on as well, and nothing is chosen by them.
    """
    given = shared("acac/train_300K.xyz.gz")
    hottest = test == "hottest"
    paths = {name: folder / f"{test}-{name}.extxyz".replace(" ", "_") for name in ("train", "val")}
    if not all(path.exists() for path in paths.values()):
        frames = read_frames(given, index=":", format="extxyz")
        held_out = np.arange(len(frames)) % 10 == 0
        if hottest:
            energies = np.array([frame.get_potential_energy() for frame in frames])
            held_out = energies >= np.sort(energies)[-N_HOTTEST]
        for name, path in paths.items():
            chosen = [frame for frame, out in zip(frames, held_out, strict=True) if out == (name == "val")]
            with atomic_file(path) as partial:
                write_frames(partial, chosen, format="extxyz")
    return {**paths, "test": paths["val"] if hottest else given.with_name("test_MD_300K.xyz.gz")}


def run_config(row: str, seed: int, epochs: int, parts: dict[str, Path]) -> TrainConfig:
    """The recipe, changed as the row says."""
    values = preset_config("forces").model_dump(mode="json", exclude_unset=True)
    attention = ROWS[row]
    if attention is not None:
        values = {**values, **{section: {**values[section], **keys} for section, keys in OLDER.items()}}
        values["model"] = {**values["model"], "attention": attention}
    values["data"] = {**values["data"], "train": str(parts["train"]), "val": {"val": str(parts["val"])}}
    values["trainer"] = {**values["trainer"], "max_epochs": epochs, "val_every": max(1, epochs // 20)}
    return TrainConfig.model_validate({**values, "seed": seed})


def judge(row: str, test: str, seed: int, epochs: int, out: Path) -> dict[str, Any]:
    """Train and judge: root mean square errors in meV, and meV/Å of a component."""
    parts, name = write_parts(out, test), f"{row}-{test}-{seed}-{epochs}".replace(" ", "_")
    run, spent = out / name, ProcessorTime(out / f"{name}-seconds.json")
    train(run_config(row, seed, epochs, parts), run, resume=True, callbacks=[spent])
    loaded = load_model(run / "last.safetensors")
    energy, force = mean_squares(loaded, parts["test"])
    return {
        "energy_rmse": 1000 * energy**0.5,
        "force_rmse": 1000 * force**0.5,
        "minutes": spent.seconds / 60,
        "parameters": loaded.model.n_parameters(),
    }


def table() -> str:
    """Mean and deviation over the seeds of the published runs, and medians of the minutes."""
    runs: dict[tuple[str, str, str], list[results.Row]] = {}
    for row in results.read(KEPT):
        runs.setdefault((row["row"], row["test"], row["epochs"]), []).append(row)
    cells = []
    for known, mine in runs.items():
        of = {name: [float(row[name]) for row in mine] for name in ("energy_rmse", "force_rmse", "minutes")}
        spread = {name: f" ± {np.std(values, ddof=1):.1g}" if len(mine) > 1 else "" for name, values in of.items()}
        errors = [f"{np.mean(of[name]):.3g}{spread[name]}" for name in ("energy_rmse", "force_rmse")]
        count = [str(len(mine)), f"{np.median(of['minutes']):.3g}", f"{int(mine[0]['parameters']):,}"]
        cells.append([*known, *errors, *count])
    return results.markdown(
        ["row", "test", "epochs", "energy, meV", "forces, meV/Å", "seeds", "minutes", "parameters"], cells
    )


def main() -> None:
    """Every run that is asked for and not finished."""
    parser = results.parser(__doc__, "data and runs", kept=KEPT)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--test", choices=TESTS, default=TESTS[0], help="what is judged")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, default=preset_config("forces").trainer.max_epochs)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        options.rows, options.test, options.epochs = ["neither"], "hottest", 1
    points = [
        {"row": row, "test": options.test, "seed": seed, "epochs": options.epochs}
        for seed, row in product(options.seeds, options.rows)
    ]
    with results.input_errors(parser):
        results.sweep(options.results, points, partial(judge, out=options.out), digits=3)


if __name__ == "__main__":
    main()
