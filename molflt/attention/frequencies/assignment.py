"""Atoms assigned to the points of a grid by B-splines (Hockney and Eastwood, Computer Simulation Using Particles)."""

from __future__ import annotations

import torch
from torch import Tensor


def assign(points: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of points along the axes of a grid.

    A spline of degree ``order`` − 1 has ``order`` − 2 continuous derivatives, and so has what is read off the grid.
    All nodes lie on one side of the point: the shift by half a support is the same wherever an atom is, and drops out
    of every difference of positions.

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


def optimal_influence(index: Tensor, n_grid: int, order: int) -> Tensor:
    """W²/(Σ_m W(k + m n)²)² of one axis, W = sinc^order: undoes the assignment at both ends with the least error.

    Hockney and Eastwood, §8-3-3, for an interaction without sharp features.

    Args:
        index: k, integers as floats.
        n_grid: points along the axis.
        order: see :func:`assign`.
    """
    aliases = torch.arange(-3, 4, dtype=index.dtype, device=index.device) * n_grid
    total = torch.sinc((index[..., None] + aliases) / n_grid).pow(2 * order).sum(dim=-1)
    return torch.sinc(index / n_grid).pow(2 * order) / total**2
