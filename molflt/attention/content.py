"""Queries and keys of bounded length, and the content kernel κ(q, k) ≈ exp(q·k/√d) of the far field."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

TEMPERATURE_MAX = 16.0
"""Bound of q·k/√d. exp(±16) is far from the limits of every floating type in use."""
TEMPERATURE_START = 2.0


class BoundedProjection(nn.Module):
    """Queries and keys of length √τ_h, so that q·k lies in [−τ_h, τ_h] with a learnable temperature τ_h.

    κ is then an absolute number: no maximum has to be subtracted from an exponent, and none can tie a structure
    to its batch-mates. The factor 1/√d of the formulas is contained in τ.

    Args:
        dim: width of the model.
        n_heads: heads; must divide ``dim``.
    """

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.projection = nn.Linear(dim, 2 * dim, bias=False)
        start = TEMPERATURE_START / TEMPERATURE_MAX
        self.raw_temperature = nn.Parameter(torch.full((n_heads,), math.log(start / (1 - start))))

    @property
    def temperature(self) -> Tensor:
        """τ_h, (n_heads,), between 0 and TEMPERATURE_MAX."""
        return TEMPERATURE_MAX * torch.sigmoid(self.raw_temperature)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n_atoms, dim) → queries, keys (n_atoms, n_heads, head_dim)."""
        query, key = self.projection(x).view(x.shape[0], 2, self.n_heads, -1).unbind(dim=1)
        length = self.temperature.sqrt()[:, None]
        return functional.normalize(query, dim=-1) * length, functional.normalize(key, dim=-1) * length


class Gate(nn.Module):
    """A positive gate per atom and head, one on start: a content factor of rank one."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, n_heads)
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, math.log(math.e - 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n_atoms, dim) → (n_atoms, n_heads), positive."""
        return functional.softplus(self.linear(x))
