"""The interface of all attention mechanisms."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.near import Neighbourhood


class AttentionLayer(nn.Module):
    """One layer of attention over the atoms of each structure."""

    def prepare(self, geometry: Geometry, context: Any) -> Any:
        """What the layer makes of positions alone: once for a batch, however often the layer is applied.

        Args:
            geometry: of the batch.
            context: what the mechanism's shared part prepared. It is all there is to know, unless a layer says
                otherwise.
        """
        return context

    def forward(self, x: Tensor, geometry: Geometry, prepared: Any) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim); ``prepared`` comes from :meth:`prepare`."""
        raise NotImplementedError


class ContentAttention(AttentionLayer):
    """Projections and heads around a mechanism that sees no positions.

    Args:
        dim: width of the model.
        n_heads: heads.
        dropout: on the values.
    """

    def __init__(self, dim: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry) -> Tensor:
        """The mechanism: three times (n_structures, n_heads, n_max, head_dim) → the same; the kernel is exp(q·k)."""
        raise NotImplementedError

    def forward(self, x: Tensor, geometry: Geometry, prepared: None) -> Tensor:
        """See :class:`AttentionLayer`."""
        query, key, value = (split_heads(t, self.n_heads) for t in self.projection(x).chunk(3, dim=-1))
        scale = query.shape[-1] ** -0.25
        q, k, v = (heads_first(geometry.pad(t)) for t in (query * scale, key * scale, self.dropout(value)))
        return self.output(geometry.pack(merge_heads(self.attend(q, k, v, geometry))))


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
