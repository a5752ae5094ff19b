"""The interface of all attention mechanisms."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.local_rpe import Neighbourhood


class AttentionLayer(nn.Module):
    """One layer of attention over the atoms of each structure."""

    def forward(self, x: Tensor, geometry: Geometry, context: Any) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim); ``context`` is what the mechanism's shared part prepared."""
        raise NotImplementedError


class SharedPositions(nn.Module):
    """What all layers of a mechanism share: computed once per structure, reused in every layer and recycle."""

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> Any:
        """Prepare the context that every layer receives. Nothing, unless a mechanism says otherwise."""
        return None


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(n_atoms, dim) → (n_atoms, n_heads, dim / n_heads)."""
    return x.view(x.shape[0], n_heads, -1)


def merge_heads(x: Tensor) -> Tensor:
    """(n_structures, n_heads, n_max, head_dim) → (n_structures, n_max, dim)."""
    return x.transpose(1, 2).flatten(2)


def heads_first(padded: Tensor) -> Tensor:
    """(n_structures, n_max, n_heads, head_dim) → (n_structures, n_heads, n_max, head_dim), and back."""
    return padded.transpose(1, 2)
