"""3×3 matrices that atoms carry, and products of them, for forces that hold outside the training set (DESIGN §3).

    X_i += W_s [1, û, û ⊗ û]                         moments of the neighbours, weighted as in moments.py
    Y_i  = W_v X̂_i,   X̂ = X/(1 + |X|²)
    N_i  = Σ_h W_h Σ_j a_h(|Δ_ij|, z_i, z_j) Y_j + Σ_all f̂_h(Δ_ij) Y_j
    D_i  = W_p P̂_i,   P = N Y + Y N
    X_i += D_i + D_i²
    x_i += W [|X|²_l]                                 l = 0, 1, 2

A matrix is the sum of a trace, an antisymmetric part, which is a vector, and a traceless symmetric part. Mixtures W of
channels act on each of them by itself, and N Y + Y N turns as its factors do and has their parity, so that the sums
of squares |X|²_l are exactly invariant. This is the interaction of TensorNet (Simeon and De Fabritiis 2023, arXiv
2306.06482, Eq. 8 to 11) with directions in every layer and with messages of several heads, each a function of the
distance and of both elements.

A product of two sums over neighbours sees triples of atoms, and every further product one atom more. There are no
exponentials of contents, no ratio of sums and no feed-forward block, in which all atoms meet at once: on geometries
that are hotter than those of training they are what fails (docs/tuning_log.md).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.build import FAR_SHARE, Built, Sizes, build_rpe
from molflt.attention.config import MatricesConfig
from molflt.attention.context import FourierContext, FourierPositions
from molflt.attention.far.field import ExactMethod
from molflt.attention.geometry import Geometry
from molflt.attention.layer import RPE_WEIGHT_STD
from molflt.attention.mechanism import AttentionLayer
from molflt.attention.moments import NeighbourSlots
from molflt.attention.sparse import of_columns
from molflt.attention.vectors import COMPONENTS
from molflt.vocabulary import MAX_ATOMIC_NUMBER

PARTS = (1, 3, 5)
"""Components of the trace, the vector and the traceless symmetric part."""
HIDDEN = 32
"""Width of the hidden layer of a_h."""


class MatrixAttention(AttentionLayer[FourierContext, FourierContext]):
    """One layer.

    Args:
        dim: width of the scalars.
        n_heads: heads; must divide ``n_channels``.
        n_rbf: size of the radial basis.
        n_weights: basis functions of f̂; 0 for no far field.
        n_channels: C, matrices of an atom.

    Attributes:
        lift: (9, 10), from moments to components, but for a factor of each.
        basis: (9, 9), the elements of a matrix for each component, row after row, but for a factor.
        squares: (2, 9), squares of these factors. All are whole numbers, exact in any precision.
    """

    feed_forward = False

    def __init__(self, dim: int, n_heads: int, n_rbf: int, n_weights: int, n_channels: int) -> None:
        super().__init__()
        self.n_heads, self.vector_channels = n_heads, n_channels
        self.source_value = nn.Linear(dim, n_channels)
        self.source_filters = nn.Linear(n_rbf, n_channels, bias=False)
        self.source = PerPart(n_channels, n_channels)
        self.value = PerPart(n_channels, n_channels)
        self.radial = nn.Linear(n_rbf, HIDDEN)
        self.receiver, self.sender = (nn.Embedding(MAX_ATOMIC_NUMBER + 1, HIDDEN) for _ in range(2))
        self.near = nn.Linear(HIDDEN, n_heads)
        self.gathered = PerPart(n_heads * n_channels, n_channels)
        self.product = PerPart(n_channels, n_channels)
        self.output = nn.Linear(len(PARTS) * n_channels, dim)
        self.rpe_weights = nn.Parameter(RPE_WEIGHT_STD * torch.randn(n_weights, n_heads))
        self.far_channels = math.ceil(n_channels / n_heads / FAR_SHARE)
        self.lift: Tensor
        self.basis: Tensor
        self.squares: Tensor
        for name, matrix in zip(("lift", "basis", "squares"), _constants(), strict=True):
            self.register_buffer(name, matrix, persistent=False)

    def prepare(self, geometry: Geometry, context: FourierContext) -> FourierContext:
        """See :class:`AttentionLayer`."""
        return context

    def forward(
        self, x: Tensor, geometry: Geometry, prepared: FourierContext, matrices: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See :class:`AttentionLayer`."""
        moments = prepared.moments
        assert moments is not None and matrices is not None
        around = moments.sums(self.source_filters, self.source_value(x))
        matrices = matrices + self.source(times(self.lift * self.squares[0].rsqrt()[:, None], around))
        values = self.value(bounded(matrices))
        messages = moments.sum(self._messages, values)
        if prepared.fields:
            messages = messages + self._from_afar(values, geometry, prepared)
        matrices = self._updated(matrices, values, messages)
        squares = [part.square().sum(dim=1) for part in matrices.split(PARTS, dim=1)]
        return self.output(torch.cat(squares, dim=1)), matrices

    def _messages(self, slots: NeighbourSlots, values: Tensor) -> Tensor:
        """Σ_h W_h Σ_j a_h Y_j of some atoms: (n_atoms, 9, C) → (n, 9, C)."""
        n, width, _ = slots.radial.shape
        receivers, senders = (number.to(torch.int64) for number in slots.numbers)
        hidden = functional.silu(self.radial(slots.radial) + self.receiver(receivers) + self.sender(senders))
        near = self.near(hidden) * slots.weight
        given = of_columns(slots.pattern, values.flatten(1)).view(n, width, -1)
        found = (near.transpose(1, 2) @ given).unflatten(2, [COMPONENTS, -1])
        return self.gathered(found.transpose(1, 2).flatten(2))

    def _from_afar(self, values: Tensor, geometry: Geometry, context: FourierContext) -> Tensor:
        """Σ_all f̂_h Y_j of the first channels of every head: (n_atoms, 9, C) → the same, zero in the others."""
        layout = geometry.layout.far
        assert layout is not None
        heads = values.unflatten(2, [self.n_heads, -1])
        sent = heads[..., : self.far_channels].permute(0, 2, 1, 3).flatten(2)
        fields = zip(context.fields, layout.pad(sent), strict=True)
        found = layout.pack([far(self.rpe_weights, v) for far, v in fields]).unflatten(2, [COMPONENTS, -1])
        rest = heads.shape[3] - self.far_channels
        return functional.pad(found.permute(0, 2, 1, 3), [0, rest]).flatten(2)

    def _updated(self, matrices: Tensor, values: Tensor, messages: Tensor) -> Tensor:
        basis = self.basis * self.squares[1].rsqrt()[:, None]
        one, other = (times(basis.t(), t).unflatten(1, [3, 3]) for t in (messages, values))
        product = times(basis, (multiplied(one, other) + multiplied(other, one)).flatten(1, 2))
        change = self.product(bounded(product))
        turned = times(basis.t(), change).unflatten(1, [3, 3])
        return matrices + change + times(basis, multiplied(turned, turned).flatten(1, 2))


