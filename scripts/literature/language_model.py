"""FLT Table 1 in miniature: a byte-level language model on the sources of Python's standard library.

Trains the same small causal transformer with Performer, log-linear Performer, FLT with a Gaussian mixture and FLT
with local RPE, and with dense softmax and a relative bias for reference; three seeds. Prints the perplexity per byte
on held-out files, and whether the paper's order (31.1 > 30.6 > 30.3 > 30.1) holds. Finished runs are kept.

    python scripts/literature/language_model.py --out runs/language          # half an hour on one core
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from byte_text import LENGTH, corpus, fit
from figures import plot_curves, save
from matplotlib.figure import Figure
from safetensors.torch import save_file
from sequence_model import SequenceTransformer, attention_layers
from tables import markdown, write_csv, write_record
from torch import nn

from molflt.data.progress import track
from molflt.files import atomic_file

PAPER = {"performer": 31.1, "log-linear": 30.6, "flt-gaussian": 30.3, "flt-local": 30.1}
"""Validation perplexity per word on WikiText-103, FLT Table 1."""
NAMES = [*PAPER, "softmax"]
DIM, HEADS, LAYERS, FFN = 96, 4, 2, 192
N_FEATURES, N_FREQUENCIES = 32, 16


def language_model(name: str, seed: int) -> SequenceTransformer:
    """The transformer with one attention; the same weights for the same seed where the shapes agree."""
    torch.manual_seed(seed)
    layers = attention_layers(name, DIM, HEADS, LAYERS, (LENGTH,), True, N_FEATURES, N_FREQUENCIES, seed)
    return SequenceTransformer(layers, nn.Embedding(256, DIM), DIM, FFN, LENGTH, 256, pooled=False)


def run_once(folder: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one model; its numbers go to result.json and its weights to model.safetensors in its folder."""
    path = folder / name / str(seed) / "result.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    path.parent.mkdir(parents=True, exist_ok=True)
    train, validation = corpus()
    model = language_model(name, seed)
    bar = iter(track(range(steps), f"{name}, seed {seed}", total=steps))
    start = time.perf_counter()
    curve = fit(model, train, validation, steps, seed, on_step=lambda step: next(bar, None))
    seconds = time.perf_counter() - start
    with atomic_file(path.with_name("model.safetensors")) as temporary:
        # An RPE shared by the layers is one tensor under several names.
        save_file({key: value.clone() for key, value in model.state_dict().items()}, temporary)
    result = {
        "attention": name,
        "seed": seed,
        "steps": steps,
        "bits": curve[-1][1],
        "perplexity": 2 ** curve[-1][1],
        "curve": curve,
        "seconds": seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
        "bytes": len(train),
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(result))
    return result


def plot(path: Path, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Bits per byte against steps: mean and range over the seeds."""
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, mine in runs.items():
        plot_curves(axes, name, [run["curve"] for run in mine])
    axes.set(xlabel="step", ylabel="bits per byte on held-out files")
    axes.legend(frameon=False)
    save(figure, path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs and tables")
    parser.add_argument("--attention", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    runs = {
        name: [run_once(options.out, name, seed, options.steps) for seed in options.seeds]
        for name in options.attention
    }
    rows = []
    for name, mine in runs.items():
        perplexity = np.array([run["perplexity"] for run in mine])
        rows.append(
            {
                "attention": name,
                "perplexity": float(perplexity.mean()),
                "spread": float(perplexity.std(ddof=1)) if len(perplexity) > 1 else float("nan"),
                "bits": float(np.mean([run["bits"] for run in mine])),
                "seconds": float(np.median([run["seconds"] for run in mine])),
                "parameters": mine[0]["parameters"],
                "paper": PAPER.get(name, float("nan")),
            }
        )
    write_csv(options.out / "language_model.csv", rows)
    write_record(options.out / "language_model.json", steps=options.steps, runs=runs)
    plot(options.out / "language_model.png", runs)
    header = ["attention", "perplexity per byte", "bits per byte", "seconds", "FLT Table 1"]
    cells = [
        [
            row["attention"],
            f"{row['perplexity']:.3f} ± {row['spread']:.3f}",
            f"{row['bits']:.4f}",
            f"{row['seconds']:.0f}",
            f"{row['paper']:.1f}",
        ]
        for row in rows
    ]
    print(markdown(header, cells))
    if set(PAPER) <= set(runs):
        mine = [next(row["perplexity"] for row in rows if row["attention"] == name) for name in PAPER]
        held = all(a > b for a, b in pairwise(mine))
        print(f"the order {' > '.join(PAPER)} of Table 1 {'holds' if held else 'does not hold'}")


if __name__ == "__main__":
    main()
