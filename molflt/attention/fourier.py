"""The attention of molflt (DESIGN §3): exact local RPE on neighbours plus Fourier RPE over all atoms.

    near_ij = exp(q_i·k_j + b_h(|Δ_ij|, z_i, z_j)) env(|Δ_ij|)     neighbours, images included, and i itself
    far_ij  = f̂_h(Δ_ij) c(q_i, k_j)                                every atom
    out_i   = (Σ_near near_ij v_j + Σ_all far_ij v_j) / Σ_near near_ij

The denominator is local and positive: results do not depend on the number of atoms far away, and an n-fold
supercell gives every atom the output it has in the unit cell.

Small structures are contracted on padded pairs, large ones along the neighbour list and through position features
or a mesh; both orders compute the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from molflt.attention.config import FarRank, OrderKind
from molflt.attention.content_kernel import BoundedProjection, Gate
from molflt.attention.frequencies.contraction import Contraction, LayerSizes, choose_contraction
from molflt.attention.frequencies.method import FarOperator, FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.kernels.kernel import Kernel
from molflt.attention.layer import AttentionLayer, SharedPositions, heads_first, merge_heads, split_heads
from molflt.attention.local_rpe import LocalRPE, Neighbourhood
from molflt.attention.partition import restrict
from molflt.attention.rpe import GaussianBasis, GaussianRPE
from molflt.attention.sparse import scalar_products, weighted_sum


@dataclass
class Part:
    """The structures of a batch that share a contraction order.

    Attributes:
        atoms: (n_part,) their atoms in the batch; None when the part is the whole batch.
        geometry: of the part.
        neighbourhood: radial features of its neighbour list.
        far_basis: quadratic order: (n_structures, n_weights, n_max, n_max) basis of f̂; None without a far field.
        operators: linear order: f̂ of every structure; empty without a far field.
        quadratic: the order.
    """

    atoms: Tensor | None
    geometry: Geometry
    neighbourhood: Neighbourhood
    far_basis: Tensor | None
    operators: list[FarOperator]
    quadratic: bool


@dataclass
class FourierContext:
    """What every layer makes its own of.

    Attributes:
        parts: one or two.
        contractions: how each structure of the batch is contracted.
    """

    parts: list[Part]
    contractions: list[Contraction]


@dataclass
class OnPairs:
    """What a layer makes of a part that is contracted on padded pairs.

    Attributes:
        local: (n_structures, n_heads, n_max, n_max) exp(b_h)·env, images added.
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
    far = rpe_weights.transpose(0, 1) @ part.far_basis.flatten(2)
    return OnPairs(local, far.view(local.shape))


class FourierPositions(SharedPositions):
    """Widths of the RPE function and the numerical method that evaluates it; shared by all layers and heads.

    Args:
        rpe: the RPE function; None without a far field.
        method: how it is evaluated.
        sizes: what the layers will do with it.
        order: ``auto`` picks the cheaper contraction order for each structure.
    """

    def __init__(
        self, rpe: GaussianRPE | None, method: FrequencyMethod | None, sizes: LayerSizes, order: OrderKind
    ) -> None:
        super().__init__()
        self.rpe = rpe
        self.method = method
        self.sizes = sizes
        self.order: OrderKind = order

    @property
    def n_weights(self) -> int:
        """Weights per layer and head; 0 without a far field."""
        return 0 if self.method is None or self.rpe is None else self.method.n_weights(self.rpe.n_basis)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> FourierContext:
        """See :class:`SharedPositions`."""
        basis = None if self.rpe is None else self.rpe()
        contractions = self.contractions(geometry, neighbourhood, basis)
        parts = []
        for order in ("quadratic", "linear"):
            mine = [b for b, contraction in enumerate(contractions) if contraction.order == order]
            if mine:
                chosen = [contractions[b] for b in mine]
                parts.append(_part(geometry, neighbourhood, mine, chosen, basis, order == "quadratic"))
        return FourierContext(parts, contractions)

    def contractions(
        self, geometry: Geometry, neighbourhood: Neighbourhood, basis: GaussianBasis | None
    ) -> list[Contraction]:
        """Method and order for every structure of a batch."""
        receivers = geometry.edge_index[0, neighbourhood.edges]
        n_edges = torch.bincount(geometry.structure[receivers], minlength=geometry.n_structures).tolist()
        return [
            choose_contraction(self.method, self.order, self.sizes, geometry, b, n_edges[b], basis)
            for b in range(geometry.n_structures)
        ]


