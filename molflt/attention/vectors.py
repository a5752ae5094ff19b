"""The stream of vectors: what every atom carries through all layers beside its scalars (DESIGN §3).

    T_i = (V_i, S_i)                                      C vectors and C traceless symmetric tensors, (9, C)
    T_i += W_s M_i                                        first and second moment of the neighbours
    T_i += W_o Σ_j (near_ij + far_ij) U_j / Σ_j near_ij   U_j = g(x_j) ∘ W_v T̄_j, with the weights of the attention
    x_i += W [g(x_i) ∘ (V̄·V', S̄:S', V̄·S̄V')]              V' = W_m V̄, S' = W_m S̄: mixtures of the channels
    T_i += W_p [g(x_i) ∘ (S̄V', V̄ ⊗ V')]

Weights act on channels and gates g multiply whole vectors, so that everything turns with the structure, and what
reaches the scalars are scalar products. U rides on the attention as 9 C more values. The far field carries the first
channels of every head, by each of its methods, and so an atom feels how a distant group is turned. T̄ is T over
√(1 + its mean square over channels). Vectors with gates and scalar products are PaiNN's (Schütt et al. 2021, arXiv
2102.03150), carried by attention TorchMD-NET's (Thölke and De Fabritiis 2022, arXiv 2202.02541); tensors are as in
TensorNet (Simeon and De Fabritiis 2023, arXiv 2306.06482).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit import is_scripting  # type: ignore[attr-defined]

from molflt.attention.smooth import shortened

COMPONENTS = 9
"""Of a vector and a symmetric tensor together."""


class VectorStream(nn.Module):
    """What one layer makes of vectors and tensors.

    Args:
        dim: width of the scalars.
        n_heads: of the attention; must divide ``n_channels``.
        n_moments: channels of the moments of the neighbours.
        n_channels: C.
        far_channels: how many of them the far field carries, of every head.
    """

    def __init__(self, dim: int, n_heads: int, n_moments: int, n_channels: int, far_channels: int) -> None:
        super().__init__()
        self.n_heads, self.n_channels, self.far_channels = n_heads, n_channels, far_channels
        self.source = PerOrder(n_moments, n_channels)
        self.value = PerOrder(n_channels, n_channels)
        self.gathered = PerOrder(n_channels, n_channels)
        self.mix = PerOrder(n_channels, n_channels)
        self.product = PerOrder(n_channels, n_channels)
        self.sender_gate = nn.Linear(dim, 2 * n_channels)
        self.gate = nn.Linear(dim, 5 * n_channels)
        self.output = nn.Linear(3 * n_channels, dim)

    def take(self, moments: Tensor) -> Tensor:
        """(n_atoms, 10, n_moments), see :class:`LocalMoments` → (n_atoms, 9, C)."""
        if is_scripting():
            diagonal = moments[:, 4:7]
            traceless = diagonal - diagonal.mean(dim=1, keepdim=True)
            return self.source(torch.cat([moments[:, 1:4], traceless, moments[:, 7:]], dim=1))
        return self.source(_times(_constants(moments).without_traces, moments))

    def values(self, gates: Tensor, tensors: Tensor) -> Tensor:
        """What the attention is to carry, (n_atoms, n_heads, 9 C / n_heads).

        Args:
            gates: (n_atoms, 2 C), of ``sender_gate``.
            tensors: (n_atoms, 9, C).
        """
        values = self.value(gated(1 + gates, bounded(tensors)))
        # A head's channels one after another, for the far field carries the first of them.
        return values.unflatten(2, [self.n_heads, -1]).permute(0, 2, 3, 1).flatten(2)

    def gather(self, carried: Tensor) -> Tensor:
        """What the attention has made of them, of the same shape → (n_atoms, 9, C)."""
        return self.gathered(carried.reshape(carried.shape[0], self.n_channels, -1).transpose(1, 2))

    def products(self, gates: Tensor, tensors: Tensor) -> tuple[Tensor, Tensor]:
        """(n_atoms, 5 C) of ``gate``, (n_atoms, 9, C) → what products of the latter add to scalars and to them."""
        one = bounded(tensors)
        equivariant, invariants = products(one, self.mix(one))
        of_scalars, of_tensors = (1 + gates).split([3 * self.n_channels, 2 * self.n_channels], 1)
        return self.output(of_scalars * invariants.flatten(1)), self.product(gated(of_tensors, equivariant))


class PerOrder(nn.Module):
    """One mixture of channels for vectors, another for tensors."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, n_out, bias=False)
        self.second = nn.Linear(n_in, n_out, bias=False)
        for linear in (self.first, self.second):
            # Of unit gain: with less, products of what came through several mixtures are too faint to learn from.
            nn.init.normal_(linear.weight, std=n_in**-0.5)

    def forward(self, tensors: Tensor) -> Tensor:
        """(n, 9, n_in) → (n, 9, n_out)."""
        if is_scripting():
            return torch.cat([self.first(tensors[:, :3]), self.second(tensors[:, 3:])], dim=1)
        # Both mixtures of everything, of which one is taken.
        mixed = tensors @ torch.cat([self.first.weight, self.second.weight]).transpose(0, 1)
        return (mixed.unflatten(2, (2, -1)) * _constants(tensors).orders.t()[..., None]).sum(dim=2)


