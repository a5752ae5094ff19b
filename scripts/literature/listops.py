"""Spectraformer Table 3 in miniature: ListOps at a sixteenth of the length, with several of its random features.

Trains one small encoder (Table 8: 2 layers, width 64, 2 heads of 32, feed-forward 128, mean pooling, batches of 32,
linear decay, no weight decay) with each kernel and with dense softmax, three seeds, on the same sequences of 32 to
128 tokens, and prints the accuracy on sequences that are not in the training set. Unlike the paper: 64 features and
not 128, sequences of 128 tokens and not 2,000, a learning rate of 1e-3 and not 1e-4, no dropout, the last step and
not the best one on a validation set. Batches have sequences of equal length only, so there is no padding to be seen
by attention or pooling. Finished runs are kept.

    python -m scripts.literature.listops --out runs/listops
    python -m scripts.literature.listops --out runs/listops --kernel oprf-orf oprf-fastfood --seeds 0 --steps 500
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from scripts import results
from scripts.literature import training
from scripts.literature.listops_data import VOCABULARY, Example, by_length, commonest, epoch, examples
from scripts.literature.sequence_model import SequenceTransformer, attention_layers

PAPER = {
    "oprf-fastfood": (37.55, 0.48),
    "oprf-mm": (38.08, 0.53),
    "posrf-mm": (37.06, 0.37),
    "oprf-orf": (38.34, 0.22),
    "saderf-qmc": (37.37, 0.38),
    "posrf-qmc": (37.11, 0.09),
    "saderf-mm": (37.10, 0.22),
    "saderf-orf": (37.10, 0.19),
    "oprf-qmc": (37.69, 0.62),
    "saderf-sgq": (37.11, 0.21),
    "saderf-fastfood": (36.02, 1.38),
    "oprf-sgq": (37.10, 0.23),
    "posrf-orf": (34.35, 5.96),
    "posrf-fastfood": (33.46, 3.70),
    "saderf-sorf": (33.30, 0.98),
    "posrf-sgq": (28.64, 7.54),
    "oprf-sorf": (27.91, 3.26),
    "posrf-sorf": (21.27, 6.65),
}
"""Per cent of ListOps, mean and spread over five seeds, Spectraformer Table 3."""
DEFAULT = ["posrf-orf", "oprf-orf", "oprf-mm", "oprf-fastfood", "saderf-qmc", "posrf-sorf", "softmax"]
DIM, HEADS, LAYERS, FFN, N_FEATURES, BATCH = 64, 2, 2, 128, 64, 32
DATA_SEED = 0
Batches = Callable[[torch.Generator | None], Iterator[tuple[Tensor, Tensor]]]
"""Inputs and labels of one epoch, in random order, or in a fixed one for None."""


def accuracy(model: nn.Module, batches: Batches) -> float:
    """Share of inputs that get the right label."""
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(inputs).argmax(dim=-1) == labels for inputs, labels in batches(None)])
    model.train()
    return float(right.to(torch.float64).mean())


def fit(
    model: nn.Module, train: Batches, test: Batches, steps: int, seed: int, label: str, **how: Any
) -> dict[str, Any]:
    """Train by cross-entropy; ``how`` as for :func:`training.fit`.

    Returns:
        "curve", (step, accuracy) ten times on the way, "accuracy" after the last step, "step_ms" (median).
    """
    # The order of the data depends on the seed alone: every attention sees the same batches.
    random = torch.Generator().manual_seed(seed)
    source = (batch for _ in count() for batch in train(random))

    def loss() -> Tensor:
        inputs, labels = next(source)
        # Over the full size also where a batch has less, so that every input of an epoch counts the same.
        return functional.cross_entropy(model(inputs), labels, reduction="sum") / BATCH

    found = training.fit(model, loss, lambda: accuracy(model, test), steps, label, warm_up=0.2, **how)
    return {**found, "accuracy": found["curve"][-1][1]}


def encoder(kernel: str, max_length: int, seed: int) -> SequenceTransformer:
    """The model of Table 8 with a kernel, or with softmax; equal weights for equal seeds where the shapes agree."""
    torch.manual_seed(seed)
    name, feature_map = ("softmax", "posrf-orf") if kernel == "softmax" else ("performer", kernel)
    layers = attention_layers(name, DIM, HEADS, LAYERS, (max_length,), False, N_FEATURES, 1, seed, feature_map)
    if kernel == "softmax":
        for layer in layers:
            # No random features here know of positions, so the reference must not either; the bias stays at zero.
            layer.get_submodule("bias").requires_grad_(False)
    return SequenceTransformer(layers, nn.Embedding(len(VOCABULARY), DIM), DIM, FFN, max_length, 10, pooled=True)


def batches(data: list[Example]) -> Batches:
    """Of BATCH sequences of equal length; in their fixed order, for testing, of all of a length at once."""
    groups = by_length(data)
    return lambda random: iter(groups.values()) if random is None else epoch(groups, BATCH, random)


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Accuracy of every kernel, mean and standard deviation, here and in the paper."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for shift, mean, spread, label in (-0.1, "accuracy", "spread", "here"), (0.1, "paper", "paper_spread", "Table 3"):
        places = np.arange(len(rows)) + shift
        axes.errorbar(places, [r[mean] for r in rows], [r[spread] for r in rows], fmt="o", capsize=3, label=label)
    axes.axhline(rows[0]["commonest"], color="0.5", linestyle=":", label="commonest digit")
    axes.axhline(rows[0]["operator"], color="0.5", linestyle="--", label="first operator only")
    axes.set_xticks(range(len(rows)), [row["kernel"] for row in rows], rotation=20)
    axes.set(ylabel="accuracy, %", xlim=(-0.5, len(rows) - 0.5))
    figure.legend(loc="outside upper center", ncols=4, frameon=False, fontsize="small")
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "runs and tables")
    parser.add_argument("--kernel", nargs="+", default=DEFAULT, choices=[*PAPER, "softmax"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--length", type=int, nargs=2, default=[32, 128], metavar=("MIN", "MAX"), help="in tokens")
    parser.add_argument("--size", type=int, nargs=2, default=[20_000, 2_000], metavar=("TRAIN", "TEST"))
    options = parser.parse_args()
    n_train, n_test = options.size
    data = examples(n_train + n_test, DATA_SEED, *options.length)
    train, test = data[:n_train], data[n_train:]
    sources = batches(train), batches(test)
    runs: dict[str, list[dict[str, Any]]] = {kernel: [] for kernel in options.kernel}
    for seed in options.seeds:
        for kernel, mine in runs.items():
            settings = {"steps": options.steps, "length": options.length, "size": options.size, "seed": seed}
            model, label = encoder(kernel, options.length[1], seed), f"{kernel}, seed {seed}"
            # Table 8: the rate rises in 1,000 of 5,000 steps and falls linearly; no weight decay.
            how = {"lr": 1e-3, "decay": lambda part: 1 - part, "weight_decay": 0.0}
            make = partial(fit, model, *sources, options.steps, seed, label, **how)
            mine.append(training.kept(options.out / kernel / str(seed), settings, make))
    blind, by_operator = (100 * share for share in commonest(train, test))
    rows = []
    for kernel, mine in runs.items():
        published, paper_spread = PAPER.get(kernel, (math.nan, math.nan))
        each = [100 * run["accuracy"] for run in mine]
        mean, spread = training.mean_spread(each)
        seconds = float(np.median([run["step_ms"] for run in mine])) / 1e3
        row = {"kernel": kernel, "seeds": len(mine), "steps": options.steps, "accuracy": mean, "spread": spread}
        row |= {"seconds_per_step": seconds, "commonest": blind, "operator": by_operator}
        row[results.EACH] = each
        rows.append(row | {"paper": published, "paper_spread": paper_spread})
    results.record(options.out / "listops.csv", rows, {"length": options.length, "size": options.size})
    plot(options.out / "listops.png", rows)
    print(results.table(rows))
    print(f"the commonest digit: {blind:.1f}%; the commonest one for the first operator: {by_operator:.1f}%")


if __name__ == "__main__":
    main()
