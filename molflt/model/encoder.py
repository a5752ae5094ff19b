"""Pre-norm transformer layers with iterative refinement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from molflt.attention.geometry import Geometry
from molflt.attention.mechanism import AttentionLayer, Context
from molflt.attention.vectors import COMPONENTS


def full_precision(device: torch.device) -> torch.autocast:
    """A context without autocast: exponentials of attention and sums over atoms keep the dtype of the weights."""
    return torch.autocast(device.type, enabled=False)


class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x)). Autocast reaches the feed-forward block only."""

    def __init__(self, attention: AttentionLayer[Any, Any], dim: int, ffn_dim: int, dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim))
        self.dropout = nn.Dropout(dropout)

    def prepare(self, geometry: Geometry, context: Context) -> Any:
        """See :class:`AttentionLayer`."""
        with full_precision(geometry.positions.device):
            return self.attention.prepare(geometry, context)

    def forward(self, x: Tensor, geometry: Geometry, prepared: Any) -> Tensor:
        """(n_atoms, dim + 9 C), see :class:`AttentionLayer` → the same."""
        # Neither normalisation nor dropout may act on the components of a vector, and without vectors nothing is split.
        x, tensors = (x, x[:, :0]) if x.shape[1] == self.dim else x.split([self.dim, x.shape[1] - self.dim], dim=1)
        with full_precision(x.device):
            normed = self.attention_norm(x)
            if not tensors.shape[1]:
                x = x + self.dropout(self.attention(normed, geometry, prepared))
            else:
                change = self.attention(torch.cat([normed, tensors], dim=1), geometry, prepared)
                x, tensors = x + self.dropout(change[:, : self.dim]), tensors + change[:, self.dim :]
        x = x + self.dropout(self.ffn(self.ffn_norm(x)))
        return torch.cat([x, tensors], dim=1) if tensors.shape[1] else x


class Encoder(nn.Module):
    """A stack of layers applied ``n_recycles`` times with the same weights, its output fed back.

    Args:
        layers: one attention per layer.
        dim: width of the model.
        ffn_dim: width of the feed-forward block.
        dropout: after attention and feed-forward.
        n_recycles: passes through the stack (iterative refinement; 4 in FLT appendix B.3).

    Attributes:
        checkpoint_recycles: a backward pass computes each recycle again instead of keeping what is inside it: the
            memory of one recycle, for a third more time.
    """

    def __init__(
        self, layers: Sequence[AttentionLayer[Any, Any]], dim: int, ffn_dim: int, dropout: float, n_recycles: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(layer, dim, ffn_dim, dropout) for layer in layers)
        self.n_recycles = n_recycles
        self.checkpoint_recycles = False
        self.dim, self.vector_width = dim, COMPONENTS * max((layer.vector_channels for layer in layers), default=0)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor, geometry: Geometry, context: Context) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim). ``geometry`` and ``context`` serve every layer and recycle."""
        layers = [layer for layer in self.layers if isinstance(layer, EncoderLayer)]
        if self.vector_width:
            x = torch.cat([x, x.new_zeros(len(x), self.vector_width)], dim=1)
        if self.n_recycles == 1:
            for layer in layers:
                x = layer(x, geometry, layer.prepare(geometry, context))
            return self.norm(x[:, : self.dim])
        prepared = [layer.prepare(geometry, context) for layer in layers]

        def once(x: Tensor) -> Tensor:
            for layer, ready in zip(layers, prepared, strict=True):
                x = layer(x, geometry, ready)
            return x

        for _ in range(self.n_recycles):
            if self.checkpoint_recycles and torch.is_grad_enabled():
                x = checkpoint(once, x, use_reentrant=False)
            else:
                x = once(x)
        return self.norm(x[:, : self.dim])
