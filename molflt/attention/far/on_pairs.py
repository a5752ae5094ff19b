"""Members of f on many pairs, in blocks that stay in the processor's cache.

As a formula of whole tensors, every step of it goes through the memory again, which takes longer than exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from molflt.attention.smooth import GAUSSIAN_END, gaussian, sinc_of_square


def members_on_pairs(squared: Tensor, amplitudes: Tensor, decays: Tensor, turns: Tensor | None) -> Tensor:
    """a_t exp(−d_t r²) sinc(√(k_t r²)) of r² (...), with derivatives of any order: (n_members, ...).

    Args:
        squared: r², Å².
        amplitudes: a_t, (n_members,).
        decays: d_t, 1/Å².
        turns: k_t, 1/Å², zero for a Gaussian; None where all are.
    """
    found: Tensor = _OnPairs.apply(squared, amplitudes, decays, turns)
    return found


class _OnPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, squared: Tensor, amplitudes: Tensor, decays: Tensor, turns: Tensor | None) -> Tensor:
        ctx.save_for_backward(squared, amplitudes, decays, turns)
        dtype = torch.promote_types(squared.dtype, decays.dtype)
        out = squared.new_empty((len(decays), *squared.shape), dtype=dtype)
        flat, values, waves = squared.reshape(-1), out.view(len(decays), -1), _waves(turns)
        for few in _blocks(len(flat), len(decays), squared.device):
            block = values[:, few]
            torch.mul(flat[few], -decays[:, None], out=block)
            block.clamp_(min=-GAUSSIAN_END).exp_().mul_(amplitudes[:, None])
            if turns is not None:
                block[waves].mul_(_sinc(turns[waves, None] * flat[few])[0])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        squared, amplitudes, decays, turns = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(ctx, gradients[0])
        flat, gradient, waves = squared.reshape(-1), gradients[0].reshape(len(decays), -1), _waves(turns)
        to_squared = torch.empty_like(flat) if ctx.needs_input_grad[0] else None
        to_amplitudes, to_decays = torch.zeros_like(gradient[:, 0]), torch.zeros_like(gradient[:, 0])
        to_turns = torch.zeros_like(to_decays)
        for few in _blocks(len(flat), len(decays), squared.device):
            r2 = flat[few].to(gradient.dtype)
            block = torch.mul(r2, -decays[:, None]).clamp_(min=-GAUSSIAN_END).exp_().mul_(gradient[:, few])
            slope: Tensor | None = None
            if turns is not None:
                x = turns[waves, None] * r2
                sinc, z = _sinc(x)
                slope = block[waves] * _slope_of_sinc(x, sinc, z)
                block[waves].mul_(sinc)
                to_turns[waves] += slope @ r2
            to_amplitudes += block.sum(dim=1)
            to_decays -= block @ r2
            if to_squared is not None:
                total = -(amplitudes * decays) @ block
                if slope is not None:
                    total += (amplitudes[waves] * turns[waves]) @ slope
                to_squared[few] = total
        return (
            None if to_squared is None else to_squared.view_as(squared),
            to_amplitudes,
            to_decays * amplitudes,
            None if turns is None else to_turns * amplitudes,
        )


def _differentiable(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The derivatives by the formula, to be differentiated again."""
    inputs = ctx.saved_tensors
    squared, amplitudes, decays, turns = inputs
    each = (..., *[None] * squared.dim())
    values = amplitudes[each] * gaussian(decays[each] * squared)
    if turns is not None:
        values = values * sinc_of_square(turns[each] * squared)
    wanted = [tensor for tensor, needed in zip(inputs, ctx.needs_input_grad, strict=True) if needed]
    found = iter(torch.autograd.grad(values, wanted, gradient, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad)


def _waves(turns: Tensor | None) -> slice:
    """The members from the first wave to the last; a Gaussian among them is a wave with k = 0."""
    some = [] if turns is None else torch.nonzero(turns > 0).squeeze(1).tolist()
    return slice(some[0], some[-1] + 1) if some else slice(0, 0)


def _sinc(squared: Tensor) -> tuple[Tensor, Tensor]:
    """sin(z)/z and z of z²."""
    # torch.sinc takes one number at a time on a CPU.
    z = squared.sqrt().clamp_(min=1e-15)
    return z.sin().div_(z), z


def _slope_of_sinc(squared: Tensor, sinc: Tensor, z: Tensor) -> Tensor:
    """The derivative of sin(z)/z by z²: (cos z − sin z/z)/2z², or its power series where that cancels."""
    series = torch.zeros_like(squared)
    for k in range(_TERMS, 0, -1):
        series = series.mul_(squared).add_((-1) ** k * k / math.factorial(2 * k + 1))
    return torch.where(squared < _SMALL, series, z.cos().sub_(sinc).div_(2 * squared.clamp(min=_SMALL)))


def _blocks(n: int, n_members: int, device: torch.device) -> Iterator[slice]:
    step = max(1, (_VALUES_AT_ONCE if device.type == "cpu" else _VALUES_AT_ONCE_ON_GPU) // n_members)
    return (slice(first, first + step) for first in range(0, n, step))


_SMALL, _TERMS = 0.5, 8
"""z² below which the series is used, and its terms: good to the last digit of float64."""

_VALUES_AT_ONCE, _VALUES_AT_ONCE_ON_GPU = 1 << 16, 1 << 26
"""Members times pairs of a block; 256 KiB in float32."""
