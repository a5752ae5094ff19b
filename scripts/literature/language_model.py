"""FLT Table 1 in miniature: language models of bytes of Python's standard library.

Trains the same small causal transformer with Performer, log-linear Performer, FLT with a Gaussian mixture and FLT
with local RPE, and with dense softmax and a relative bias for reference; three seeds. The table has the perplexity
per byte on held-out files; the paper's order is 31.1 > 30.6 > 30.3 > 30.1. Finished runs are kept.

    python -m scripts.literature.language_model --out runs/language          # half an hour on one core
"""

from __future__ import annotations

import math
import sysconfig
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from scripts import results
from scripts.literature import training
from scripts.literature.sequence_model import SequenceTransformer, attention_layers

PAPER = {"performer": 31.1, "log-linear": 30.6, "flt-gaussian": 30.3, "flt-local": 30.1}
"""Validation perplexity per word on WikiText-103, FLT Table 1."""
NAMES = [*PAPER, "softmax"]
DIM, HEADS, LAYERS, FFN = 96, 4, 2, 192
N_FEATURES, N_FREQUENCIES = 32, 16
LENGTH, BATCH, N_VALIDATION = 128, 16, 128
SKIPPED = {"test", "tests", "idlelib", "site-packages", "turtledemo", "encodings", "pydoc_data", "lib2to3"}
"""Folders of tests, tables and third parties."""


def corpus() -> tuple[Tensor, Tensor]:
    """Training and validation text, uint8: every tenth file by path is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in root.rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts[:-1]))
    parts = [bytearray(), bytearray()]
    for index, path in enumerate(files):
        parts[index % 10 == 9] += path.read_bytes()
    train, validation = (torch.frombuffer(part, dtype=torch.uint8) for part in parts)
    return train, validation


def windows(text: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """LENGTH bytes from each start, and the bytes behind each of them; (batch, LENGTH) int64."""
    bytes_ = text[start[:, None] + torch.arange(LENGTH + 1)].to(torch.int64)
    return bytes_[:, :-1], bytes_[:, 1:]


def bits_per_byte(model: nn.Module, text: Tensor) -> float:
    """Mean over N_VALIDATION windows spread evenly over the text."""
    starts = torch.linspace(0, len(text) - LENGTH - 2, N_VALIDATION).to(torch.int64)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for part in starts.split(BATCH):
            inputs, targets = windows(text, part)
            total += float(functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum"))
    model.train()
    return total / (N_VALIDATION * LENGTH * math.log(2))


def judge(attention: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one model: bits per byte, and the other columns of :func:`training.fit`."""
    torch.manual_seed(seed)
    layers = attention_layers(attention, DIM, HEADS, LAYERS, (LENGTH,), True, N_FEATURES, N_FREQUENCIES, seed)
    model = SequenceTransformer(layers, nn.Embedding(256, DIM), DIM, FFN, LENGTH, 256, pooled=False)
    train, validation = corpus()
    # Windows depend on the seed alone: every attention sees the same text in the same order.
    random = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        inputs, targets = windows(train, torch.randint(len(train) - LENGTH - 1, (BATCH,), generator=random))
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    how: dict[str, Any] = {"lr": 3e-3, "warm_up": 0.1, "betas": (0.9, 0.98), "weight_decay": 0.01}
    label = f"{attention}, seed {seed}"
    return training.fit(model, loss, lambda: bits_per_byte(model, validation), steps, label, **how)


def plot(path: Path, runs: dict[str, list[results.Row]]) -> None:
    """Bits per byte against steps: mean and range over the seeds."""
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, mine in runs.items():
        # (seeds, steps, 2): all have the same steps.
        curves = np.array([results.numbers(run["curve"]) for run in mine]).reshape(len(mine), -1, 2)
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
    if options.quick:
        options.seeds, options.steps = [0], 2
    points = [{"attention": name, "seed": seed} for seed, name in product(options.seeds, options.attention)]
    runs = training.runs(options.out, points, partial(judge, steps=options.steps), options.steps)
    rows = []
    for name, mine in runs.items():
        each = [2 ** float(run["value"]) for run in mine]
        perplexity, spread = training.mean_spread(each)
        row = {"attention": name, "perplexity": perplexity, "spread": spread, "bits": float(np.mean(np.log2(each)))}
        row |= {"seconds": training.milliseconds(mine) * options.steps / 1e3, "parameters": mine[0]["parameters"]}
        rows.append(row | {"paper": PAPER.get(name, math.nan), results.EACH: each})
    results.record(options.out / "language_model.csv", rows, {"steps": options.steps})
    plot(options.out / "language_model.png", runs)
    print(results.table(rows))


if __name__ == "__main__":
    main()