def bounded(tensors: Tensor) -> Tensor:
    """(n, 9, C) → the same, each order with a mean square below one over its channels."""
    if is_scripting():
        return torch.cat([_bounded_alone(tensors[:, :3]), _bounded_alone(tensors[:, 3:])], dim=1)
    # Three threes of components, the latter two of one order.
    groups = _constants(tensors).groups / tensors.shape[2]
    return shortened(tensors.unflatten(1, (3, 3)).flatten(2), 1.0, groups).view(tensors.shape)


def _bounded_alone(t: Tensor) -> Tensor:
    return t * (1 + (t * t).sum(dim=1, keepdim=True).mean(dim=2, keepdim=True)).rsqrt()


def gated(gates: Tensor, tensors: Tensor) -> Tensor:
    """(n, 2 C) of vectors and tensors, (n, 9, C) → their products."""
    if is_scripting():
        first, second = gates[:, None].chunk(2, dim=2)
        return torch.cat([first * tensors[:, :3], second * tensors[:, 3:]], dim=1)
    return _times(_constants(tensors).orders.t(), gates.unflatten(1, (2, -1))) * tensors


def products(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Of (n, 9, c), (n, 9, c): S V' and V ⊗ V' symmetric and traceless, (n, 9, c); V·V', S:S', V·SV', (n, 3, c)."""
    if is_scripting():
        return _products_alone(one, other)
    constants = _constants(one)
    terms = _times(constants.left, one) * _times(constants.right, other)
    equivariant, invariants = _times(constants.sums, terms).split([COMPONENTS, 2], dim=1)
    third = _times(constants.orders[:1], one * equivariant)
    return equivariant, torch.cat([invariants, third], dim=1)


def _products_alone(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The same without constant matrices, for a model that runs without this package."""
    vectors, squares, others = one[:, :3], one[:, 3:], other[:, :3]
    diagonal, rest = squares.split([3, 3], dim=1)
    behind = rest * others.roll(1, dims=1) + (rest * others).roll(-1, dims=1)
    turned = diagonal * others + behind / math.sqrt(2)
    along = vectors * others
    across = (vectors * others.roll(1, dims=1) + vectors.roll(1, dims=1) * others) / math.sqrt(2)
    outer = torch.cat([along - along.mean(dim=1, keepdim=True), across], dim=1)
    sums = [along, squares * other[:, 3:], vectors * turned]
    invariants = torch.stack([term.sum(dim=1) for term in sums], dim=1)
    return torch.cat([turned, outer], dim=1), invariants


def _times(matrix: Tensor, tensors: Tensor) -> Tensor:
    """(a, b) times (n, b, c) → (n, a, c)."""
    return torch.bmm(matrix.expand(len(tensors), -1, -1), tensors)


@dataclass(frozen=True)
class _Constants:
    """Vectors have three components, tensors six: the diagonal, then √2 times xz, yx, zy (``second_power``).

    Attributes:
        orders: (2, 9), which components are a vector's, which a tensor's.
        groups: (3, 3), which threes of components are of one order.
        without_traces: (9, 10), from moments to components without a scalar, of which sums over many atoms would
            consist.
        left, right: (n_terms, 9), the components that are multiplied.
        sums: (11, n_terms), from their products to S V', the traceless symmetric part of V ⊗ V', V·V' and S:S'.
    """

    orders: Tensor
    groups: Tensor
    without_traces: Tensor
    left: Tensor
    right: Tensor
    sums: Tensor


def _constants(like: Tensor) -> _Constants:
    return _constants_of(like.dtype, like.device)


@cache
def _constants_of(dtype: torch.dtype, device: torch.device) -> _Constants:
    orders = np.repeat(np.eye(2), [3, 6], axis=1)
    traceless = np.eye(6)
    traceless[:3, :3] -= 1 / 3
    without_traces = np.zeros((9, 10))
    without_traces[:3, 1:4], without_traces[3:, 4:] = np.eye(3), traceless
    terms: dict[tuple[int, int], np.ndarray] = {}

    def add(left: int, right: int, row: int, factor: float) -> None:
        terms.setdefault((left, right), np.zeros(11))[row] += factor

    for i in range(3):
        # What is off the diagonal couples every component with the one before it, in a circle.
        before, after = (i - 1) % 3, (i + 1) % 3
        add(3 + i, i, i, 1.0)
        add(6 + i, before, i, math.sqrt(0.5))
        add(6 + after, after, i, math.sqrt(0.5))
        for row in range(3):
            add(i, i, 3 + row, traceless[row, i])
        add(i, before, 6 + i, math.sqrt(0.5))
        add(before, i, 6 + i, math.sqrt(0.5))
        add(i, i, 9, 1.0)
    for k in range(3, 9):
        add(k, k, 10, 1.0)
    left, right = (np.eye(9)[[pair[side] for pair in terms]] for side in (0, 1))
    groups = orders[:, ::3].T @ orders[:, ::3]
    found = (orders, groups, without_traces, left, right, np.array(list(terms.values())).T)
    # They outlast a prediction that they may be made in, and serve training as well.
    with torch.inference_mode(False):
        return _Constants(*(torch.tensor(matrix, dtype=dtype, device=device) for matrix in found))
