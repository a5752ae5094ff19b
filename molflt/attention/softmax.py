"""Dense softmax attention with Graphormer's distance bias: the quadratic reference.

    A_ij = Σ_images exp(q_i·k_j/√d + b_h(|Δ_ij|, z_i, z_j)) env(|Δ_ij|),  out_i = Σ_j A_ij v_j / Σ_j A_ij

Isolated structures see all pairs, with env = 1 (3D-Graphormer, arXiv 2203.04810). Periodic ones, where the
number of images has no end, see them up to a cutoff with a smooth envelope.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.build import Built, Sizes
from molflt.attention.config import SoftmaxConfig
from molflt.attention.geometry import Geometry
from molflt.attention.mechanism import AttentionLayer, SharedPositions, heads_first, merge_heads, split_heads
from molflt.attention.near import GaussianDistanceBasis, LocalRPE, Neighbourhood, neighbourhood_of


class SoftmaxPositions(SharedPositions):
    """Radial features of every pair, shared by all layers and heads.

    Args:
        n_rbf: size of the radial basis.
        cutoff: Å, reach in periodic structures.
        pair_types: of the radial basis.
    """

    wide = True

    def __init__(self, n_rbf: int, cutoff: float, pair_types: bool) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.radial = GaussianDistanceBasis(n_rbf, cutoff, pair_types)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> Neighbourhood:
        """Return the radial features of every pair that interacts, from which layers compute their biases.

        The geometry must hold all pairs of isolated structures as edges.
        """
        entries = geometry.layout.wide
        assert entries is not None
        isolated = ~geometry.pbc.any(dim=1)
        unending = isolated.index_select(0, geometry.structure.index_select(0, entries.receiver))
        displacements = geometry.displacements(entries)
        return neighbourhood_of(geometry, entries, displacements, self.radial, self.cutoff, unending)


class SoftmaxAttention(AttentionLayer[Neighbourhood, Tensor]):
    """One layer of dense softmax attention.

    Args:
        dim: width of the model.
        n_heads: heads.
        n_rbf: size of the radial basis of the bias.
        dropout: on the values.
    """

    def __init__(self, dim: int, n_heads: int, n_rbf: int, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.local_rpe = LocalRPE(n_rbf, n_heads)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)

    def prepare(self, geometry: Geometry, context: Neighbourhood) -> Tensor:
        """(n_structures, n_heads, n_max, n_max): the bias of every pair, −∞ if out of reach."""
        factor = self.local_rpe(geometry, context).transpose(0, 1)
        seen = factor > 0
        bias = torch.where(seen, torch.where(seen, factor, 1.0).log(), -torch.inf)
        # Empty places see no atom; they are dropped below but must not give NaN.
        return bias.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0)

    def forward(self, x: Tensor, geometry: Geometry, prepared: Tensor) -> Tensor:
        """See :class:`AttentionLayer`."""
        query, key, value = (split_heads(t, self.n_heads) for t in self.projection(x).chunk(3, dim=-1))
        q, k, v = (heads_first(geometry.pad(t)) for t in (query, key, self.dropout(value)))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=prepared)
        return self.output(geometry.pack(merge_heads(out)))


def build_softmax(config: SoftmaxConfig, sizes: Sizes) -> Built:
    """Build the mechanism for a model of these sizes."""
    return SoftmaxPositions(sizes.n_rbf, config.dense_cutoff, sizes.pair_types), [
        SoftmaxAttention(sizes.dim, sizes.n_heads, sizes.n_rbf, sizes.dropout) for _ in range(sizes.n_layers)
    ]
