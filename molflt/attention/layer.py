"""The attention of molflt (DESIGN §3): exact local RPE on neighbours plus Fourier RPE over all atoms.

    near_ij = exp(q_i·k_j + b_h(|Δ_ij|, z_i, z_j)) env(|Δ_ij|)     neighbours, images included, and i itself
    far_ij  = f̂_h(Δ_ij) c(q_i, k_j)                                every atom
    out_i   = (Σ_near near_ij v_j + Σ_all far_ij v_j) / Σ_near near_ij

The denominator is local and positive: results do not depend on the number of atoms far away, and an n-fold
supercell gives every atom the output it has in the unit cell. The far field is added to the first channels of every
head only (``far_dim``), which is what it costs.

Small structures are contracted on padded pairs, large ones along the neighbour list and through position features
or a mesh; both orders compute the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from molflt.attention.config import FarRank
from molflt.attention.content import BoundedProjection, Gate
from molflt.attention.context import FourierContext, Part
from molflt.attention.geometry import Geometry
from molflt.attention.kernels.kernel import Kernel
from molflt.attention.mechanism import AttentionLayer, heads_first, split_heads
from molflt.attention.moments import LocalMoments
from molflt.attention.near import LocalRPE
from molflt.attention.sparse import scalar_products, weighted_sum


@dataclass
class OnPairs:
    """What a layer makes of a part that is contracted on padded pairs.

    Attributes:
        local: (n_heads, n_structures, n_max, n_max) exp(b_h)·env, images added.
        far: the same shape, f̂_h; None without a far field.
    """

    local: Tensor
    far: Tensor | None


@dataclass
class OnEdges:
    """What a layer makes of a part that is contracted along the neighbour list.

    Attributes:
        local: (n_heads, n_edges) exp(b_h)·env; None where there are so many edges that it is made, a few atoms at a
            time, whenever it is needed.
        on_self: (n_heads, n_atoms) exp(b_h) of every atom with itself.
    """

    local: Tensor | None
    on_self: Tensor


def on_pairs(local_rpe: LocalRPE, rpe_weights: Tensor, part: Part) -> OnPairs:
    """Local factor and f̂ of a part contracted on pairs, for one layer."""
    local = local_rpe(part.geometry, part.neighbourhood)
    if part.far_basis is None:
        return OnPairs(local, None)
    far = rpe_weights.transpose(0, 1) @ part.far_basis.flatten(1)
    return OnPairs(local, far.view(local.shape))


def to_pairs(geometry: Geometry, values: Tensor) -> Tensor:
    """(n_atoms, n_heads, c) → (n_heads, n_structures, n_max, c), zeros where there is no atom."""
    return geometry.pad(values).permute(2, 0, 1, 3)


def from_pairs(geometry: Geometry, padded: Tensor) -> Tensor:
    """(n_heads, n_structures, n_max, c) → (n_atoms, n_heads · c)."""
    return geometry.pack(padded.permute(1, 2, 0, 3).flatten(2))


@dataclass
class Prepared:
    """What a layer makes of a batch.

    Attributes:
        context: what it is made of.
        factors: of every part.
    """

    context: FourierContext
    factors: list[OnPairs | OnEdges]


@dataclass
class _Inputs:
    """Queries, keys, values, and what the far field takes of the atoms; all (n_atoms, n_heads, ...)."""

    query: Tensor
    key: Tensor
    value: Tensor
    factor_q: Tensor | None
    factor_k: Tensor | None

    def of_parts(self, context: FourierContext) -> list[_Inputs]:
        """The same for the atoms of every part."""
        values = (self.query, self.key, self.value, self.factor_q, self.factor_k)
        nothing = [None] * len(context.parts)
        distributed = [nothing if t is None else context.distribute(t) for t in values]
        return [_Inputs(*of_part) for of_part in zip(*distributed, strict=True)]


class FourierAttention(AttentionLayer[FourierContext, Prepared]):
    """One layer.

    Args:
        dim: width of the model.
        n_heads: heads.
        n_rbf: size of the radial basis of the local RPE.
        n_weights: basis functions of f̂; 0 for no far field.
        far_rank: content factor of the far field.
        kernel: feature map of the content factor, for ``far_rank="m"``; else None.
        far_dim: how much of the values the far field carries, all heads together: the first channels of every head.
        moments: of the neighbours, added to the output; None for none.
        dropout: on the values, which is the same in every contraction order.
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_rbf: int,
        n_weights: int,
        far_rank: FarRank,
        kernel: Kernel | None,
        far_dim: int,
        moments: LocalMoments | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.far_rank = far_rank
        self.query_key = BoundedProjection(dim, n_heads)
        self.value = nn.Linear(dim, dim)
        self.local_rpe = LocalRPE(n_rbf, n_heads)
        self.dropout = nn.Dropout(dropout)
        self.far_channels = far_dim // n_heads
        self.output = nn.Linear(dim, dim)
        self.rpe_weights = nn.Parameter(RPE_WEIGHT_STD * torch.randn(n_weights, n_heads))
        if n_weights and far_rank == 1:
            self.query_gate, self.key_gate = Gate(dim, n_heads), Gate(dim, n_heads)
        self.kernel = kernel if n_weights else None
        self.moments = moments

    def prepare(self, geometry: Geometry, context: FourierContext) -> Prepared:
        """See :class:`AttentionLayer`."""
        return Prepared(context, [self._prepare(part) for part in context.parts])

    def _prepare(self, part: Part) -> OnPairs | OnEdges:
        if part.quadratic:
            return on_pairs(self.local_rpe, self.rpe_weights, part)
        around = part.neighbourhood
        streamed = around.n_edges * self.n_heads > _EDGE_FACTORS_KEPT and not torch.is_grad_enabled()
        local = None if streamed else self.local_rpe.on_edges(around)
        return OnEdges(local, self.local_rpe.on_self(around))

    def forward(self, x: Tensor, geometry: Geometry, prepared: Prepared) -> Tensor:
        """See :class:`AttentionLayer`."""
        context = prepared.context
        inputs = self._inputs(x, geometry).of_parts(context)
        found = map(self._attend, inputs, context.parts, prepared.factors)
        out: Tensor = self.output(context.collect(list(found)))
        if self.moments is None or context.moments is None:
            return out
        return out + self.moments(x, context.moments)

    def _inputs(self, x: Tensor, geometry: Geometry) -> _Inputs:
        query, key = self.query_key(x)
        value = self.dropout(split_heads(self.value(x), self.n_heads))
        factor_q = factor_k = None
        if len(self.rpe_weights) and self.far_rank == 1:
            factor_q, factor_k = self.query_gate(x)[..., None], self.key_gate(x)[..., None]
        if self.kernel is not None:
            padded = [heads_first(geometry.pad(t)) for t in (query, key)]
            features = self.kernel(*padded, geometry.atom_mask[:, None, :, None])
            factor_q, factor_k = (geometry.pack(heads_first(f.values())) for f in features)
        return _Inputs(query, key, value, factor_q, factor_k)

    def _attend(self, inputs: _Inputs, part: Part, factors: OnPairs | OnEdges) -> Tensor:
        """(n_part, dim)."""
        if isinstance(factors, OnPairs):
            return self._on_pairs(inputs, part.geometry, factors)
        return self._on_edges(inputs, part, factors)

    def _on_pairs(self, inputs: _Inputs, geometry: Geometry, factors: OnPairs) -> Tensor:
        def padded(t: Tensor) -> Tensor:
            return to_pairs(geometry, t)

        near = (padded(inputs.query) @ padded(inputs.key).transpose(-1, -2)).exp_() * factors.local
        denominator = near.sum(dim=-1, keepdim=True)
        # A place without an atom has an empty neighbourhood; it is dropped below and only must not give NaN.
        denominator = torch.where(denominator > 0, denominator, 1.0)
        value = padded(inputs.value)
        far = factors.far
        if far is None:
            return from_pairs(geometry, (near @ value) / denominator)
        if inputs.factor_q is not None and inputs.factor_k is not None:
            far = far * (padded(inputs.factor_q) @ padded(inputs.factor_k).transpose(-1, -2))
        carried = value[..., : self.far_channels]
        if carried.shape == value.shape:
            return from_pairs(geometry, ((near + far) @ value) / denominator)
        out = near @ value
        out[..., : self.far_channels] += far @ carried
        return from_pairs(geometry, out / denominator)

    def _on_edges(self, inputs: _Inputs, part: Part, factors: OnEdges) -> Tensor:
        query, key, value = (t.transpose(0, 1) for t in (inputs.query, inputs.key, inputs.value))
        near_self = ((query * key).sum(dim=-1).exp() * factors.on_self)[..., None]
        # Numerator and denominator in one pass: the values of the latter are ones.
        values = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        total = self._near(query, key, values, part, factors).addcmul_(near_self, values)
        numerator, denominator = total[..., :-1].transpose(0, 1), total[..., -1:].transpose(0, 1)
        out = numerator / denominator
        if part.operators:
            out[..., : self.far_channels] += self._far(inputs, part) / denominator
        return out.flatten(1)

    def _near(self, query: Tensor, key: Tensor, values: Tensor, part: Part, factors: OnEdges) -> Tensor:
        """Σ over neighbours of near_ij v_j: (n_heads, n_part, ...) each → (n_heads, n_part, channels)."""
        pattern, local = part.neighbourhood.pattern, factors.local
        key = key.contiguous()
        if local is not None:
            return weighted_sum(pattern, scalar_products(pattern, query.contiguous(), key).exp() * local, values)
        out = torch.empty_like(values)
        for atoms, edges, few in pattern.parts(_EDGE_FACTORS_KEPT // self.n_heads):
            weights = scalar_products(few, query[:, atoms].contiguous(), key).exp_()
            weights *= self.local_rpe.on_edges(part.neighbourhood, edges)
            out[:, atoms] = weighted_sum(few, weights, values)
        return out

    def _far(self, inputs: _Inputs, part: Part) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c(q_i, k_j) v_j, (n_part, n_heads, channels): the content factor rides on the values."""
        values = inputs.value[..., : self.far_channels]
        structures = list(zip(part.operators, part.geometry.sizes, strict=True))

        def apply(v: Tensor) -> Tensor:
            blocks = v.split([size for _, size in structures])
            found = [op(self.rpe_weights, block) for (op, _), block in zip(structures, blocks, strict=True)]
            return torch.cat(found)

        if inputs.factor_q is None or inputs.factor_k is None:
            return apply(values)
        total = torch.zeros_like(values)
        step = max(1, _CHANNELS_AT_ONCE // values[0].numel())
        for q, k in zip(inputs.factor_q.split(step, dim=-1), inputs.factor_k.split(step, dim=-1), strict=True):
            expanded = (k[..., :, None] * values[..., None, :]).flatten(2)
            total = total + (q[..., :, None] * apply(expanded).unflatten(2, (q.shape[-1], -1))).sum(dim=2)
        return total


RPE_WEIGHT_STD = 0.5
"""Small enough that the far output starts below the near one, large enough to learn."""

_EDGE_FACTORS_KEPT = 1 << 27
"""Edges times heads held at once where nothing is kept for a derivative: 512 MiB in float32."""

_CHANNELS_AT_ONCE = 1024
"""Values per atom that the far field carries at once; bounds memory, changes no result."""
