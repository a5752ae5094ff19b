"""Training loop of the comparisons on sequences, and results of runs that are finished."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from molflt.data.progress import track
from molflt.files import atomic_file


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    evaluate: Callable[[], float],
    steps: int,
    label: str,
    lr: float,
    warm_up: float,
    **adam: Any,
) -> dict[str, Any]:
    """Train by AdamW with gradients of norm one at most, a linear warm-up and a cosine.

    Args:
        model: to be trained.
        loss: of the next batch.
        evaluate: what is noted ten times on the way, and after the last step.
        steps: of the optimiser.
        label: of the progress bar.
        lr: peak learning rate.
        warm_up: share of the steps in which the rate rises.
        adam: further arguments of AdamW.

    Returns:
        "curve", (step, value) of ``evaluate``, and "step_ms", the median time of a step.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, **adam)
    warm = max(1, int(warm_up * steps))

    def rate(step: int) -> float:
        return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
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
    return {
        "curve": curve,
        "step_ms": 1e3 * float(np.median(seconds)),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def kept(folder: Path, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of an earlier run in a folder, or of ``make``, which is then written there.

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
