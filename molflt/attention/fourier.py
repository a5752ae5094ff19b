"""The attention of molflt (DESIGN §3): exact local RPE on neighbours plus Fourier RPE over all atoms.

    near_ij = exp(q_i·k_j + b_h(|Δ_ij|, z_i, z_j)) env(|Δ_ij|)     neighbours, images included, and i itself
    far_ij  = f̂_h(Δ_ij) c(q_i, k_j)                                every atom
    out_i   = (Σ_near near_ij v_j + Σ_all far_ij v_j) / Σ_near near_ij

The denominator is local and positive: results do not depend on the number of atoms far away, and an n-fold
supercell gives every atom the output it has in the unit cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from molflt.attention.config import FarRank
from molflt.attention.content_kernel import BoundedProjection, Gate
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.layer import AttentionLayer, SharedPositions, heads_first, merge_heads, split_heads
from molflt.attention.local_rpe import LocalRPE, Neighbourhood
from molflt.attention.positive_features import orthogonal_gaussian, positive_features
from molflt.attention.rpe import GaussianRPE


@dataclass
class FourierContext:
    """Position features of a batch.

    Attributes:
        neighbourhood: radial features of the neighbour list.
        far_basis: (n_structures, n_max, n_max, n_weights) basis of f̂ on all pairs; None without a far field.
    """

    neighbourhood: Neighbourhood
    far_basis: Tensor | None


class FourierPositions(SharedPositions):
    """Widths of the RPE function and the numerical method that evaluates it; shared by all layers and heads.

    Args:
        rpe: the RPE function; None without a far field.
        method: how it is evaluated.
    """

    def __init__(self, rpe: GaussianRPE | None, method: FrequencyMethod | None) -> None:
        super().__init__()
        self.rpe = rpe
        self.method = method

    @property
    def n_weights(self) -> int:
        """Weights per layer and head; 0 without a far field."""
        return 0 if self.method is None or self.rpe is None else self.method.n_weights(self.rpe.n_basis)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> FourierContext:
        """See :class:`SharedPositions`."""
        if self.method is None or self.rpe is None:
            return FourierContext(neighbourhood, None)
        return FourierContext(neighbourhood, self.method.pair_basis(geometry, self.rpe()))


class FourierAttention(AttentionLayer):
    """One layer.

    Args:
        dim: width of the model.
        n_heads: heads.
        n_rbf: size of the radial basis of the local RPE.
        n_weights: basis functions of f̂; 0 for no far field.
        far_rank: content factor of the far field.
        n_features: m, for ``far_rank="m"``.
        dropout: on the values, which is the same in every contraction order.
        generator: draws the random features.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_rbf: int,
        n_weights: int,
        far_rank: FarRank,
        n_features: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.far_rank = far_rank
        self.query_key = BoundedProjection(dim, n_heads)
        self.value = nn.Linear(dim, dim)
        self.local_rpe = LocalRPE(n_rbf, n_heads)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)
        self.rpe_weights = nn.Parameter(_RPE_WEIGHT_STD * torch.randn(n_weights, n_heads))
        if n_weights and far_rank == 1:
            self.query_gate, self.key_gate = Gate(dim, n_heads), Gate(dim, n_heads)
        if n_weights and far_rank == "m":
            self.omega: Tensor
            self.register_buffer("omega", orthogonal_gaussian(n_features, dim // n_heads, generator))

    def forward(self, x: Tensor, geometry: Geometry, context: FourierContext) -> Tensor:
        """See :class:`AttentionLayer`."""
        query, key = self.query_key(x)
        value = self.dropout(split_heads(self.value(x), self.n_heads))
        q, k, v = (heads_first(geometry.pad(t)) for t in (query, key, value))
        local = self.local_rpe(geometry, context.neighbourhood).permute(0, 3, 1, 2)
        near = (q @ k.transpose(-1, -2)).exp() * local
        denominator = near.sum(dim=-1, keepdim=True)
        weights = near
        if context.far_basis is not None:
            weights = near + self.far_weights(x, query, key, geometry, context.far_basis)
        # A place without an atom has an empty neighbourhood; it is dropped below and only must not give NaN.
        out = (weights @ v) / torch.where(denominator > 0, denominator, 1.0)
        return self.output(geometry.pack(merge_heads(out)))

    def far_weights(self, x: Tensor, query: Tensor, key: Tensor, geometry: Geometry, far_basis: Tensor) -> Tensor:
        """f̂_h(Δ_ij) · c(q_i, k_j), (n_structures, n_heads, n_max, n_max)."""
        rpe = (far_basis @ self.rpe_weights).permute(0, 3, 1, 2)
        if self.far_rank == 0:
            return rpe
        if self.far_rank == 1:
            gate_q = heads_first(geometry.pad(self.query_gate(x)[..., None]))
            gate_k = heads_first(geometry.pad(self.key_gate(x)[..., None]))
            return rpe * gate_q * gate_k.transpose(-1, -2)
        features_q = heads_first(geometry.pad(positive_features(query, self.omega)))
        features_k = heads_first(geometry.pad(positive_features(key, self.omega)))
        return rpe * (features_q @ features_k.transpose(-1, -2))


_RPE_WEIGHT_STD = 0.5
"""Small enough that the far output starts below the near one, large enough to learn."""
