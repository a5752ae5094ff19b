"""FLT as published: position and content features concatenated before FAVOR+.

Algorithm 1 of arXiv 2302.01925, kept for comparison. At finite r and m it is neither rotation- nor
translation-invariant, and the result depends on which periodic image of an atom is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from molflt.attention.build import Built, Sizes, build_kernels, build_rpe
from molflt.attention.config import ConcatConfig
from molflt.attention.far.members import GaussianRPE
from molflt.attention.far.undamped import UndampedMethod, build_method, plane_waves, wave_features
from molflt.attention.geometry import Geometry
from molflt.attention.kernels import Kernel, kernelised_attention
from molflt.attention.mechanism import AttentionLayer, SharedPositions, heads_first, merge_heads, split_heads
from molflt.attention.near import Neighbourhood


@dataclass
class ConcatContext:
    """Waves and coefficients of the sampled frequencies.

    Attributes:
        waves: (n_atoms, 2r) [cos 2πξ_k·r_i, sin 2πξ_k·r_i].
        coefficients: (r, n_basis) a_k for each Gaussian of the RPE.
    """

    waves: Tensor
    coefficients: Tensor


class ConcatPositions(SharedPositions):
    """The frequencies and the widths of the RPE, which all layers and heads share."""

    def __init__(self, rpe: GaussianRPE, method: UndampedMethod) -> None:
        super().__init__()
        self.rpe = rpe
        self.method = method

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> ConcatContext:
        """See :class:`SharedPositions`."""
        assert self.rpe is not None
        assert isinstance(self.method, UndampedMethod)
        # As published, positions are relative to the origin of the input.
        positions = geometry.positions + geometry.to_atoms(geometry.centroids)
        waves = plane_waves(positions, self.method.frequencies()).to(geometry.dtype)
        return ConcatContext(waves, self.method.coefficients(self.rpe()).to(geometry.dtype))


class ConcatAttention(AttentionLayer[ConcatContext, ConcatContext]):
    """Kernelised attention on φ(Q̂) and φ(K̂) (Algorithm 1).

    Q̂ = [N₁, Q d^{-1/4}] and K̂ = [N₂, K d^{-1/4}], where N₁ = √|a_k| [cos, sin] and N₂ the same with sign(a_k), the
    real form of Theorem 4.1. The kernel is a feature map of vectors of width dim / n_heads + 2r.
    """

    def __init__(self, dim: int, n_heads: int, n_basis: int, kernel: Kernel, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.rpe_weights = nn.Parameter(0.1 * torch.randn(n_basis, n_heads))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)
        self.kernel = kernel

    def prepare(self, geometry: Geometry, context: ConcatContext) -> ConcatContext:
        """See :class:`AttentionLayer`."""
        return context

    def forward(self, x: Tensor, geometry: Geometry, prepared: ConcatContext) -> Tensor:
        """See :class:`AttentionLayer`."""
        query, key, value = (split_heads(t, self.n_heads) for t in self.projection(x).chunk(3, dim=-1))
        scale = query.shape[-1] ** -0.25
        coefficients = (prepared.coefficients @ self.rpe_weights).transpose(0, 1)
        n1, n2 = wave_features(prepared.waves[:, None, :], coefficients, torch.finfo(coefficients.dtype).eps)
        q, k = torch.cat([n1, query * scale], dim=-1), torch.cat([n2, key * scale], dim=-1)
        q, k, v = (heads_first(geometry.pad(t)) for t in (q, k, self.dropout(value)))
        out = kernelised_attention(self.kernel, q, k, v, geometry.atom_mask[:, None, :, None])
        return self.output(geometry.pack(merge_heads(out)))


def build_concat(config: ConcatConfig, sizes: Sizes) -> Built:
    """Build FLT as published, Algorithm 1."""
    rpe = build_rpe(config)
    width = sizes.head_dim + 2 * config.n_frequencies
    return ConcatPositions(rpe, build_method(config, rpe, sizes.seed)), [
        ConcatAttention(sizes.dim, sizes.n_heads, config.n_basis, kernel, sizes.dropout)
        for kernel in build_kernels(config, width, sizes)
    ]
