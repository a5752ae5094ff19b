"""Every attention of the literature on atoms: same encoder, budget and seeds, one table.

Trains each mechanism on the bundled FG set and, where MOLFLT_DATA is set, on QM7, and measures the mean absolute
error on held-out structures (moving average after the last step), and how far predictions move when structures are
turned. Finished runs are kept and not repeated, so an interrupted comparison goes on where it stopped.

    python -m scripts.benchmarks.compare_attention --out runs/compare       # two hours on one core: all, three seeds
    python -m scripts.benchmarks.compare_attention --out runs/compare --attention flt lara --seeds 0 --steps 50
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from molflt.attention.registry import ATTENTIONS, attention_config
from molflt.data.open import open_dataset
from molflt.files import resolve_path
from molflt.invariance.structures import energies, rotation
from molflt.model.file import load_model
from molflt.training.config import TrainConfig, preset_config
from molflt.training.run import train
from scripts import results
from scripts.benchmarks import accuracy_data
from scripts.literature.training import mean_spread

QM7_TRAIN, QM7_VAL = 3000, 1000
MAX_ATOMS = 256
"""Of a batch."""
_LEFT_OUT = ("molflt", "posrf-orf", "trigrf-sphere", "oprf-sphere", "saderf-sphere")
DEFAULT = [name for name in ATTENTIONS if name not in _LEFT_OUT]
"""Every preset but the other names of flt and performer, and the sphere-sampled features of nobody's."""
N_TURNED = 64
KEPT = results.DOCS / "literature" / "compare_attention.csv"


def run_config(folder: Path, data: str, attention: str, seed: int, steps: int) -> TrainConfig:
    """The preset ``tiny`` with another attention; QM7 has no relaxed positions to learn."""
    values = preset_config("tiny").model_dump()
    values["seed"] = seed
    # Mechanisms of attention alone: the moments of the neighbours that molflt adds are left out.
    keys = type(attention_config(attention)).model_fields
    without = {"moment_channels": 0} if "moment_channels" in keys else {}
    values["model"]["attention"] = {**ATTENTIONS[attention], **without}
    values["trainer"] |= {"max_steps": steps, "max_epochs": 1000}
    values["data"]["max_atoms"] = MAX_ATOMS
    # What is trained on is the same for all, and no more than the sets themselves.
    values["loss"] |= {"noisy_nodes": False, "separation": 0}
    if data == "qm7":
        values["data"] |= {
            "train": str(folder / "qm7-train.lmdb"),
            "val": {"val": str(folder / "qm7-val.lmdb")},
            "target": "energy",
            "standardise": "element",
        }
        values["model"]["auxiliary_head"] = False
    return TrainConfig.model_validate(values)


def judge(data: str, attention: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Train and judge one model."""
    config, run = run_config(folder, data, attention, seed, steps), folder / data / attention / str(seed)
    start = time.perf_counter()
    found = train(config, run, resume=True, say=lambda line: None)
    seconds = time.perf_counter() - start
    curve = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    model = load_model(run / "last.safetensors").model
    structures = list(islice(open_dataset(resolve_path(config.data.val["val"])), N_TURNED))
    random = np.random.default_rng(0)
    turned = [rotation(structure, random) for structure in structures]
    change = np.abs(energies(model, turned).energy - energies(model, structures).energy)
    return {
        "mae": [line["val/energy_mae"] for line in curve if "val/energy_mae" in line][-1],
        "mad": found.mad,
        "rotation": float(change.max()),
        "parameters": model.n_parameters(),
        "seconds": seconds,
    }


def summarised(found: list[results.Row], names: list[str], data_sets: list[str]) -> list[dict[str, Any]]:
    """A row for every attention and data set, over all seeds that are finished."""
    rows = []
    for data, name in product(data_sets, names):
        runs = [row for row in found if (row["data"], row["attention"]) == (data, name)]
        mean, spread = mean_spread([float(run["mae"]) for run in runs])
        rows.append(
            {
                "data": data,
                "attention": name,
                "seeds": len(runs),
                "steps": runs[0]["steps"],
                "parameters": runs[0]["parameters"],
                "mae": mean,
                "spread": spread,
                "mad": runs[0]["mad"],
                "rotation": max(float(run["rotation"]) for run in runs),
            }
        )
    return rows


def table(rows: Sequence[results.Row] | None = None) -> str:
    """One Markdown table for each data set, best first; by default of the published rows."""
    rows = results.read(KEPT) if rows is None else rows
    header = ["attention", "MAE, eV", "seeds", "turned, eV", "parameters"]
    parts = []
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = sorted((row for row in rows if row["data"] == data), key=lambda row: float(row["mae"]))
        parts.append(
            f"**{data}**: {mine[0]['steps']} steps; mean ± standard deviation over the seeds; mean absolute "
            f"deviation of the labels {float(mine[0]['mad']):.3f} eV\n\n"
        )
        cells = [
            [
                f"`{row['attention']}`",
                f"{float(row['mae']):.3f}" + (f" ± {float(row['spread']):.3f}" if row["seeds"] != "1" else ""),
                row["seeds"],
                f"{float(row['rotation']):.0e}",
                f"{int(row['parameters']):,}",
            ]
            for row in mine
        ]
        parts.append(results.markdown(header, cells) + "\n")
    return "".join(parts)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "runs and tables")
    parser.add_argument("--attention", nargs="+", default=DEFAULT, choices=list(ATTENTIONS))
    parser.add_argument("--data", nargs="+", default=["fg", "qm7"], choices=["fg", "qm7"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    if options.quick:
        options.attention, options.data, options.seeds, options.steps = ["flt"], ["fg"], [0], 2
    if "qm7" in options.data and not accuracy_data.available("qm7"):
        print("MOLFLT_DATA is not set: without QM7")
        options.data.remove("qm7")
    if "qm7" in options.data:
        # The first molecules of the file and those after them.
        paths = options.out / "qm7-train.lmdb", options.out / "qm7-val.lmdb"
        n = QM7_TRAIN + QM7_VAL
        accuracy_data.write_missing(
            accuracy_data.DATA_SETS["qm7"], paths, lambda _: np.split(np.arange(n), [QM7_TRAIN]), n
        )
    points = [
        {"data": data, "attention": name, "seed": seed, "steps": options.steps}
        for seed, data, name in product(options.seeds, options.data, options.attention)
    ]
    runs = options.out / "runs.csv"
    results.sweep(runs, points, partial(judge, folder=options.out), digits=8)
    path = options.out / "compare_attention.csv"
    found = summarised(results.read(runs), options.attention, options.data)
    results.record(path, found, digits=6)
    print(table(results.read(path)))


if __name__ == "__main__":
    main()
