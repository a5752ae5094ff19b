"""Far field on pairs of atoms by the closed form of f, images included.

The basis is computed in blocks that fit into the processor's cache: with whole tensors, every step would stream
through memory, which takes longer than the exponentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from molflt.attention.far.ways import Group
from molflt.attention.smooth import GAUSSIAN_END, sinc_family


@dataclass
class OnPairs:
    """f̂ of a group of structures on all pairs; a :class:`~molflt.attention.far.field.FarField`.

    Since f̂_ij = f̂_ji, half of the pairs of a large structure suffice. They are held in strips of rows, each from its
    diagonal on, which stay in the processor's cache while they are used.

    Attributes:
        strips: (n_weights, n_structures, n_rows, n_max − first) basis functions of f̂, ``first`` being the rows of the
            strips before; arbitrary where there is no pair.
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


def sum_over_pairs(
    group: Group,
    positions: Tensor,
    cell: Tensor,
    function: Callable[[Tensor], Tensor],
    n_weights: int,
) -> OnPairs:
    """Σ_n F(Δ_ij + n·A) over the images of a group, for n_weights functions F.

    Args:
        group: structures that are summed on pairs.
        positions: (n_structures, n_max, 3) Å, float64.
        cell: (n_structures, 3, 3) Å, float64.
        function: maps displacements (3, ...) Å, float64, to (n_weights, ...).
        n_weights: number of these functions.
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
        values = function(delta.t())
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


def _displacements(some: Tensor, others: Tensor) -> Tensor:
    """r_i − r_j of (..., n, 3) and (..., m, 3), axes first: (3, ..., n, m)."""
    return some.movedim(-1, 0)[..., :, None] - others.movedim(-1, 0)[..., None, :]


def squared_norm(delta: Tensor, dtype: torch.dtype) -> Tensor:
    """|Δ|² of (3, ...), axis by axis: a sum over three adjacent numbers is slow."""
    delta = delta.to(dtype)
    return (delta * delta).sum(dim=0)


def squared_distances(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """|r_i − r_j|² of (..., n, 3) float64, in ``dtype``: (..., n, n) Å²."""
    return squared_norm(_displacements(positions, positions), dtype)


def members_on_pairs(
    squared: Tensor, amplitudes: Tensor, scales: Tensor, turns: Tensor | None, n_waves: int, decay: float = 0.5
) -> Tensor:
    """a_t φ_t(s_t r²) of r² (...), twice differentiable: (n_members, ...).

    The shapes are φ_t(y) = exp(−δy) sinc(√(k_t y)).

    Args:
        squared: r², Å².
        amplitudes: a_t, (n_members,).
        scales: s_t, 1/Å².
        turns: k_t, constants, zero for a Gaussian; None where all are.
        n_waves: number of basis functions at the end that may be waves.
        decay: δ.
    """
    waves = slice(len(scales) - n_waves, len(scales))
    found: Tensor = _OnPairs.apply(squared, amplitudes, scales, turns, waves, decay)
    return found


class _OnPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        squared: Tensor,
        amplitudes: Tensor,
        scales: Tensor,
        turns: Tensor | None,
        waves: slice,
        decay: float,
    ) -> Tensor:
        ctx.save_for_backward(squared, amplitudes, scales, turns)
        ctx.form = waves, decay
        dtype = torch.promote_types(squared.dtype, scales.dtype)
        out = squared.new_empty((len(scales), *squared.shape), dtype=dtype)
        flat, values = squared.reshape(-1), out.view(len(scales), -1)
        for few in _blocks(len(flat), len(scales), squared.device):
            (shape,) = _shapes(scales[:, None] * flat[few], turns, waves, decay, 0)
            torch.mul(shape, amplitudes[:, None], out=values[:, few])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = _SlopeOnPairs.apply(*gradients, *ctx.saved_tensors, *ctx.form, torch.is_grad_enabled())
        return (*found, None, None, None)


class _SlopeOnPairs(torch.autograd.Function):
    """Derivatives of :class:`_OnPairs` with respect to r², a and s.

    Only the first can be differentiated again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gradient: Tensor,
        squared: Tensor,
        amplitudes: Tensor,
        scales: Tensor,
        turns: Tensor | None,
        waves: slice,
        decay: float,
        again: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        flat, gradients = squared.reshape(-1), gradient.reshape(len(scales), -1)
        to_squared = torch.empty_like(flat)
        to_amplitudes, to_scales, both = torch.zeros_like(scales), torch.zeros_like(scales), amplitudes * scales
        kept = gradients.new_empty((2 * again, *gradients.shape))
        for few in _blocks(len(flat), len(scales), squared.device):
            shape, *slopes = _shapes(scales[:, None] * flat[few], turns, waves, decay, 1 + again)
            for one, slope in zip(kept, slopes, strict=False):
                one[:, few] = slope
            to_amplitudes += shape.mul_(gradients[:, few]).sum(dim=1)
            along = torch.mul(gradients[:, few], slopes[0], out=shape)
            to_scales += along @ flat[few].to(along.dtype)
            to_squared[few] = both @ along
        ctx.save_for_backward(gradients, squared, amplitudes, scales, kept)
        return to_squared.view_as(squared), to_amplitudes, to_scales.mul_(amplitudes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *to_slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients, squared, amplitudes, scales, (slope, bend) = ctx.saved_tensors
        to_squared, *of_parameters = to_slopes
        assert of_parameters == [None, None], "parameters have a first derivative only"
        assert to_squared is not None
        flat, along = squared.reshape(-1), to_squared.reshape(-1)
        weighted = gradients * along
        bent, both = weighted * bend, amplitudes * scales
        first, second = (weighted * slope).sum(dim=1), bent @ flat
        return (
            (slope * along * both[:, None]).view(-1, *squared.shape),
            ((both * scales) @ bent).view_as(squared),
            scales * first,
            torch.addcmul(amplitudes * first, both, second),
            *[None] * 4,
        )


def _shapes(y: Tensor, turns: Tensor | None, waves: slice, decay: float, order: int) -> list[Tensor]:
    """φ and its first ``order`` derivatives, of (n_members, n)."""
    bell = (y * -decay).clamp_(min=-GAUSSIAN_END).exp_()
    found = [bell]
    for _ in range(order):
        found.append(found[-1] * -decay)
    if turns is not None:
        half, bell = turns[waves, None] / 2, bell[waves].clone()
        u = sinc_family(y[waves] * turns[waves, None], order)
        factors = [u[0]]
        if order:
            factors.append(-decay * u[0] - half * u[1])
        if order > 1:
            factors.append(half**2 * u[2] - decay * (factors[1] - half * u[1]))
        for one, factor in zip(found, factors, strict=True):
            torch.mul(bell, factor, out=one[waves])
    return found


def _blocks(n: int, n_members: int, device: torch.device) -> Iterator[slice]:
    step = max(1, (_VALUES_AT_ONCE if device.type == "cpu" else _VALUES_AT_ONCE_ON_GPU) // n_members)
    return (slice(first, first + step) for first in range(0, n, step))


_VALUES_AT_ONCE, _VALUES_AT_ONCE_ON_GPU = 1 << 16, 1 << 26
"""Basis functions times pairs of a block; 256 KiB in float32."""

_VALUES_OF_IMAGES = 1 << 23
"""Basis functions times pairs and images that are held at once."""

WHOLE, STRIP = 256, 128
"""Most atoms whose pairs are all held together, and rows of a strip beyond."""
