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

import torch
from torch import Tensor, nn

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
        first, second = orders(moments[:, 1:])
        return self.source(first, traceless(second))

    def values(self, x: Tensor, tensors: Tensor) -> Tensor:
        """What the attention is to carry, (n_atoms, n_heads, 9 C / n_heads), of (n_atoms, dim), (n_atoms, 9, C)."""
        first, second = (1 + self.sender_gate(x)).unsqueeze(1).chunk(2, dim=2)
        vectors, squares = bounded(tensors)
        values = self.value(first * vectors, second * squares)
        # A head's channels one after another, for the far field carries the first of them.
        return values.unflatten(2, [self.n_heads, -1]).permute(0, 2, 3, 1).flatten(2)

    def gather(self, carried: Tensor) -> Tensor:
        """What the attention has made of them, of the same shape → (n_atoms, 9, C)."""
        first, second = orders(carried.reshape(carried.shape[0], self.n_channels, -1).transpose(1, 2))
        return self.gathered(first, second)

    def products(self, x: Tensor, tensors: Tensor) -> tuple[Tensor, Tensor]:
        """(n_atoms, dim), (n_atoms, 9, C) → what products of the latter add to either."""
        vectors, squares = bounded(tensors)
        other, other_squares = orders(self.mix(vectors, squares))
        turned = applied(squares, other)
        of_scalars, of_vectors, of_squares = (1 + self.gate(x)).split(
            [3 * self.n_channels, self.n_channels, self.n_channels], 1
        )
        factors = [(vectors, other), (squares, other_squares), (vectors, turned)]
        invariants = torch.cat([(a * b).sum(dim=1) for a, b in factors], dim=1)
        change = self.product(of_vectors[:, None] * turned, of_squares[:, None] * outer(vectors, other))
        return self.output(of_scalars * invariants), change


class PerOrder(nn.Module):
    """One mixture of channels for vectors, another for tensors."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, n_out, bias=False)
        self.second = nn.Linear(n_in, n_out, bias=False)
        for linear in (self.first, self.second):
            # Of unit gain: with less, products of what came through several mixtures are too faint to learn from.
            nn.init.normal_(linear.weight, std=n_in**-0.5)

    def forward(self, vectors: Tensor, squares: Tensor) -> Tensor:
        """(n, 3, n_in), (n, 6, n_in) → (n, 9, n_out)."""
        return torch.cat([self.first(vectors), self.second(squares)], dim=1)


def bounded(tensors: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 9, C) → vectors (n, 3, C), tensors (n, 6, C), each kind with a mean square below one over its channels."""
    vectors, squares = orders(tensors)
    return _bounded(vectors), _bounded(squares)


def _bounded(t: Tensor) -> Tensor:
    return t / (1 + (t * t).sum(dim=[1, 2], keepdim=True) / t.shape[2]).sqrt()


def orders(tensors: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 9, c) → vectors (n, 3, c), tensors (n, 6, c): the diagonal, then √2 times xz, yx, zy (``second_power``)."""
    return tensors[:, :3], tensors[:, 3:]


def traceless(squares: Tensor) -> Tensor:
    """(n, 6, c) → the same less a third of the trace: a scalar, of which sums over many atoms would consist."""
    diagonal, rest = squares.split([3, 3], dim=1)
    return torch.cat([diagonal - diagonal.mean(dim=1, keepdim=True), rest], dim=1)


def outer(a: Tensor, b: Tensor) -> Tensor:
    """The traceless symmetric part of a bᵀ: (n, 3, c), (n, 3, c) → (n, 6, c)."""
    rest = (a * b.roll(1, dims=1) + a.roll(1, dims=1) * b) / math.sqrt(2)
    return traceless(torch.cat([a * b, rest], dim=1))


def applied(squares: Tensor, vectors: Tensor) -> Tensor:
    """S V: (n, 6, c), (n, 3, c) → (n, 3, c)."""
    diagonal, rest = squares.split([3, 3], dim=1)
    # In the order of ``rest``: xz, yx, zy couple every component with the one before it, in a circle.
    behind = rest * vectors.roll(1, dims=1) + (rest * vectors).roll(-1, dims=1)
    return diagonal * vectors + behind / math.sqrt(2)
