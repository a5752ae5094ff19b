"""Kernelised attention without positional encoding, with any feature map (FLT Eq. 2)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from molflt.attention.build import Built, Sizes, build_kernels
from molflt.attention.config import KernelisedConfig
from molflt.attention.geometry import Geometry
from molflt.attention.kernels import Kernel, kernelised_attention
from molflt.attention.mechanism import AttentionLayer, SharedPositions, heads_first, merge_heads, split_heads


class ContentAttention(AttentionLayer[Any, None]):
    """Projections and heads around a mechanism that ignores positions.

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
        """Apply the mechanism, whose kernel is exp(q·k), to queries, keys and values.

        Three times (n_structures, n_heads, n_max, head_dim) → the same.
        """
        raise NotImplementedError

    def prepare(self, geometry: Geometry, context: Any) -> None:
        """See :class:`AttentionLayer`. Positions do not enter."""

    def forward(self, x: Tensor, geometry: Geometry, prepared: None) -> Tensor:
        """See :class:`AttentionLayer`."""
        query, key, value = (split_heads(t, self.n_heads) for t in self.projection(x).chunk(3, dim=-1))
        scale = query.shape[-1] ** -0.25
        q, k, v = (heads_first(geometry.pad(t)) for t in (query * scale, key * scale, self.dropout(value)))
        return self.output(geometry.pack(merge_heads(self.attend(q, k, v, geometry))))


class KernelisedAttention(ContentAttention):
    """D̂⁻¹(Q'(K'ᵀV)), Q' and K' the features of q d^{-1/4} and k d^{-1/4}. Linear in the atoms.

    With positive features and orthogonal weights it is Performer.

    Args:
        dim: width of the model.
        n_heads: heads.
        kernel: the feature map.
        dropout: on the values.
    """

    def __init__(self, dim: int, n_heads: int, kernel: Kernel, dropout: float) -> None:
        super().__init__(dim, n_heads, dropout)
        self.kernel = kernel

    def attend(self, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry) -> Tensor:
        """See :class:`ContentAttention`."""
        return kernelised_attention(self.kernel, query, key, value, geometry.atom_mask[:, None, :, None])


def build_kernelised(config: KernelisedConfig, sizes: Sizes) -> Built:
    """Build the mechanism for a model of these sizes."""
    return SharedPositions(), [
        KernelisedAttention(sizes.dim, sizes.n_heads, kernel, sizes.dropout)
        for kernel in build_kernels(config, sizes.head_dim, sizes)
    ]
