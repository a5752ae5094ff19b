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

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.config import FarRank
from molflt.attention.context import FourierContext, Part
from molflt.attention.geometry import Geometry
from molflt.attention.kernels.kernel import Kernel
from molflt.attention.mechanism import AttentionLayer, heads_first, split_heads
from molflt.attention.moments import LocalMoments
from molflt.attention.near import LocalRPE
from molflt.attention.sparse import scalar_products, weighted_sum
from molflt.attention.vectors import COMPONENTS, VectorStream


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
    """What a layer makes of the positions of a batch.

    Attributes:
        context: what it is made of.
        factors: of every part.
    """

    context: FourierContext
    factors: list[OnPairs | OnEdges]


@dataclass
class _Content:
    """What a layer makes of the atoms' features; each (n_atoms, n_heads, ...).

    Attributes:
        q, k, v: queries, keys, values: first those that the far field carries, vectors before scalars.
        c_q, c_k: the content factor is c(q_i, k_j) = c_q_i · c_k_j; None where it is one.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    c_q: Tensor | None
    c_k: Tensor | None

    def of_parts(self, context: FourierContext) -> list[_Content]:
        """The same for the atoms of every part."""
        nothing = [None] * len(context.parts)
        values = (self.q, self.k, self.v, self.c_q, self.c_k)
        distributed = [nothing if t is None else context.distribute(t) for t in values]
        return [_Content(*of_part) for of_part in zip(*distributed, strict=True)]


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
        stream: of vectors, which takes up the moments; None for none.
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
        stream: VectorStream | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.dim = dim
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
        self.stream = stream
        self.vector_channels = 0 if stream is None else stream.n_channels
        self._far_vectors = 0 if stream is None else COMPONENTS * stream.far_channels
        self._carried = self._far_vectors + self.far_channels

    def forward(self, x: Tensor, geometry: Geometry, prepared: Prepared) -> Tensor:
        """See :class:`AttentionLayer`."""
        moments = prepared.context.moments
        if self.moments is None or moments is None:
            return self.output(self._attended(x, None, geometry, prepared))
        if self.stream is None:
            return self.output(self._attended(x, None, geometry, prepared)) + self.moments(x, moments)
        x, flat = x.split([self.dim, COMPONENTS * self.vector_channels], dim=1)
        given = flat.view(-1, COMPONENTS, self.vector_channels)
        sums = torch.cat(list(self.moments.sums(x, moments)))
        tensors = given + self.stream.take(sums)
        values = self.stream.values(x, tensors)
        attended = self._attended(x, values, geometry, prepared).view(len(x), self.n_heads, -1)
        far, near = self._far_vectors, values.shape[2] - self._far_vectors
        first, heads, others = attended.split([far, attended.shape[2] - far - near, near], dim=2)
        tensors = tensors + self.stream.gather(torch.cat([first, others], dim=2))
        of_products, change = self.stream.products(x, tensors)
        out = self.output(heads.flatten(1)) + self.moments.read(sums) + of_products
        return torch.cat([out, (tensors - given + change).flatten(1)], dim=1)

    def _attended(self, x: Tensor, vectors: Tensor | None, geometry: Geometry, prepared: Prepared) -> Tensor:
        """(n_atoms, n_heads · channels) of the values of vectors, if any, and those of the atoms' features."""
        context = prepared.context
        content = self._content(x, vectors, geometry).of_parts(context)
        attended = [self._attend(*of_part) for of_part in zip(content, context.parts, prepared.factors, strict=True)]
        return context.collect(attended)

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

    def _content(self, x: Tensor, vectors: Tensor | None, geometry: Geometry) -> _Content:
        q, k = self.query_key(x)
        v = self.dropout(split_heads(self.value(x), self.n_heads))
        if vectors is not None:
            far = self._far_vectors
            v = torch.cat([vectors[..., :far], v, vectors[..., far:]], dim=2)
        c_q = c_k = None
        if len(self.rpe_weights) and self.far_rank == 1:
            c_q, c_k = self.query_gate(x)[..., None], self.key_gate(x)[..., None]
        if self.kernel is not None:
            padded = [heads_first(geometry.pad(t)) for t in (q, k)]
            features = self.kernel(*padded, geometry.atom_mask[:, None, :, None])
            c_q, c_k = (geometry.pack(heads_first(phi.values())) for phi in features)
        return _Content(q, k, v, c_q, c_k)

    def _attend(self, content: _Content, part: Part, factors: OnPairs | OnEdges) -> Tensor:
        """(n_part, n_heads · channels): (Σ_near near_ij v_j + Σ_all far_ij v_j) / Σ_near near_ij."""
        if isinstance(factors, OnPairs):
            return self._on_pairs(content, part.geometry, factors)
        return self._on_edges(content, part, factors)

    def _on_pairs(self, content: _Content, geometry: Geometry, factors: OnPairs) -> Tensor:
        def padded(t: Tensor) -> Tensor:
            return to_pairs(geometry, t)

        q, k, v = padded(content.q), padded(content.k), padded(content.v)
        near = (q @ k.transpose(-1, -2)).exp_() * factors.local
        denominator = near.sum(dim=-1, keepdim=True)
        # A place without an atom has an empty neighbourhood. It is dropped below, and only must not give NaN.
        denominator = torch.where(denominator > 0, denominator, 1.0)
        far = factors.far
        if far is None:
            return from_pairs(geometry, (near @ v) / denominator)
        if content.c_q is not None and content.c_k is not None:
            far = far * (padded(content.c_q) @ padded(content.c_k).transpose(-1, -2))
        carried = v[..., : self._carried]
        if carried.shape == v.shape:
            return from_pairs(geometry, ((near + far) @ v) / denominator)
        out = near @ v
        out[..., : self._carried] += far @ carried
        return from_pairs(geometry, out / denominator)

    def _on_edges(self, content: _Content, part: Part, factors: OnEdges) -> Tensor:
        q, k, v = (t.transpose(0, 1) for t in (content.q, content.k, content.v))
        # Numerator and denominator in one pass: the values of the latter are ones.
        v_and_one = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        near_self = ((q * k).sum(dim=-1).exp() * factors.on_self)[..., None]
        total = self._near_sum(q, k, v_and_one, part, factors).addcmul_(near_self, v_and_one)
        numerator, denominator = total.transpose(0, 1).split([v.shape[-1], 1], dim=-1)
        out = numerator / denominator
        if part.operators:
            out[..., : self._carried] += self._far_sum(content, part) / denominator
        return out.flatten(1)

    def _near_sum(self, q: Tensor, k: Tensor, v: Tensor, part: Part, factors: OnEdges) -> Tensor:
        """Σ_j near_ij v_j over the neighbours: (n_heads, n_part, ...) each → (n_heads, n_part, channels)."""
        pattern, local = part.neighbourhood.pattern, factors.local
        k = k.contiguous()
        if local is not None:
            return weighted_sum(pattern, scalar_products(pattern, q.contiguous(), k).exp() * local, v)
        out = torch.empty_like(v)
        for atoms, edges, few in pattern.parts(_EDGE_FACTORS_KEPT // self.n_heads):
            near = scalar_products(few, q[:, atoms].contiguous(), k).exp_()
            near *= self.local_rpe.on_edges(part.neighbourhood, edges)
            out[:, atoms] = weighted_sum(few, near, v)
        return out

    def _far_sum(self, content: _Content, part: Part) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c(q_i, k_j) v_j, (n_part, n_heads, channels): the content factor rides on the values."""
        carried = content.v[..., : self._carried]

        def convolved(v: Tensor) -> Tensor:
            """Σ_j f̂_h(Δ_ij) v_j."""
            blocks = v.split(part.geometry.sizes)
            return torch.cat([f(self.rpe_weights, block) for f, block in zip(part.operators, blocks, strict=True)])

        if content.c_q is None or content.c_k is None:
            return convolved(carried)
        total = torch.zeros_like(carried)
        step = max(1, _CHANNELS_AT_ONCE // carried[0].numel())
        for c_q, c_k in zip(content.c_q.split(step, dim=-1), content.c_k.split(step, dim=-1), strict=True):
            expanded = (c_k[..., :, None] * carried[..., None, :]).flatten(2)
            total = total + (c_q[..., :, None] * convolved(expanded).unflatten(2, (c_q.shape[-1], -1))).sum(dim=2)
        return total


RPE_WEIGHT_STD = 0.5
"""Small enough that the far output starts below the near one, large enough to learn."""

_EDGE_FACTORS_KEPT = 1 << 27
"""Edges times heads held at once where nothing is kept for a derivative: 512 MiB in float32."""

_CHANNELS_AT_ONCE = 1024
"""Values per atom that the far field carries at once; bounds memory, changes no result."""
