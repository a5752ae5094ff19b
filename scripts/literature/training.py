"""Training loop of the comparisons on sequences, and their tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from molflt.data.progress import track
from scripts import results


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
        "value", the last one of ``evaluate``, "step_ms", the median time of a step, "parameters", trained numbers,
        and "curve", steps and values in turn.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, **adam)
    warm = max(1, int(warm_up * steps))

    def rate(step: int) -> float:
        return min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    curve, seconds = list[float](), []
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
            curve += [step, evaluate()]
    parameters = sum(p.numel() for p in model.parameters())
    step_ms = 1e3 * float(np.median(seconds))
    return {"value": curve[-1], "step_ms": step_ms, "parameters": parameters, "curve": curve}


def runs(
    out: Path, points: list[dict[str, Any]], judge: Callable[..., dict[str, Any]], steps: int
) -> dict[str, list[results.Row]]:
    """Train what runs.csv in a folder does not have; returns its rows by attention, those that were asked for."""
    path = out / "runs.csv"
    results.sweep(path, points, judge, {"steps": steps}, digits=8)
    found: dict[str, list[results.Row]] = {}
    for row in (results.find(results.read(path), **point) for point in points):
        assert row is not None
        found.setdefault(row["attention"], []).append(row)
    return found


def milliseconds(mine: list[results.Row]) -> float:
    """Median of the times of a step."""
    return float(np.median([float(row["step_ms"]) for row in mine]))


def mean_spread(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
