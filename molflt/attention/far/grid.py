"""How atoms are assigned to the points of a grid, and convolutions there by products with small matrices of waves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.smooth import sinc_of_square


def assign(points: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of points along the axes of a grid, by cardinal B-splines.

    A spline of degree ``order`` − 1 has ``order`` − 2 continuous derivatives, and so has what is read off the grid.
    All nodes lie on one side of the point. This shift by half a support is the same for every atom, so it drops out
    of differences of positions.

    Args:
        points: (n, 3) in units of the grid's spacing.
        order: nodes per axis, at least 2.

    Returns:
        (n, 3, order) int64 nodes, unbounded; (n, 3, order) weights, which add up to one, in the points' dtype.
    """
    first = points.detach().floor()
    offset = points - first
    weights = [torch.ones_like(offset)]
    for degree in range(1, order):
        # M_k(x) = (x M_{k−1}(x) + (k − x) M_{k−1}(x − 1)) / (k − 1), at x = offset + i for every i.
        rising = [(offset + i) * weight for i, weight in enumerate(weights)]
        falling = [(degree - offset - i) * weight for i, weight in enumerate(weights)]
        none = [torch.zeros_like(offset)]
        weights = [(a + b) / degree for a, b in zip(rising + none, none + falling, strict=True)]
    nodes = first.long()[..., None] - torch.arange(order, device=points.device)
    return nodes, torch.stack(weights, dim=-1)


def optimal_influence(turns: Tensor, order: int) -> Tensor:
    """W²/(Σ_m W(k + m)²)² of one axis, W = sinc^order.

    The filter that undoes the assignment at both ends with the least error, for an interaction without sharp
    features (Hockney and Eastwood, §8-3-3).

    Args:
        turns: k, turns of the wave from one grid point to the next, at most a half.
        order: see :func:`assign`.
    """
    aliases = torch.arange(-3, 4, dtype=turns.dtype, device=turns.device)
    assigned = sinc_of_square((math.pi * (turns[..., None] + aliases)) ** 2).pow(2 * order)
    return assigned[..., 3] / assigned.sum(dim=-1) ** 2


def trigonometric_matrix(planes: Tensor, turns: Tensor, n_waves: int) -> Tensor:
    """Rows 1, √2 cos(2πkτj), √2 sin(2πkτj) for k = 1 ... K at the planes j, (2K + 1, n_planes) float64.

    Args:
        planes: (n_planes,) int64, j.
        turns: () float64, τ: turns of the first wave from one plane to the next; one over the planes of a period.
        n_waves: K.
    """
    wave = torch.arange(1, n_waves + 1, dtype=torch.float64, device=planes.device)
    turned = turns * torch.outer(wave, planes.to(torch.float64))
    # Whole turns are taken off before the multiplication by 2π, for the last digits.
    angle = 2 * math.pi * (turned - turned.detach().round())
    pairs = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], dim=1).flatten(0, 1)
    return torch.cat([torch.ones_like(planes, dtype=torch.float64)[None], pairs])


def wave_numbers(n_waves: int, device: torch.device) -> Tensor:
    """(2K + 1,) int64, k of the rows of :func:`trigonometric_matrix`: 0, 1, 1, 2, 2, ..."""
    return (torch.arange(2 * n_waves + 1, device=device) + 1) // 2


def along_first(values: Tensor, matrix: Tensor) -> Tensor:
    """Apply a matrix along the first axis of a grid: (x, y, z, c), (x', x) → (x', y, z, c)."""
    return (matrix @ values.flatten(1)).unflatten(1, values.shape[1:])


def along_others(values: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Apply matrices along the other axes: (x, y, z, c), (y', y), (z', z) → (x, y', z', c)."""
    x, _, z, c = values.shape
    values = second @ values.flatten(2)
    return (third @ values.reshape(-1, z, c)).view(x, len(second), len(third), c)


def exchange(values: Tensor, axes: tuple[int, int]) -> Tensor:
    """Exchange cos and sin along two axes of a spectrum in the rows of :func:`trigonometric_matrix`.

    cos·cos becomes −sin·sin and cos·sin becomes sin·cos. A constant, whose partner is the zero function, becomes
    zero. By cos(a + b) = cos a cos b − sin a sin b, that is what the part of a spectrum that is odd in two wave
    numbers does to waves.
    """
    rows = []
    for axis in axes:
        n = values.shape[axis]
        partner = torch.arange(n, device=values.device)
        partner[1::2] += 1
        partner[2::2] -= 1
        values = values.index_select(axis, partner)
        row = torch.ones(n, dtype=values.dtype, device=values.device)
        row[1::2] = -1.0
        row[0] = 0.0
        rows.append(row.view([-1 if a == axis else 1 for a in range(values.dim())]))
    return -values * rows[0] * rows[1]
