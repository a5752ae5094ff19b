"""Motion of the weights: Muon and its parameters, the schedules, the moving average."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from molflt.training.config import OptimiserConfig


def make_optimiser(model: nn.Module, config: OptimiserConfig) -> Optimizer:
    """Adam, AdamW or Muon over the parameters of a model."""
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "muon": Muon}[config.name]
    groups = _parameter_groups(model, config.decay, config.name == "muon")
    # One pass over all tensors: on small models, the default's many small operations take a fifth of a step.
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _parameter_groups(model: nn.Module, weight_decay: float, orthogonal: bool) -> list[dict[str, Any]]:
    """Group parameters: only matrices decay, no embedding; ``orthogonal`` gives most to Muon."""
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
    """Go linearly from ``start`` to ``end`` over the run, as 3D-Graphormer (arXiv 2203.04810)."""
    done = min(1.0, step / max(total_steps, 1))
    return start + (end - start) * done


def move_averages(
    averages: Iterable[Tensor], weights: Iterable[Tensor], n_averaged: int, decay: float, good: Tensor
) -> None:
    """Move the exponential average one step, in place, with a decay that rises to ``decay``.

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


class Muon(torch.optim.AdamW):
    """Muon for parameter groups with ``orthogonal=True``, AdamW for others.

    Jordan et al. 2024, kellerjordan.github.io/posts/muon:

        M ← μM + (1 − μ)G,   N = (1 − μ)G + μM,   W ← (1 − lr·wd) W − 0.2·√max(m, n)·lr·UVᵀ,   N = UΣVᵀ

    Every direction of a matrix moves as far as every other, where the gradient is of few. The factor 0.2·√max(m, n)
    makes an element move as far as with AdamW, so that rates and decays mean the same (Liu et al. 2025, arXiv
    2502.16982). UVᵀ is approximate: five steps of a Newton–Schulz iteration bring all singular values near one.

    The options are those of AdamW, for the other groups; its ``lr`` and ``weight_decay`` are for all.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], momentum: float = 0.95, **options: Any) -> None:
        super().__init__(groups, **options)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all groups; see :class:`torch.optim.Optimizer`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        aside: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            if group.get("orthogonal"):
                given = [(p, p.grad) for p in group["params"] if p.grad is not None]
                self._move(given, group["lr"], group["weight_decay"])
                aside += given
        # AdamW passes over parameters without a gradient.
        for parameter, _ in aside:
            parameter.grad = None
        super().step()
        for parameter, gradient in aside:
            parameter.grad = gradient
        return loss

    def _move(self, given: list[tuple[Tensor, Tensor]], rate: float, decay: float) -> None:
        alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
        for parameter, gradient in given:
            alike.setdefault(tuple(parameter.shape), []).append((parameter, gradient))
        # As AdamW's fused kernel does, leave everything as it is where a flag is one.
        flag = getattr(self, "found_inf", None)
        # Matrices of one shape are iterated at once: on small models, many small operations take most of the time.
        for shape, pairs in alike.items():
            parameters, gradients = (list(some) for some in zip(*pairs, strict=True))
            averages = [self._momentum(parameter) for parameter in parameters]
            if flag is not None:
                gradients = list(torch.where(flag > 0, torch.stack(averages), torch.stack(gradients)).unbind())
            torch._foreach_lerp_(averages, gradients, 1 - self.momentum)
            steps = orthogonal_factor(torch.stack(torch._foreach_lerp(gradients, averages, self.momentum)))
            good = 1.0 if flag is None else 1 - flag.to(steps.dtype)
            torch._foreach_mul_(parameters, 1 - good * (rate * decay))
            torch._foreach_add_(parameters, (steps * (good * (-0.2 * math.sqrt(max(shape)) * rate))).unbind())

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            # AdamW looks for its own count of steps wherever there is a state when one is loaded.
            state.update(step=torch.zeros(()), momentum=torch.zeros_like(parameter))
        momentum: Tensor = state["momentum"]
        return momentum


def orthogonal_factor(matrices: Tensor) -> Tensor:
    """UVᵀ of UΣVᵀ, nearly: (k, m, n) → (k, m, n) with singular values between 0.6 and 1.3.

    Those of less than a thousandth of the norm stay smaller; a matrix of zeros stays one.
    """
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.transpose(1, 2)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        square = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x if wide else x.transpose(1, 2)
