"""molflt's attention (DESIGN §3): exact local RPE on neighbours, Fourier RPE over all atoms.

    near_ij = exp(q_i·k_j + b_h(|Δ_ij|, z_i, z_j)) env(|Δ_ij|)     neighbours, images included, and i itself
    far_ij  = f̂_h(Δ_ij) c(q_i, k_j)                                every atom
    out_i   = (Σ_near near_ij v_j + Σ_all far_ij v_j) / Σ_near near_ij

The denominator is local and positive: results do not depend on the number of atoms far away, and an n-fold
supercell gives every atom the output it has in the unit cell. The far field is added to the first channels of every
head only (``far_dim``), which limits its cost.

The near sum runs along the neighbour list, the far one on pairs, over waves or on a mesh (``far/ways.py``), in each
way for many structures at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.config import FarRank
from molflt.attention.far.field import FarField
from molflt.attention.far.ways import Group
from molflt.attention.geometry import Geometry
from molflt.attention.mechanism import COMPONENTS, AttentionLayer, FourierContext, heads_first, split_heads
from molflt.attention.moments import LocalMoments
from molflt.attention.near import LocalRPE
from molflt.attention.smooth import NOTHING, shortened
from molflt.attention.sparse import scalar_products, weighted_sum

if TYPE_CHECKING:
    from molflt.attention.kernels import Kernel
    from molflt.attention.vectors import VectorStream


@dataclass
class Prepared:
    """Positional quantities of a batch for one layer.

    Attributes:
        context: from which they are computed.
        local: (n_heads, n_entries) exp(b_h)·env; None if there are so many entries that it is computed on demand, a
            few atoms at a time.
    """

    context: FourierContext
    local: Tensor | None


@dataclass
class _Content:
    """Projections of the atoms' features in a layer; each (n_atoms, n_heads, ...).

    Attributes:
        q, k: queries and keys.
        carried, rest: values: those that the far field carries, vectors before scalars, and the others.
        one: ones.
        c_q, c_k: the content factor is c(q_i, k_j) = c_q_i · c_k_j; None where it is one.
    """

    q: Tensor
    k: Tensor
    carried: Tensor
    rest: Tensor
    one: Tensor
    c_q: Tensor | None
    c_k: Tensor | None


TEMPERATURE_MAX = 16.0
"""Bound of q·k/√d. exp(±16) is far from the limits of every floating type in use."""
TEMPERATURE_START = 2.0


class BoundedProjection(nn.Module):
    """Queries and keys of length √τ_h, with a learnable temperature τ_h.

    Their product q·k lies in [−τ_h, τ_h]. κ is then an absolute number: no maximum has to be subtracted from an
    exponent, and none can tie a structure to its batch-mates. The factor 1/√d of the formulas is contained in τ.

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

    def of_length(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Scale projections (n_atoms, 2 dim) to queries and keys (n_atoms, n_heads, head_dim)."""
        unit = shortened(projected.view(len(projected), 2, self.n_heads, -1), NOTHING)
        query, key = (unit * self.temperature.sqrt()[:, None]).unbind(dim=1)
        return query, key

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n_atoms, dim) → queries, keys (n_atoms, n_heads, head_dim)."""
        return self.of_length(self.projection(x))


class Gate(nn.Module):
    """Positive gate per atom and head, initially one: a content factor of rank one."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, n_heads)
        nn.init.zeros_(self.linear.weight)
        nn.init.constant_(self.linear.bias, math.log(math.e - 1))

    def forward(self, x: Tensor) -> Tensor:
        """(n_atoms, dim) → (n_atoms, n_heads), positive."""
        return functional.softplus(self.linear(x))


class FourierAttention(AttentionLayer[FourierContext, Prepared]):
    """One layer of local and Fourier RPE attention.

    Args:
        dim: width of the model.
        n_heads: heads.
        n_rbf: size of the radial basis of the local RPE.
        n_weights: basis functions of f̂; 0 for no far field.
        far_rank: content factor of the far field.
        kernel: feature map of the content factor, for ``far_rank="m"``; else None.
        far_dim: width of the values that the far field carries, all heads together: the first channels of every head.
        moments: of the neighbours, added to the output; None: no moments.
        stream: of vectors, which takes up the moments; None: no vectors.
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
        self.one: Tensor
        self.register_buffer("one", torch.ones(1, 1, 1), persistent=False)

    def forward(
        self, x: Tensor, geometry: Geometry, prepared: Prepared, tensors: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See :class:`AttentionLayer`; a layer with vectors takes and returns these, too."""
        stream, own = self.stream, self.moments
        linears = [self.query_key.projection, self.value, *self._gates]
        if stream is not None:
            linears += [stream.gate, stream.sender_gate]
        projected = together(x, linears if own is None else [*linears, own.value])
        if own is None:
            return self.output(self._attended(projected, None, geometry, prepared))
        assert prepared.context.moments is not None
        sums = prepared.context.moments.sums(own.filters, projected.pop())
        if stream is None:
            return self.output(self._attended(projected, None, geometry, prepared)) + own.read(sums)
        assert tensors is not None
        tensors = tensors + stream.take(sums)
        values, gates = stream.values(projected.pop(), tensors), projected.pop()
        attended = self._attended(projected, values, geometry, prepared).view(len(x), self.n_heads, -1)
        far, near = self._far_vectors, values.shape[2] - self._far_vectors
        first, heads, others = attended.split([far, attended.shape[2] - far - near, near], dim=2)
        tensors = tensors + stream.gather(torch.cat([first, others], dim=2))
        of_products, change = stream.products(gates, tensors)
        return self.output(heads.flatten(1)) + own.read(sums) + of_products, tensors + change

    def prepare(self, geometry: Geometry, context: FourierContext) -> Prepared:
        """See :class:`AttentionLayer`."""
        around = context.neighbourhood
        streamed = around.n_entries * self.n_heads > _ENTRY_FACTORS_KEPT and not torch.is_grad_enabled()
        return Prepared(context, None if streamed else self.local_rpe.on_entries(around))

    @property
    def _gates(self) -> list[nn.Linear]:
        gated = len(self.rpe_weights) and self.far_rank == 1
        return [self.query_gate.linear, self.key_gate.linear] if gated else []

    def _attended(
        self, projected: list[Tensor], vectors: Tensor | None, geometry: Geometry, prepared: Prepared
    ) -> Tensor:
        """(n_atoms, n_heads · channels): (Σ_near near_ij v_j + Σ_all far_ij v_j) / Σ_near near_ij.

        The values are those of vectors, if any, and those of the atoms' features.
        """
        content, fields = self._content(projected, vectors, geometry), prepared.context.fields
        # Numerator and denominator in one pass: the values of the latter are ones.
        near = self._near_sum(content, torch.cat([content.carried, content.rest, content.one], dim=2), prepared)
        widths = [content.carried.shape[2], content.rest.shape[2], 1]
        carried, rest, denominator = near.transpose(0, 1).split(widths, dim=2)
        if fields:
            carried = carried + self._far_sum(content, geometry, fields)
        return (torch.cat([carried, rest], dim=2) / denominator).flatten(1)

    def _content(self, projected: list[Tensor], vectors: Tensor | None, geometry: Geometry) -> _Content:
        q, k = self.query_key.of_length(projected[0])
        values = self.dropout(split_heads(projected[1], self.n_heads))
        n_carried = min(self.far_channels, values.shape[2])
        carried, rest = values.split([n_carried, values.shape[2] - n_carried], dim=2)
        if vectors is not None:
            first, others = vectors.split([self._far_vectors, vectors.shape[2] - self._far_vectors], dim=2)
            carried, rest = torch.cat([first, carried], dim=2), torch.cat([rest, others], dim=2)
        c_q = c_k = None
        if len(projected) > 2:
            c_q, c_k = (functional.softplus(gate)[..., None] for gate in projected[2:])
        if self.kernel is not None:
            padded = [heads_first(geometry.pad(t)) for t in (q, k)]
            features = self.kernel(*padded, geometry.atom_mask[:, None, :, None])
            c_q, c_k = (geometry.pack(heads_first(phi.values())) for phi in features)
        one = self.one.expand(len(q), self.n_heads, 1)
        return _Content(q, k, carried, rest, one, c_q, c_k)

    def _near_sum(self, content: _Content, v: Tensor, prepared: Prepared) -> Tensor:
        """Σ_j near_ij v_j over an atom and its neighbours.

        (n_atoms, n_heads, channels) → the heads first.
        """
        around, local = prepared.context.neighbourhood, prepared.local
        pattern = around.pattern
        q, k, v = (t.transpose(0, 1).contiguous() for t in (content.q, content.k, v))
        if local is not None:
            return weighted_sum(pattern, scalar_products(pattern, q, k).exp() * local, v)
        out = torch.empty_like(v)
        for atoms, entries, few in pattern.parts(_ENTRY_FACTORS_KEPT // self.n_heads):
            near = scalar_products(few, q[:, atoms].contiguous(), k).exp_()
            near *= self.local_rpe.on_entries(around, entries)
            out[:, atoms] = weighted_sum(few, near, v)
        return out

    def _far_sum(self, content: _Content, geometry: Geometry, fields: list[FarField]) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c(q_i, k_j) v_j, (n_atoms, n_heads, channels)."""
        layout, carried = geometry.layout.far, content.carried
        assert layout is not None
        c_q, c_k = content.c_q, content.c_k
        if c_q is None or c_k is None or self.far_rank == 1:
            padded = layout.pad(carried if c_k is None else c_k * carried)
            found = layout.pack([far(self.rpe_weights, v) for far, v in zip(fields, padded, strict=True)])
            return found if c_q is None else c_q * found
        parts = zip(layout.groups, fields, *(layout.pad(t) for t in (c_q, c_k, carried)), strict=True)
        return layout.pack([self._with_content(*part) for part in parts])

    def _with_content(self, group: Group, far: FarField, c_q: Tensor, c_k: Tensor, v: Tensor) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c_q_i · c_k_j v_j of a group of structures.

        Each is (n_structures, n_max, n_heads, ...).
        """
        if group.way != "mesh":
            q, k, values = (t.permute(2, 0, 1, 3) for t in (c_q, c_k, v))
            out = (far.matrix(self.rpe_weights) * (q @ k.transpose(2, 3))) @ values
            return out.permute(1, 2, 0, 3)
        # On a mesh the content factor is multiplied into the values.
        total = torch.zeros_like(v)
        step = max(1, _CHANNELS_AT_ONCE // v[0, 0].numel())
        for some_q, some_k in zip(c_q.split(step, dim=3), c_k.split(step, dim=3), strict=True):
            expanded = (some_k[..., :, None] * v[..., None, :]).flatten(3)
            found = far(self.rpe_weights, expanded).unflatten(3, (some_q.shape[3], -1))
            total = total + (some_q[..., :, None] * found).sum(dim=3)
        return total


def together(x: Tensor, linears: Sequence[nn.Linear]) -> list[Tensor]:
    """Apply several linear maps to ``x`` in one product."""
    some = next(m.bias for m in linears if m.bias is not None)
    none = torch.zeros_like(some[:1])
    bias = torch.cat([none.expand(m.out_features) if m.bias is None else m.bias for m in linears])
    found = functional.linear(x, torch.cat([m.weight for m in linears]), bias)
    return list(found.split([m.out_features for m in linears], dim=1))


RPE_WEIGHT_STD = 0.5
"""Initial standard deviation: small enough that the far output starts below the near one, large enough to learn."""

_ENTRY_FACTORS_KEPT = 1 << 27
"""Entries times heads held at once when no derivative is needed: 512 MiB in float32."""

_CHANNELS_AT_ONCE = 1024
"""Values per atom that the far field carries at once; bounds memory, changes no result."""
