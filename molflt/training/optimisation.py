"""How the weights move: the optimiser and which parameters decay, the schedules, the moving average."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from molflt.training.config import OptimiserConfig
from molflt.training.muon import Muon


def make_optimiser(model: nn.Module, config: OptimiserConfig) -> Optimizer:
    """Adam, AdamW or Muon over the parameters of a model."""
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "muon": Muon}[config.name]
    groups = _parameter_groups(model, config.decay, config.name == "muon")
    # One pass over all tensors: on small models, the default's many small operations take a fifth of a step.
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _parameter_groups(model: nn.Module, weight_decay: float, orthogonal: bool) -> list[dict[str, Any]]:
    """Weight decay is for matrices only, and for no embedding; with ``orthogonal``, Muon is for most of them."""
    embeddings = {p for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in parameters if p.dim() >= 2 and p not in embeddings]
    kept = [p for p in parameters if p.dim() < 2 or p in embeddings]
    groups: list[dict[str, Any]] = [{"params": kept, "weight_decay": 0.0}]
    if orthogonal:
        # A single row or column has one direction only.
        matrices = [p for p in decayed if p.dim() == 2 and min(p.shape) > 1]
        groups.append({"params": matrices, "weight_decay": weight_decay, "orthogonal": True})
        decayed = [p for p in decayed if p.dim() != 2 or min(p.shape) == 1]
    return [{"params": decayed, "weight_decay": weight_decay}, *groups]


def learning_rate_factor(step: int, warmup_steps: int, total_steps: int, shape: Literal["linear", "cosine"]) -> float:
    """Rise linearly from zero over ``warmup_steps``, then decay to zero at ``total_steps``."""
    warmup_steps = warmup(warmup_steps, total_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(total_steps - warmup_steps, 1))
    return 1 - done if shape == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def warmup(warmup_steps: int, total_steps: int) -> int:
    """Steps of the warm-up: those asked for, and at most half of all."""
    return min(warmup_steps, max(total_steps // 2, 1))


def auxiliary_weight(step: int, total_steps: int, start: float, end: float) -> float:
    """Go linearly from ``start`` to ``end`` over the run (15 to 1 in 3D-Graphormer, arXiv 2203.04810)."""
    done = min(1.0, step / max(total_steps, 1))
    return start + (end - start) * done


def move_averages(
    averages: Iterable[Tensor], weights: Iterable[Tensor], n_averaged: int, decay: float, good: Tensor
) -> None:
    """Make one step of the exponential moving average, in place, with a decay that rises to ``decay``.

    A short run would otherwise still remember its first weights: (1+n)/(10+n) is the warm-up of TensorFlow's
    ``ExponentialMovingAverage``. Lightning's ``EMAWeightAveraging`` has no warm-up and forgets the first weights.
    ``good`` is a scalar on the device of the weights: where it is false, nothing moves.
    """
    decay = min(decay, (1 + n_averaged) / (10 + n_averaged))
    averages = list(averages)
    with torch.no_grad():
        steps = torch._foreach_sub(list(weights), averages)
        torch._foreach_mul_(steps, good.to(averages[0].dtype) * (1 - decay))
        torch._foreach_add_(averages, steps)
