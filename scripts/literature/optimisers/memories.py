"""What a member of a population remembers, or sees of the others: FLT mask, Performer, LSTM, nothing."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from molflt.attention.build import build_kernel
from molflt.attention.kernels import stable_features
from scripts.literature.optimisers.position_mask import PositionMask

MemoryName = Literal["flt", "performer", "lstm", "none"]
MEMORIES: tuple[MemoryName, ...] = get_args(MemoryName)

State = tuple[Tensor, ...]
"""Of an LSTM h and c, (batch, n, inner) each; empty of everything else, and at the start."""


class Memory(nn.Module):
    """A layer over the members of a population."""

    def forward(
        self, hidden: Tensor, positions: Tensor, epsilon: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """What is added to the hidden vectors, the weights between members, and the new state.

        Args:
            hidden: (batch, n, width).
            positions: from the centroid and in units of the spread, (batch, n, d).
            epsilon: directions of the mask's waves, (r, d).
            state: of the step before.

        Returns:
            (batch, n, width), (batch, heads, n, n), and the state.
        """
        raise NotImplementedError


class AttentionMemory(Memory):
    """A_ij = f̂(Δ_ij) κ(q_i, k_j) / Σ_j κ(q_i, k_j), with f̂ = 1 without a mask, as in Performer.

    The mask may be negative; the sum that divides knows nothing of it and stays positive. Of so few members all pairs
    are cheaper than the linear order, which has the same numbers.
    """

    def __init__(
        self, width: int, n_heads: int, mask: PositionMask | None, generator: torch.Generator, n_features: int = 16
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.mask = mask
        self.kernel = build_kernel("posrf-orf", width // n_heads, n_heads, n_features, 0, generator)
        self.projection = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(
        self, hidden: Tensor, positions: Tensor, epsilon: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """See :class:`Memory`."""
        query, key, value = self.projection(hidden).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        scale = query.shape[-1] ** -0.25
        of_query, of_key = self.kernel(query * scale, key * scale)
        phi_q, phi_k = stable_features(of_query, of_key, None)
        weights = phi_q @ phi_k.transpose(-1, -2)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.mask is not None:
            weights = weights * self.mask(positions, epsilon)
        return self.output((weights @ value).transpose(1, 2).flatten(2)), weights, ()


class LstmMemory(Memory):
    """Every member remembers its own past; what it sees of the others is their mean."""

    def __init__(self, width: int, n_heads: int, inner: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.inner = inner
        self.gates = nn.Linear(width + inner, 4 * inner)
        self.output = nn.Linear(inner, width)

    def forward(
        self, hidden: Tensor, positions: Tensor, epsilon: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """See :class:`Memory`."""
        h, c = state if state else (hidden.new_zeros(*hidden.shape[:-1], self.inner),) * 2
        take, keep, give, new = self.gates(torch.cat([hidden, h], dim=-1)).chunk(4, dim=-1)
        c = torch.sigmoid(keep + 1) * c + torch.sigmoid(take) * torch.tanh(new)
        h = torch.sigmoid(give) * torch.tanh(c)
        return self.output(h), _means(hidden, self.n_heads), (h, c)


class NoMemory(Memory):
    """A feed-forward layer of the same size; the mean of the others, as for :class:`LstmMemory`."""

    def __init__(self, width: int, n_heads: int, inner: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.layer = nn.Sequential(nn.Linear(width, inner), nn.Tanh(), nn.Linear(inner, width))

    def forward(
        self, hidden: Tensor, positions: Tensor, epsilon: Tensor, state: State
    ) -> tuple[Tensor, Tensor, State]:
        """See :class:`Memory`."""
        return self.layer(hidden), _means(hidden, self.n_heads), ()


def build_memory(name: str, width: int, n_heads: int, generator: torch.Generator) -> Memory:
    """The memory of a name in :data:`MEMORIES`; all of them have the same number of parameters to within a tenth."""
    match name:
        case "flt":
            return AttentionMemory(width, n_heads, PositionMask(n_heads), generator)
        case "performer":
            return AttentionMemory(width, n_heads, None, generator)
        case "lstm":
            return LstmMemory(width, n_heads, inner=9)
        case "none":
            return NoMemory(width, n_heads, inner=32)
    raise ValueError(name)


def _means(hidden: Tensor, n_heads: int) -> Tensor:
    """The weights 1/n, (batch, heads, n, n)."""
    batch, n, _ = hidden.shape
    return hidden.new_full((batch, n_heads, n, n), 1 / n)
