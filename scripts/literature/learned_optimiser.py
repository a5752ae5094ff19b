"""FLT Fig. 3 right in miniature: a population that has learnt to optimise, with and without a mask over positions.

Sixteen members take 50 steps on functions in R^d; at each step a member asks for a value and a gradient, a call each,
so a run is 1,600 calls (1,632 with the first points). Four memories of equal size were meta-trained alike, on
quadratics, Rosenbrock's function and sums of random waves: attention between members with an FLT mask over their
positions, the same without (Performer), an LSTM in each member, and a feed-forward layer. Rastrigin's, Ackley's and
Griewank's functions, shifted, turned and scaled at random, were never seen. Adam (a gradient a call, its values free)
and CMA-ES (a value a call) have been tuned for each d on the training functions; "best here" is the Adam that nobody
knows beforehand, with the rate and the number of starts that are best on the functions it is tested on. Needs cma.

    python -m scripts.literature.learned_optimiser --out runs/learned                  # the shipped weights
    python -m scripts.literature.learned_optimiser --out runs/learned --meta-train     # ten minutes on one core
    python -m scripts.literature.learned_optimiser --out runs/learned --weights runs/learned/population.safetensors
    python -m scripts.literature.learned_optimiser --out runs/learned --tune           # prints TUNED
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from molflt.data.progress import track
from scripts import results
from scripts.literature import optimiser_baselines as baselines
from scripts.literature.optimisers import evolution, landscapes, meta_training, shipped
from scripts.literature.optimisers.memories import MEMORIES
from scripts.literature.training import meta_train

WEIGHTS = shipped.FOLDER / "population.safetensors"
SHIPPED_SEEDS = (0, 1)
"""Of meta-training."""
ITERATIONS = 150
CALLS = meta_training.CALLS_PER_STEP * (meta_training.STEPS + 1)
FAMILIES, DIMS = tuple(landscapes.TESTING), (2, 10, 30)
TUNED: dict[int, dict[str, Any]] = {
    2: {"rate": 1.0, "starts": 1, "decay": False, "sigma": 0.5},
    10: {"rate": 3.0, "starts": 1, "decay": True, "sigma": 1.5},
    30: {"rate": 3.0, "starts": 1, "decay": True, "sigma": 1.5},
}
"""By ``--tune``."""
METHODS = (*MEMORIES, "Adam", "Adam, best here", "CMA-ES", "random")
FOUND = 1e-8
"""At or below it a minimum counts as found: the rest is rounding."""


def learned_curves(
    model: meta_training.StepNetwork, functions: list[landscapes.Landscapes], dim: int, seed: int
) -> Tensor:
    """The best value after every call, (CALLS + 1, batch)."""
    generator = torch.Generator().manual_seed(seed)
    n = sum(len(f.shift) for f in functions)
    x = landscapes.start(n, meta_training.MEMBERS, dim, generator)
    curve = meta_training.run(model, functions, x, meta_training.STEPS, generator)
    return baselines.spread_over_calls(curve, meta_training.CALLS_PER_STEP, CALLS)


def chosen_seeds(models: dict[str, nn.Module], seeds: list[int], dims: list[int]) -> dict[str, int]:
    """For each memory the seed of meta-training that ranks best on new functions of the training families."""
    scores = {}
    for name in MEMORIES:
        total = torch.zeros(len(seeds))
        for dim in dims:
            functions = landscapes.training_batch(16, dim, torch.Generator().manual_seed(10_000 + dim))
            ends = [learned_curves(models[f"{name}-{seed}"], functions, dim, dim) for seed in seeds]
            total += evolution.ranks(torch.stack(ends, dim=1), (1.0,)) if len(seeds) > 1 else 0.0
        scores[name] = seeds[int(total.argmax())]
    return scores


def tune(dims: list[int]) -> None:
    """Print the settings of Adam and CMA-ES with the best mean rank on the training families."""
    for dim in dims:
        functions = landscapes.training_batch(12, dim, torch.Generator().manual_seed(20_000 + dim))
        grid = list(product(baselines.RATES, baselines.STARTS, (False, True)))
        ends = [baselines.adam(functions, dim, CALLS, *settings, seed=dim)[-1] for settings in grid]
        rate, starts, decay = grid[int(evolution.ranks(torch.stack(ends)[None], (1.0,)).argmax())]
        singles = [f for k in range(3) for f in landscapes.training_batch(1, dim, torch.Generator().manual_seed(k))]
        found = [
            torch.cat([baselines.cma_es(f, dim, CALLS, sigma, k)[-1] for k, f in enumerate(singles)])
            for sigma in baselines.SIGMAS
        ]
        sigma = baselines.SIGMAS[int(evolution.ranks(torch.stack(found)[None], (1.0,)).argmax())]
        print(f"    {dim}: {{'rate': {rate}, 'starts': {starts}, 'decay': {decay}, 'sigma': {sigma}}},")


def curves_of(method: str, model: nn.Module | None, family: str, dim: int, seeds: int) -> Tensor:
    """The best value after every call on ``seeds`` functions of a family, in the function's own unit."""
    functions = landscapes.test_batch(family, seeds, dim, seed=0)
    if model is not None:
        found = learned_curves(model, [functions], dim, seed=1)
    elif method == "Adam":
        mine = TUNED[dim]
        found = baselines.adam([functions], dim, CALLS, mine["rate"], mine["starts"], mine["decay"], seed=1)
    elif method == "Adam, best here":
        grid = product(baselines.HINDSIGHT_RATES, baselines.HINDSIGHT_STARTS)
        all_curves = [baselines.adam([functions], dim, CALLS, *settings, decay=True, seed=1) for settings in grid]
        found = min(all_curves, key=lambda curve: float((curve[-1] / functions.factor[:, 0]).median()))
    elif method == "CMA-ES":
        found = baselines.cma_es(functions, dim, CALLS, TUNED[dim]["sigma"], seed=1)
    else:
        found = baselines.random_search(functions, dim, CALLS, seed=1)
    return (found / functions.factor[:, 0]).clamp(min=FOUND)