class PerPart(nn.Module):
    """Separate mixtures of channels for the three parts of a matrix."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.trace, self.vector, self.tensor = (
            nn.Parameter(torch.randn(n_out, n_in) * (3 * n_in) ** -0.5) for _ in PARTS
        )

    def forward(self, matrices: Tensor) -> Tensor:
        """(n, 9, n_in) → (n, 9, n_out)."""
        trace, vector, tensor = matrices[:, :1], matrices[:, 1:4], matrices[:, 4:]
        return torch.cat([trace @ self.trace.t(), vector @ self.vector.t(), tensor @ self.tensor.t()], dim=1)


def bounded(matrices: Tensor) -> Tensor:
    """X/(1 + |X|²) of each channel, (n, 9, C) → the same."""
    return matrices / (1 + matrices.square().sum(dim=1, keepdim=True))


def multiplied(one: Tensor, other: Tensor) -> Tensor:
    """Products of matrices, channel by channel, (n, 3, 3, C) each."""
    return (one[:, :, :, None] * other[:, None]).sum(dim=2)


def times(matrix: Tensor, tensors: Tensor) -> Tensor:
    """(a, b) times (n, b, c) → (n, a, c)."""
    return torch.bmm(matrix.expand(len(tensors), -1, -1), tensors)


def _constants() -> tuple[Tensor, Tensor, Tensor]:
    """``lift``, ``basis`` and ``squares`` of :class:`MatrixAttention`."""
    lift, basis = torch.zeros(COMPONENTS, 10), torch.zeros(COMPONENTS, 3, 3)
    lift[0, 0], basis[0] = 1.0, torch.eye(3)
    for i in range(3):
        before, after = (i - 1) % 3, (i + 1) % 3
        lift[1 + i, 1 + i] = lift[4 + i, 7 + i] = 1.0
        basis[1 + i, before, after], basis[1 + i, after, before] = 1.0, -1.0
        basis[4 + i, i, before] = basis[4 + i, before, i] = 1.0
    for row, diagonal in ((7, [1.0, -1.0, 0.0]), (8, [1.0, 1.0, -2.0])):
        lift[row, 4:7] = torch.tensor(diagonal)
        basis[row] = torch.diag(torch.tensor(diagonal))
    squares = torch.stack([lift.square().sum(dim=1), basis.square().sum(dim=(1, 2))])
    return lift, basis.flatten(1), squares


def build_matrices(config: MatricesConfig, sizes: Sizes) -> Built:
    """Build matrices, with or without a far field."""
    rpe = build_rpe(config, config.spectrum, sizes.seed) if config.far else None
    method = ExactMethod(config.frequencies, config.tolerance) if config.far else None
    positions = FourierPositions(rpe, method, moments=True)
    return positions, [
        MatrixAttention(sizes.dim, sizes.n_heads, sizes.n_rbf, positions.n_weights, config.channels)
        for _ in range(sizes.n_layers)
    ]
