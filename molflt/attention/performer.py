"""Kernelised attention without positional encoding: Performer with positive random features (FLT Eq. 2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.layer import AttentionLayer, heads_first, merge_heads, split_heads
from molflt.attention.positive_features import feature_exponent, orthogonal_gaussian


class PerformerAttention(AttentionLayer):
    """D̂⁻¹(Q'(K'ᵀV)) with Q', K' the positive features of q d^{-1/4} and k d^{-1/4}. Linear in the atoms.

    Args:
        dim: width of the model.
        n_heads: heads.
        n_features: m.
        dropout: on the values.
        generator: draws the random features.
    """

    def __init__(self, dim: int, n_heads: int, n_features: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)
        self.omega: Tensor
        self.register_buffer("omega", orthogonal_gaussian(n_features, dim // n_heads, generator))

    def forward(self, x: Tensor, geometry: Geometry, context: None) -> Tensor:
        """See :class:`AttentionLayer`."""
        query, key, value = (split_heads(t, self.n_heads) for t in self.projection(x).chunk(3, dim=-1))
        scale = query.shape[-1] ** -0.25
        q, k, v = (heads_first(geometry.pad(t)) for t in (query * scale, key * scale, self.dropout(value)))
        out = kernelised_attention(q, k, v, self.omega, geometry.atom_mask[:, None, :, None])
        return self.output(geometry.pack(merge_heads(out)))


def kernelised_attention(q: Tensor, k: Tensor, v: Tensor, omega: Tensor, mask: Tensor) -> Tensor:
    """Normalised attention with positive features, safe against overflow and against padding.

    The maximum subtracted from a query's exponents is that query's own and cancels against the normaliser; the
    keys share one maximum per structure and head, since a maximum per key would not cancel. Padding is masked
    in φ(K), so that it reaches neither the numerator nor the normaliser.

    Args:
        q: (n_structures, n_heads, n_max, c), scaled so that the kernel is exp(q·k).
        k: as q.
        v: (n_structures, n_heads, n_max, head_dim).
        omega: (m, c).
        mask: (n_structures, 1, n_max, 1) bool.
    """
    exponent_q = feature_exponent(q, omega)
    exponent_k = feature_exponent(k, omega).masked_fill(~mask, -torch.inf)
    features_q = torch.exp(exponent_q - exponent_q.amax(dim=-1, keepdim=True).detach())
    features_k = torch.exp(exponent_k - exponent_k.amax(dim=(-2, -1), keepdim=True).detach())
    numerator = features_q @ (features_k.transpose(-1, -2) @ v)
    normaliser = features_q @ features_k.sum(dim=-2)[..., None]
    # A query none of whose features meets a key's gets zero instead of NaN. The root, because the backward pass
    # divides by the square.
    met = normaliser > math.sqrt(torch.finfo(normaliser.dtype).tiny)
    return torch.where(met, numerator / torch.where(met, normaliser, 1.0), 0.0)
