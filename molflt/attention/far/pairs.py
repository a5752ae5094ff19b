"""The far field on pairs of atoms, by the closed form of f, summed over images where a structure repeats.

Members are computed in blocks that stay in the processor's cache: as a formula of whole tensors, every step goes
through the memory again, which takes longer than exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from molflt.attention.far.ways import Group
from molflt.attention.smooth import GAUSSIAN_END, gaussian, sinc_of_square


@dataclass
class OnPairs:
    """f̂ of a group of structures on all pairs; a :class:`~molflt.attention.far.field.FarField`.

    As f̂_ij = f̂_ji, half of the pairs of a large structure will do. They are held in strips of rows, each from its
    diagonal on, which stay in a processor's cache between the steps of their use.

    Attributes:
        strips: (n_weights, n_structures, n_rows, n_max − first) basis functions of f̂, ``first`` being the rows of the
            strips before; whatever where there is no pair.
    """

    strips: list[Tensor]

    def matrix(self, weights: Tensor) -> Tensor:
        """See :class:`FarField`."""
        found = [self._mixed(weights, strip) for strip in self.strips]
        if len(found) == 1:
            return found[0]
        out = found[0].new_zeros(*found[0].shape[:2], *found[0].shape[-1:] * 2)
        first = 0
        for far in found:
            end = first + far.shape[2]
            out[:, :, first:end, first:] = far
            out[:, :, end:, first:end] = far[..., far.shape[2] :].transpose(2, 3)
            first = end
        return out

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarField`, O(n²)."""
        v = values.permute(2, 0, 1, 3)
        if len(self.strips) == 1:
            return (self.matrix(weights) @ v).permute(1, 2, 0, 3)
        out, first = torch.zeros_like(v), 0
        for strip in self.strips:
            far = self._mixed(weights, strip)
            end = first + far.shape[2]
            out[:, :, first:end] += far @ v[:, :, first:]
            if far.shape[3] > far.shape[2]:
                out[:, :, end:] += far[..., far.shape[2] :].transpose(2, 3) @ v[:, :, first:end]
            first = end
        return out.permute(1, 2, 0, 3)

    @staticmethod
    def _mixed(weights: Tensor, strip: Tensor) -> Tensor:
        return (weights.transpose(0, 1) @ strip.flatten(1)).view(-1, *strip.shape[1:])


Displacements = tuple[Tensor, ...]
"""Along x, y and z."""


def sum_over_pairs(
    group: Group,
    positions: Tensor,
    cell: Tensor,
    function: Callable[[Displacements], Tensor],
    n_weights: int,
) -> OnPairs:
    """Σ_n F(Δ_ij + n·A) over the images of a group, for n_weights functions F.

    Args:
        group: structures that are summed on pairs.
        positions: (n_structures, n_max, 3) Å, float64.
        cell: (n_structures, 3, 3) Å, float64.
        function: maps displacements by axes, three tensors (...) Å, float64, to (n_weights, ...).
        n_weights: how many functions that are.
    """
    if group.images is None:
        n = positions.shape[1]
        rows = STRIP if n > WHOLE else n
        starts = range(0, n, rows)
        return OnPairs([function(_displacements(positions[:, a : a + rows], positions[:, a:])) for a in starts])
    n_structures, n_max = positions.shape[:2]
    flat = positions.flatten(0, 1)

    def some(flat: Tensor, cell: Tensor, receiver: Tensor, sender: Tensor, offsets: Tensor) -> Tensor:
        own = cell.index_select(0, receiver // n_max)
        delta = flat.index_select(0, receiver) - flat.index_select(0, sender)
        delta = delta - (offsets[:, :, None] * own).sum(dim=1)
        values = function(delta.unbind(dim=1))
        pair = receiver * n_max + sender % n_max
        return values.new_zeros(len(values), n_structures * n_max**2).index_add(1, pair, values)

    # The intermediates of a long sum would fill the memory, so a backward pass computes them again.
    pairs = group.images.receiver, group.images.sender, group.images.offsets
    parts = list(zip(*(t.split(max(1, _VALUES_OF_IMAGES // n_weights)) for t in pairs), strict=True))
    recompute = torch.is_grad_enabled() and len(parts) > 1
    total: Tensor | None = None
    for part in parts:
        inputs = (flat, cell, *part)
        value = checkpoint(some, *inputs, use_reentrant=False) if recompute else some(*inputs)
        total = value if total is None else total + value
    assert total is not None
    return OnPairs([total.view(-1, n_structures, n_max, n_max)])


def _displacements(some: Tensor, others: Tensor) -> Displacements:
    """r_i − r_j of (..., n, 3) and (..., m, 3), by axes, each (..., n, m)."""
    axes = zip(some.unbind(dim=-1), others.unbind(dim=-1), strict=True)
    return tuple(a[..., :, None] - b[..., None, :] for a, b in axes)


def squared_norm(delta: Displacements, dtype: torch.dtype) -> Tensor:
    """|Δ|²; a sum over three neighbouring numbers is slow."""
    x, y, z = (d.to(dtype) for d in delta)
    return torch.addcmul(torch.addcmul(x * x, y, y), z, z)


def squared_distances(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """|r_i − r_j|² of (..., n, 3) float64, in ``dtype``: (..., n, n) Å²."""
    return squared_norm(_displacements(positions, positions), dtype)


def members_on_pairs(
    squared: Tensor, amplitudes: Tensor, decays: Tensor, turns: Tensor | None, n_waves: int
) -> Tensor:
    """a_t exp(−d_t r²) sinc(√(k_t r²)) of r² (...), with derivatives of any order: (n_members, ...).

    Args:
        squared: r², Å².
        amplitudes: a_t, (n_members,).
        decays: d_t, 1/Å².
        turns: k_t, 1/Å², zero for a Gaussian; None where all are.
        n_waves: how many of the last members may be waves.
    """
    waves = slice(len(decays) - n_waves, len(decays))
    found: Tensor = _OnPairs.apply(squared, amplitudes, decays, turns, waves)
    return found


class _OnPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, squared: Tensor, amplitudes: Tensor, decays: Tensor, turns: Tensor | None, waves: slice
    ) -> Tensor:
        ctx.save_for_backward(squared, amplitudes, decays, turns)
        ctx.waves = waves
        dtype = torch.promote_types(squared.dtype, decays.dtype)
        out = squared.new_empty((len(decays), *squared.shape), dtype=dtype)
        flat, values = squared.reshape(-1), out.view(len(decays), -1)
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
            needs = ctx.needs_input_grad[:4]
            return _differentiable((squared, amplitudes, decays, turns), needs, gradients[0])
        flat, gradient, waves = squared.reshape(-1), gradients[0].reshape(len(decays), -1), ctx.waves
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
            None,
        )


def _differentiable(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], needs: Sequence[bool], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """The derivatives by the formula, to be differentiated again."""
    squared, amplitudes, decays, turns = inputs
    each = (..., *[None] * squared.dim())
    values = amplitudes[each] * gaussian(decays[each] * squared)
    if turns is not None:
        values = values * sinc_of_square(turns[each] * squared)
    wanted = [tensor for tensor, needed in zip(inputs, needs, strict=True) if needed and tensor is not None]
    found = iter(torch.autograd.grad(values, wanted, gradient, create_graph=True))
    return (*(next(found) if needed else None for needed in needs), None)


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

_VALUES_OF_IMAGES = 1 << 23
"""Members times pairs and images that are held at once."""

WHOLE, STRIP = 256, 128
"""Atoms up to which all pairs are held together, and rows of a strip beyond."""
