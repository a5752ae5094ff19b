"""Equivariant vector and tensor features of each atom (DESIGN §3).

    T_i = (V_i, S_i)                                      C vectors and C traceless symmetric tensors, (9, C)
    T_i += W_s M_i                                        first and second moment of the neighbours
    T_i += W_o Σ_j (near_ij + far_ij) U_j / Σ_j near_ij   U_j = g(x_j) ∘ W_v T̄_j, with the weights of the attention
    x_i += W [g(x_i) ∘ (V̄·V', S̄:S', V̄·S̄V')]              V' = W_m V̄, S' = W_m S̄: mixtures of the channels
    T_i += W_p [g(x_i) ∘ (S̄V', V̄ ⊗ V')]

Weights act on channels and gates g multiply whole vectors, so that everything rotates with the structure, and only
scalar products reach the scalars. The attention carries U as 9 C more values. The far field carries the first
channels of every head, by each of its methods, so that an atom feels the orientation of a distant group. T̄ is T over
√(1 + its mean square over channels). Vectors with gates and scalar products are PaiNN's (Schütt et al. 2021, arXiv
2102.03150), carried by attention TorchMD-NET's (Thölke and De Fabritiis 2022, arXiv 2202.02541); tensors are as in
TensorNet (Simeon and De Fabritiis 2023, arXiv 2306.06482).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.mechanism import COMPONENTS
from molflt.attention.smooth import shortened


class VectorStream(nn.Module):
    """Update of the vectors and tensors in one layer.

    Args:
        dim: width of the scalars.
        n_heads: of the attention; must divide ``n_channels``.
        n_moments: channels of the moments of the neighbours.
        n_channels: C.
        far_channels: number of them that the far field carries, of every head.

    Attributes:
        orders: (9, 2), which components are a vector's, which a tensor's.
        groups: (3, 3), which triples of components are of one order.
        traces: (9, 10), from moments to the trace of the second at each of its diagonal components.
        left, right: (n_terms, 9), the components that are multiplied.
        sums: (3, 11, n_terms), from their products to S V', V ⊗ V' symmetric, V·V' and S:S': terms that count once,
            those divided by √2, and a third of the trace of V ⊗ V'. All are whole numbers, exact in any precision.
    """

    def __init__(self, dim: int, n_heads: int, n_moments: int, n_channels: int, far_channels: int) -> None:
        super().__init__()
        self.orders: Tensor
        self.groups: Tensor
        self.traces: Tensor
        self.left: Tensor
        self.right: Tensor
        self.sums: Tensor
        self.n_heads, self.n_channels, self.far_channels = n_heads, n_channels, far_channels
        self.source = PerOrder(n_moments, n_channels)
        self.value = PerOrder(n_channels, n_channels)
        self.gathered = PerOrder(n_channels, n_channels)
        self.mix = PerOrder(n_channels, n_channels)
        self.product = PerOrder(n_channels, n_channels)
        self.sender_gate = nn.Linear(dim, 2 * n_channels)
        self.gate = nn.Linear(dim, 5 * n_channels)
        self.output = nn.Linear(3 * n_channels, dim)
        orders = _orders()
        traces = torch.zeros(COMPONENTS, 10)
        traces[3:6, 4:7] = 1.0
        left, right, sums = _terms()
        of_groups = orders[::3] @ orders[::3].t()
        constants = {"orders": orders, "groups": of_groups, "traces": traces, "left": left, "right": right}
        for name, matrix in {**constants, "sums": sums}.items():
            self.register_buffer(name, matrix, persistent=False)

    def take(self, moments: Tensor) -> Tensor:
        """(n_atoms, 10, n_moments), see :class:`LocalMoments` → (n_atoms, 9, C)."""
        # Without the trace, a scalar which would dominate sums over many atoms.
        traces = self.traces.expand(len(moments), -1, -1)
        return self.source(torch.baddbmm(moments[:, 1:], traces, moments, alpha=-1 / 3))

    def values(self, gates: Tensor, tensors: Tensor) -> Tensor:
        """Return the values for the attention to carry, (n_atoms, n_heads, 9 C / n_heads).

        Args:
            gates: (n_atoms, 2 C), of ``sender_gate``.
            tensors: (n_atoms, 9, C).
        """
        values = self.value(self.gated(1 + gates, self.bounded(tensors)))
        # A head's channels are contiguous, since the far field carries the first of them.
        return values.unflatten(2, [self.n_heads, -1]).permute(0, 2, 3, 1).flatten(2)

    def gather(self, carried: Tensor) -> Tensor:
        """Map the attention's sums, of the shape of :meth:`values`, to (n_atoms, 9, C)."""
        return self.gathered(carried.reshape(carried.shape[0], self.n_channels, -1).transpose(1, 2))

    def products(self, gates: Tensor, tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the updates of scalars and tensors by products of the tensors.

        ``gates``: (n_atoms, 5 C), of ``gate``; ``tensors``: (n_atoms, 9, C).
        """
        one = self.bounded(tensors)
        terms = _times(self.left, one) * _times(self.right, self.mix(one))
        sums = torch.add(torch.add(self.sums[0], self.sums[1], alpha=math.sqrt(0.5)), self.sums[2], alpha=-1 / 3)
        # S V' and V ⊗ V', symmetric and traceless; V·V' and S:S', to which V·S V' is added as a third.
        equivariant, invariants = _times(sums, terms).split([len(self.orders), 2], dim=1)
        invariants = torch.cat([invariants, _times(self.orders.t()[:1], one * equivariant)], dim=1)
        of_scalars, of_tensors = (1 + gates).split([3 * self.n_channels, 2 * self.n_channels], 1)
        return self.output(of_scalars * invariants.flatten(1)), self.product(self.gated(of_tensors, equivariant))

    def bounded(self, tensors: Tensor) -> Tensor:
        """(n, 9, C) → the same, each order with a mean square below one over its channels."""
        threes = tensors.unflatten(1, [3, 3]).flatten(2)
        return shortened(threes, 1.0, self.groups / self.n_channels).view(tensors.shape)

    def gated(self, gates: Tensor, tensors: Tensor) -> Tensor:
        """(n, 2 C) of vectors and tensors, (n, 9, C) → their products."""
        return _times(self.orders, gates.unflatten(1, [2, -1])) * tensors


class PerOrder(nn.Module):
    """Separate mixtures of channels for vectors and for tensors."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, n_out, bias=False)
        self.second = nn.Linear(n_in, n_out, bias=False)
        for linear in (self.first, self.second):
            # Unit gain: with less, products of features that passed several mixtures are too small to learn from.
            nn.init.normal_(linear.weight, std=n_in**-0.5)
        self.orders: Tensor
        self.register_buffer("orders", _orders()[..., None], persistent=False)

    def forward(self, tensors: Tensor) -> Tensor:
        """(n, 9, n_in) → (n, 9, n_out)."""
        # Both mixtures of all components, of which one is selected.
        mixed = tensors @ torch.cat([self.first.weight, self.second.weight]).transpose(0, 1)
        return (mixed.unflatten(2, [2, -1]) * self.orders).sum(dim=2)


def _times(matrix: Tensor, tensors: Tensor) -> Tensor:
    """(a, b) times (n, b, c) → (n, a, c)."""
    return torch.bmm(matrix.expand(len(tensors), -1, -1), tensors)


def _orders() -> Tensor:
    return torch.eye(2)[[0] * 3 + [1] * 6]


def _terms() -> tuple[Tensor, Tensor, Tensor]:
    """``left``, ``right`` and ``sums`` of :class:`VectorStream`."""
    terms: dict[tuple[int, int], Tensor] = {}

    def add(left: int, right: int, row: int, kind: int = 0) -> None:
        terms.setdefault((left, right), torch.zeros(3, COMPONENTS + 2))[kind, row] += 1

    for i in range(3):
        # Off-diagonal elements couple every component with the one before it, cyclically.
        before, after = (i - 1) % 3, (i + 1) % 3
        add(3 + i, i, i)
        add(6 + i, before, i, 1)
        add(6 + after, after, i, 1)
        add(i, i, 3 + i)
        for row in range(3, 6):
            add(i, i, row, 2)
        add(i, before, 6 + i, 1)
        add(before, i, 6 + i, 1)
        add(i, i, 9)
    for k in range(3, 9):
        add(k, k, 10)
    left, right = (torch.eye(COMPONENTS)[[pair[side] for pair in terms]] for side in (0, 1))
    return left, right, torch.stack(list(terms.values()), dim=-1)
