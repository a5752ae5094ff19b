"""FLT Table 1 in miniature: a byte-level language model on the sources of Python's standard library.

Trains the same small causal transformer with Performer, log-linear Performer, FLT with a Gaussian mixture and FLT
with local RPE, and with dense softmax and a relative bias for reference; three seeds. Prints the perplexity per byte
on held-out files, and whether the paper's order (31.1 > 30.6 > 30.3 > 30.1) holds. Finished runs are kept.

    python -m scripts.literature.language_model --out runs/language          # half an hour on one core
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file
from torch import nn

from molflt.files import atomic_file
from scripts import results
from scripts.literature.byte_text import LENGTH, fit
from scripts.literature.sequence_model import SequenceTransformer, attention_layers
from scripts.literature.training import kept, mean_spread

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
    folder = folder / name / str(seed)

    def make() -> dict[str, Any]:
        model = language_model(name, seed)
        found = fit(model, steps, seed, f"{name}, seed {seed}")
        with atomic_file(folder / "model.safetensors") as temporary:
            # An RPE shared by the layers is one tensor under several names.
            save_file({key: value.clone() for key, value in model.state_dict().items()}, temporary)
        bits = found["curve"][-1][1]
        return {
            **found,
            "bits": bits,
            "perplexity": 2**bits,
            "parameters": sum(p.numel() for p in model.parameters()),
        }

    return kept(folder, {"attention": name, "seed": seed, "steps": steps}, make)


def plot(path: Path, runs: dict[str, list[dict[str, Any]]]) -> None:
    """Bits per byte against steps: mean and range over the seeds."""
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, mine in runs.items():
        # (seeds, steps, 2): all have the same steps.
        curves = np.array([run["curve"] for run in mine])
        steps, values = curves[0, :, 0], curves[:, :, 1]
        axes.plot(steps, values.mean(axis=0), label=name)
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.2)
    axes.set(xlabel="step", ylabel="bits per byte on held-out files")
    axes.legend(frameon=False)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "runs and tables")
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
        perplexity, spread = mean_spread([run["perplexity"] for run in mine])
        rows.append(
            {
                "attention": name,
                "perplexity": perplexity,
                "spread": spread,
                "bits": float(np.mean([run["bits"] for run in mine])),
                "seconds": float(np.median([run["step_ms"] for run in mine])) * options.steps / 1e3,
                "parameters": mine[0]["parameters"],
                "paper": PAPER.get(name, math.nan),
                results.EACH: [run["perplexity"] for run in mine],
            }
        )
    results.record(options.out / "language_model.csv", rows, {"steps": options.steps})
    plot(options.out / "language_model.png", runs)
    print(results.table(rows))
    if set(PAPER) <= set(runs):
        means = [next(row["perplexity"] for row in rows if row["attention"] == name) for name in PAPER]
        held = all(a > b for a, b in pairwise(means))
        print(f"the order {' > '.join(PAPER)} of Table 1 {'holds' if held else 'does not hold'}")


if __name__ == "__main__":
    main()