def plot(path: Path, curves: dict[tuple[str, int, str], np.ndarray]) -> None:
    """Median and quartiles against calls."""
    families, dims = (list(dict.fromkeys(key[k] for key in curves)) for k in (0, 1))
    figure = Figure(figsize=(4 * len(dims), 2.9 * len(families)), layout="constrained")
    axes = figure.subplots(len(families), len(dims), squeeze=False)
    for (family, dim, method), values in curves.items():
        panel = axes[families.index(family)][dims.index(dim)]
        calls = np.flatnonzero(np.isfinite(values).all(axis=1))
        low, median, high = np.percentile(values[calls], [25, 50, 75], axis=1)
        k = METHODS.index(method)
        style = "-" if method in MEMORIES else "--"
        panel.plot(calls, median, style, color=f"C{k}", label=method)
        panel.fill_between(calls, low, high, color=f"C{k}", alpha=0.12, linewidth=0)
        panel.set(yscale="log", title=f"{family}, d = {dim}")
    for row in axes:
        row[0].set_ylabel("best value")
    for panel in axes[-1]:
        panel.set_xlabel("calls")
    axes[0][0].legend(frameon=False, fontsize=7)
    results.save(figure, path)


def main() -> None:
    """Command line."""
    parser = results.parser(__doc__, "weights, figure and table")
    parser.add_argument("--meta-train", action="store_true", help="train all memories; results come with --weights")
    parser.add_argument("--tune", action="store_true", help="tune Adam and CMA-ES on the training functions")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of meta-training")
    parser.add_argument("--meta-seeds", type=int, nargs="+", default=list(SHIPPED_SEEDS))
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--seeds", type=int, default=50, help="functions of each family")
    parser.add_argument("--dims", type=int, nargs="+", default=list(DIMS), choices=list(DIMS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    if options.meta_train:
        tasks, path = partial(meta_training.training_tasks, batch=4), options.out / WEIGHTS.name
        meta_train(meta_training.build, tasks, MEMORIES, options.meta_seeds, options.iterations, path)
        return
    # Otherwise what is left of a minimum is rounding.
    torch.set_default_dtype(torch.float64)
    if options.tune:
        tune(options.dims)
        return
    test(options)


def test(options: argparse.Namespace) -> None:
    """The figure, and two tables of the values at the end: of all methods, and of all meta-trained networks."""
    seeds: list[int] = options.meta_seeds
    models = {f"{name}-{seed}": meta_training.build(name, seed) for name, seed in product(MEMORIES, seeds)}
    shipped.load(models, options.weights)
    best_seed = chosen_seeds(models, seeds, options.dims)
    rows, by_seed, curves, seconds = [], [], {}, dict.fromkeys(METHODS, 0.0)
    cells = list(product(FAMILIES, options.dims))
    for family, dim in track(cells, "learned optimiser", total=len(cells)):
        row: dict[str, Any] = {"function": family, "d": dim}
        ends: dict[str, Tensor] = {}
        for method in options.methods:
            for seed in seeds if method in MEMORIES else (0,):
                begun, key = time.process_time(), f"{method}-{seed}"
                found = curves_of(method, models.get(key), family, dim, options.seeds)
                seconds[method] += time.process_time() - begun
                ends[key] = found[-1]
                if seed == best_seed.get(method, 0):
                    curves[family, dim, method] = found.numpy()
                    row[method] = np.percentile(found[-1].numpy(), [50, 25, 75]).tolist()
        rows.append(row)
        kept = [name for name in MEMORIES if name in options.methods]
        medians = {name: [float(ends[f"{name}-{seed}"].quantile(0.5)) for seed in seeds] for name in kept}
        lower = []
        if {"flt", "performer"} <= set(kept):
            pairs = [(ends[f"flt-{a}"], ends[f"performer-{b}"]) for a, b in product(seeds, seeds)]
            lower = [float((0.5 + 0.5 * (b - a).sign()).mean()) for a, b in pairs]
        by_seed.append({"function": family, "d": dim} | medians | {"flt_below_performer": lower})
    conditions = {"calls": CALLS, "members": meta_training.MEMBERS, "seeds": options.seeds}
    chosen = {f"meta_seed_{name}": seed for name, seed in best_seed.items()}
    results.record(options.out / "learned_optimiser.csv", rows, conditions | chosen, digits=3)
    meta = {"meta_seeds": " ".join(map(str, seeds))}
    results.record(options.out / "learned_optimiser_memories.csv", by_seed, conditions | meta, digits=3)
    plot(options.out / "learned_optimiser.png", curves)
    print(results.table(rows))
    print(results.table(by_seed))
    print(", ".join(f"{method} {spent:.1f} s" for method, spent in seconds.items()))


if __name__ == "__main__":
    main()