def _part(
    geometry: Geometry,
    neighbourhood: Neighbourhood,
    structures: list[int],
    contractions: list[Contraction],
    basis: GaussianBasis | None,
    quadratic: bool,
) -> Part:
    atoms = None
    if len(structures) < geometry.n_structures:
        geometry, neighbourhood, atoms = restrict(geometry, neighbourhood, structures)
    part = Part(atoms, geometry, neighbourhood, None, [], quadratic)
    methods = [contraction.method for contraction in contractions]
    if basis is not None and quadratic:
        part.far_basis = _pair_basis(geometry, methods, basis)
    elif basis is not None:
        for b, method in enumerate(methods):
            operator = None if method is None else method.operator(geometry, b, basis)
            assert operator is not None
            part.operators.append(operator)
    return part


def _pair_basis(geometry: Geometry, methods: list[FrequencyMethod | None], basis: GaussianBasis) -> Tensor:
    """Structures of one method together, then back in the order of the batch."""
    order: list[int] = []
    found = []
    for method in dict.fromkeys(methods):
        assert method is not None
        mine = [b for b, m in enumerate(methods) if m is method]
        order += mine
        found.append(method.blocks(geometry, mine, basis))
    if len(found) > 1:
        found = [torch.cat(found)[torch.tensor(order, device=found[0].device).argsort()]]
    return found[0].movedim(-1, 1).contiguous()


@dataclass
class _Inputs:
    """Queries, keys, values, and what the far field takes of the atoms; all (n_atoms, n_heads, ...)."""

    query: Tensor
    key: Tensor
    value: Tensor
    far_value: Tensor | None
    factor_q: Tensor | None
    factor_k: Tensor | None

    def of(self, atoms: Tensor | None) -> _Inputs:
        """The same for some atoms."""
        if atoms is None:
            return self
        values = (self.query, self.key, self.value, self.far_value, self.factor_q, self.factor_k)
        return _Inputs(*(None if t is None else t[atoms] for t in values))  # type: ignore[arg-type]


