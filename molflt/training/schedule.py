"""Learning rate, loss weight and weight average as functions of the step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn


def learning_rate_factor(step: int, warmup_steps: int, total_steps: int, shape: Literal["linear", "cosine"]) -> float:
    """Linear rise from zero over ``warmup_steps``, then decay to zero at ``total_steps``."""
    warmup_steps = min(warmup_steps, max(total_steps // 2, 1))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(total_steps - warmup_steps, 1))
    return 1 - done if shape == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def auxiliary_weight(step: int, total_steps: int, start: float, end: float) -> float:
    """Linear from ``start`` to ``end`` over the run (15 to 1 in 3D-Graphormer, arXiv 2203.04810)."""
    done = min(1.0, step / max(total_steps, 1))
    return start + (end - start) * done


def move_averages(averages: Iterable[Tensor], weights: Iterable[Tensor], n_averaged: int, decay: float) -> None:
    """One step of the exponential moving average, in place, with a decay that rises to ``decay``.

    A short run would otherwise still remember its first weights: (1+n)/(10+n) is the warm-up of TensorFlow's
    ``ExponentialMovingAverage``.
    """
    update = get_ema_multi_avg_fn(min(decay, (1 + n_averaged) / (10 + n_averaged)))
    update(list(averages), list(weights), n_averaged)
