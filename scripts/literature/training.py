"""The training loops of the comparisons, and the results of runs that are finished."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from molflt.data.progress import track
from molflt.files import atomic_file
from scripts.literature.optimisers import evolution, shipped


def cosine(part: float) -> float:
    """From one to zero."""
    return 0.5 * (1 + math.cos(math.pi * part))


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    evaluate: Callable[[], float],
    steps: int,
    label: str,
    lr: float,
    warm_up: float,
    decay: Callable[[float], float] = cosine,
    **adam: Any,
) -> dict[str, Any]:
    """AdamW with gradients of norm one at most, a linear warm-up and a decay.

    Args:
        model: what is trained.
        loss: of the next batch.
        evaluate: what is noted ten times on the way, and after the last step.
        steps: of the optimiser.
        label: of the progress bar.
        lr: peak learning rate.
        warm_up: share of the steps in which the rate rises.
        decay: of the rate, from a share of the steps that are left after that.
        adam: further arguments of AdamW.

    Returns:
        "curve", (step, value) of ``evaluate``, and "step_ms", the median time of a step.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, **adam)
    warm = max(1, int(warm_up * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm, decay(max(0, step - warm) / max(1, steps - warm)))
    )
    curve, seconds = [], []
    for step in track(range(1, steps + 1), label, total=steps):
        start = time.perf_counter()
        found = loss()
        optimiser.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        seconds.append(time.perf_counter() - start)
        if step % max(1, steps // 10) == 0 or step == steps:
            curve.append((step, evaluate()))
    return {"curve": curve, "step_ms": 1e3 * float(np.median(seconds))}


def meta_train(
    build: Callable[[str, int], nn.Module],
    tasks: Callable[[Any], Any],
    names: Iterable[str],
    seeds: Sequence[int],
    iterations: int,
    path: Path,
) -> None:
    """Evolve learned optimisers; what is finished is kept beside ``path``, which gets all of them.

    Args:
        build: an optimiser from its name and a seed.
        tasks: of an optimiser, as :func:`~scripts.literature.optimisers.evolution.evolve` takes them.
        names: of the optimisers.
        seeds: of each.
        iterations: of each.
        path: of all weights.
    """
    models = {}
    for seed, name in product(seeds, names):
        key = f"{name}-{seed}"
        model = models[key] = build(name, seed)
        part = path.with_name(f"{key}.safetensors")
        if part.exists():
            shipped.load({key: model}, part)
            continue
        for _ in track(evolution.evolve(model, tasks(model), iterations, seed), key, total=iterations):
            pass
        shipped.save({key: model}, part)
    shipped.save(models, path)


def kept(folder: Path, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of an earlier run in a folder, or of ``make`` with the settings, which is then written there.

    Raises:
        SystemExit: the earlier run had other settings.
    """
    path = folder / "result.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if any(found.get(key) != value for key, value in settings.items()):
            raise SystemExit(f"error: {path} was made with other settings; choose another --out, or remove it")
        return found
    folder.mkdir(parents=True, exist_ok=True)
    result = settings | make()
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(result), encoding="utf-8")
    return result


def mean_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