class FourierAttention(AttentionLayer):
    """One layer.

    Args:
        dim: width of the model.
        n_heads: heads.
        n_rbf: size of the radial basis of the local RPE.
        n_weights: basis functions of f̂; 0 for no far field.
        far_rank: content factor of the far field.
        kernel: feature map of the content factor, for ``far_rank="m"``; else None.
        far_dim: width of values that the far field has for itself; None: it takes the near ones.
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
        far_dim: int | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.far_rank = far_rank
        self.query_key = BoundedProjection(dim, n_heads)
        self.value = nn.Linear(dim, dim)
        self.local_rpe = LocalRPE(n_rbf, n_heads)
        self.dropout = nn.Dropout(dropout)
        own_values = far_dim if n_weights and far_dim is not None else 0
        self.far_value = nn.Linear(dim, own_values) if own_values else None
        self.output = nn.Linear(dim + own_values, dim)
        self.rpe_weights = nn.Parameter(RPE_WEIGHT_STD * torch.randn(n_weights, n_heads))
        if n_weights and far_rank == 1:
            self.query_gate, self.key_gate = Gate(dim, n_heads), Gate(dim, n_heads)
        self.kernel = kernel if n_weights else None

    def prepare(self, geometry: Geometry, context: FourierContext) -> list[tuple[Part, OnPairs | OnEdges]]:
        """See :class:`AttentionLayer`."""
        return [(part, self._prepare(part)) for part in context.parts]

    def _prepare(self, part: Part) -> OnPairs | OnEdges:
        if part.quadratic:
            return on_pairs(self.local_rpe, self.rpe_weights, part)
        around = part.neighbourhood
        streamed = around.n_edges * self.n_heads > _EDGE_FACTORS_KEPT and not torch.is_grad_enabled()
        local = None if streamed else self.local_rpe.on_edges(around)
        return OnEdges(local, self.local_rpe.on_self(around))

    def forward(self, x: Tensor, geometry: Geometry, prepared: list[tuple[Part, OnPairs | OnEdges]]) -> Tensor:
        """See :class:`AttentionLayer`."""
        inputs = self._inputs(x, geometry)
        if len(prepared) == 1:
            return self.output(self._attend(inputs, *prepared[0]))
        atoms = torch.cat([part.atoms for part, _ in prepared if part.atoms is not None])
        found = torch.cat([self._attend(inputs.of(part.atoms), part, ready) for part, ready in prepared])
        return self.output(found[atoms.argsort()])

    def _inputs(self, x: Tensor, geometry: Geometry) -> _Inputs:
        query, key = self.query_key(x)
        value = self.dropout(split_heads(self.value(x), self.n_heads))
        far_value = None if self.far_value is None else self.dropout(split_heads(self.far_value(x), self.n_heads))
        factor_q = factor_k = None
        if len(self.rpe_weights) and self.far_rank == 1:
            factor_q, factor_k = self.query_gate(x)[..., None], self.key_gate(x)[..., None]
        if self.kernel is not None:
            padded = [heads_first(geometry.pad(t)) for t in (query, key)]
            features = self.kernel(*padded, geometry.atom_mask[:, None, :, None])
            factor_q, factor_k = (geometry.pack(heads_first(f.values())) for f in features)
        return _Inputs(query, key, value, far_value, factor_q, factor_k)

    def _attend(self, inputs: _Inputs, part: Part, prepared: OnPairs | OnEdges) -> Tensor:
        """(n_part, dim + far_dim)."""
        if isinstance(prepared, OnPairs):
            return self._on_pairs(inputs, part.geometry, prepared)
        return self._on_edges(inputs, part, prepared)

    def _on_pairs(self, inputs: _Inputs, geometry: Geometry, prepared: OnPairs) -> Tensor:
        def padded(t: Tensor) -> Tensor:
            return heads_first(geometry.pad(t))

        near = (padded(inputs.query) @ padded(inputs.key).transpose(-1, -2)).exp() * prepared.local
        denominator = near.sum(dim=-1, keepdim=True)
        # A place without an atom has an empty neighbourhood; it is dropped below and only must not give NaN.
        denominator = torch.where(denominator > 0, denominator, 1.0)
        value = padded(inputs.value)
        far = prepared.far
        if far is None:
            return geometry.pack(merge_heads((near @ value) / denominator))
        if inputs.factor_q is not None and inputs.factor_k is not None:
            far = far * (padded(inputs.factor_q) @ padded(inputs.factor_k).transpose(-1, -2))
        if inputs.far_value is None:
            return geometry.pack(merge_heads(((near + far) @ value) / denominator))
        both = [(near @ value) / denominator, (far @ padded(inputs.far_value)) / denominator]
        return geometry.pack(torch.cat([merge_heads(out) for out in both], dim=-1))

    def _on_edges(self, inputs: _Inputs, part: Part, prepared: OnEdges) -> Tensor:
        query, key, value = (t.transpose(0, 1) for t in (inputs.query, inputs.key, inputs.value))
        near_self = ((query * key).sum(dim=-1).exp() * prepared.on_self)[..., None]
        # Numerator and denominator in one pass: the values of the latter are ones.
        values = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        total = near_self * values + self._near(query, key, values, part, prepared)
        numerator, denominator = total[..., :-1].transpose(0, 1), total[..., -1:].transpose(0, 1)
        if not part.operators:
            return (numerator / denominator).flatten(1)
        far = self._far(inputs, part)
        if inputs.far_value is None:
            return ((numerator + far) / denominator).flatten(1)
        return torch.cat([(numerator / denominator).flatten(1), (far / denominator).flatten(1)], dim=1)

    def _near(self, query: Tensor, key: Tensor, values: Tensor, part: Part, prepared: OnEdges) -> Tensor:
        """Σ over neighbours of near_ij v_j: (n_heads, n_part, ...) each → (n_heads, n_part, channels)."""
        pattern, local = part.neighbourhood.pattern, prepared.local
        query, key = query.contiguous(), key.contiguous()
        if local is not None:
            return weighted_sum(pattern, scalar_products(pattern, query, key).exp() * local, values)
        found = []
        for atoms, edges, few in pattern.parts(_EDGE_FACTORS_KEPT // self.n_heads):
            content = scalar_products(few, query[:, atoms].contiguous(), key).exp_()
            found.append(weighted_sum(few, content.mul_(self.local_rpe.on_edges(part.neighbourhood, edges)), values))
        return torch.cat(found, dim=1)

    def _far(self, inputs: _Inputs, part: Part) -> Tensor:
        """Σ_j f̂_h(Δ_ij) c(q_i, k_j) v_j, (n_part, n_heads, channels): the content factor rides on the values."""
        values = inputs.value if inputs.far_value is None else inputs.far_value
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
