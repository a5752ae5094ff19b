"""FLT Fig. 3 left in miniature: an optimiser of single parameters with a memory of up to 2,000 steps.

What a parameter remembers of its past gradients is read through FLT's Fourier RPE over steps, through the same sums
without an RPE, by a GRU, or not at all. All four were meta-trained alike, on runs of 100 and of 600 steps of networks
with 6 to 12 hidden units on Gaussian blobs. The test has 2,000 steps of a network with 16 hidden units on the digits
of scikit-learn, which it needs: other data, another width, and more than three times the steps. Adam's rate has been
tuned on the networks of meta-training, over 2,000 steps; besides there is the rate that is best on the digits
themselves, which nobody knows beforehand.

    python -m scripts.literature.learned_optimiser_time --out runs/learned_time                 # the shipped weights
    python -m scripts.literature.learned_optimiser_time --out runs/learned_time --meta-train    # ten minutes
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from molflt.data.progress import track
from scripts import results
from scripts.literature.digits import N_TRAIN, images
from scripts.literature.optimisers import history, networks, shipped
from scripts.literature.training import meta_train

WEIGHTS = shipped.FOLDER / "history.safetensors"
META_SEEDS = (0,)
ITERATIONS, META_STEPS, META_TASKS = 50, (100, 100, 600), 2
RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
WINDOW = 50
"""Steps over which the loss of the batches is averaged."""


def tuned_rate(steps: int) -> float:
    """The rate of Adam with the lowest mean loss over the last tenth, on networks as in meta-training."""
    generator, total = torch.Generator().manual_seed(12345), torch.zeros(len(RATES))
    for _ in range(4):
        shape, draw = networks.training_tasks(4, generator)
        theta = shape.start(4, generator)
        losses, _ = history.adam(shape, draw, theta, steps, generator, torch.tensor(RATES))
        total += losses[-steps // 10 :].mean(dim=(0, 2))
    return RATES[int(total.argmin())]


def smooth(losses: Tensor, window: int) -> np.ndarray:
    """Means over windows: (steps, runs) → (steps / window, runs)."""
    return losses[: len(losses) // window * window].unflatten(0, (-1, window)).mean(dim=1).numpy()


def plot(path: Path, curves: dict[str, np.ndarray], window: int) -> None:
    """Median and quartiles of the loss against steps."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for k, (name, values) in enumerate(curves.items()):
        steps = window * (np.arange(len(values)) + 1)
        low, median, high = np.percentile(values, [25, 50, 75], axis=1)
        axes.plot(steps, median, "--" if name.startswith("Adam") else "-", color=f"C{k}", label=name)
        axes.fill_between(steps, low, high, color=f"C{k}", alpha=0.15, linewidth=0)
    axes.axvline(max(META_STEPS), color="grey", linewidth=0.8, linestyle=":")
    axes.set(yscale="log", xlabel="step", ylabel=f"training loss, mean of {window} steps", title="digits")
    axes.legend(frameon=False, fontsize=8)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "weights, figure and table")
    parser.add_argument("--meta-train", action="store_true", help="train; results come with --weights")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of meta-training")
    parser.add_argument("--meta-seeds", type=int, nargs="+", default=list(META_SEEDS))
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--seeds", type=int, default=5, help="networks on the digits")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    if options.meta_train:
        runs = partial(history.training_runs, tasks=META_TASKS, steps=META_STEPS)
        path = options.out / WEIGHTS.name
        meta_train(history.HistoryOptimiser, runs, history.HISTORIES, options.meta_seeds, options.iterations, path)
        return
    pixels, digits = images()
    pixels = pixels.flatten(1)
    shape = networks.Shape(pixels.shape[1], 16, 10, relu=True)
    draw = networks.images(pixels[:N_TRAIN], digits[:N_TRAIN], options.seeds)
    start = shape.start(options.seeds, torch.Generator().manual_seed(1))
    window = min(WINDOW, max(1, options.steps // 10))
    rows, curves = [], {}

    def note(name: str, losses: Tensor, theta: Tensor, **more: Any) -> None:
        """A row and a curve of runs, losses (steps, seeds) and their parameters (seeds, parameters)."""
        curves[name] = smooth(losses, window)
        with torch.no_grad():
            right = shape.logits(theta, pixels[N_TRAIN:]).argmax(dim=-1) == digits[N_TRAIN:]
        accuracy = 100 * right.to(torch.float64).mean(dim=-1)
        row: dict[str, Any] = {"optimiser": name}
        for step in (options.steps // 10, options.steps // 2, options.steps):
            row[f"loss_{step}"] = float(np.median(curves[name][step // window - 1]))
        low, high = np.percentile(curves[name][-1], [25, 75])
        row |= {"low": float(low), "high": float(high), "accuracy": float(accuracy.median())}
        if len(options.meta_seeds) > 1:
            row["other_meta_seeds"] = None
        rows.append(row | more | {results.EACH: curves[name][-1].tolist()})

    for name in track(history.HISTORIES, "learned optimisers", total=len(history.HISTORIES)):
        mine = {seed: history.HistoryOptimiser(name, seed) for seed in options.meta_seeds}
        shipped.load({f"{name}-{seed}": model for seed, model in mine.items()}, options.weights)
        ends = {}
        for seed, model in mine.items():
            random = torch.Generator().manual_seed(2)
            losses, theta = history.run(model, shape, draw, start, options.steps, random)
            ends[seed] = losses[:, 0], theta[0]
        first, *others = options.meta_seeds
        more = [float(np.median(smooth(ends[seed][0], window)[-1])) for seed in others]
        note(name, *ends[first], **({"other_meta_seeds": more} if more else {}))
    losses, theta = history.adam(
        shape, draw, start, options.steps, torch.Generator().manual_seed(2), torch.tensor(RATES)
    )
    best = RATES[int(np.argmin([np.median(smooth(losses[:, k], window)[-1]) for k in range(len(RATES))]))]
    for rate, why in ((tuned_rate(options.steps), "tuned"), (best, "best here")):
        k = RATES.index(rate)
        note(f"Adam {rate:g}, {why}", losses[:, k], theta[k])
    conditions = {
        "steps": options.steps,
        "seeds": options.seeds,
        "meta_steps": " ".join(map(str, META_STEPS)),
        "window": window,
    }
    results.record(options.out / "learned_optimiser_time.csv", rows, conditions, digits=3)
    plot(options.out / "learned_optimiser_time.png", curves, window)
    print(results.table(rows))


if __name__ == "__main__":
    main()
