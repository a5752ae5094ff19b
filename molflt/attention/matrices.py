"""3×3 matrices that atoms carry, and products of them, for forces that hold outside the training set (DESIGN §3).

    X_i += W_s [1, û, û ⊗ û]                         moments of the neighbours, weighted as in moments.py
    Y_i  = W_v X̂_i,   X̂ = X/(1 + |X|²)
    N_i  = Σ_h W_h Σ_j a_h(|Δ_ij|, z_i, z_j) Y_j + Σ_all f̂_h(Δ_ij) Y_j
    D_i  = W_p P̂_i,   P = N Y + Y N
    X_i += D_i + D_i²
    x_i += W [|X|²_l, tr N, tr X]                     l = 0, 1, 2

A matrix is the sum of a trace, an antisymmetric part, which is a vector, and a traceless symmetric part. Mixtures W
of channels act on each of them by itself, and N Y + Y N turns as its factors do and has their parity, so that the
sums of squares |X|²_l are exactly invariant. This is the interaction of TensorNet (Simeon and De Fabritiis 2023,
arXiv 2306.06482, Eq. 8 to 11) with directions in every layer and with messages of several heads, each a function of
the distance and of both elements. What comes from far away is small beside the bonds: squares would hide it, so that
traces are read as well.

A product of two sums over neighbours sees triples of atoms, and every further product one atom more. There are no
exponentials of contents, no ratio of sums and no feed-forward block, in which all atoms meet at once: on geometries
that are hotter than those of training they are what fails (docs/tuning_log.md).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.jit import is_scripting  # type: ignore[attr-defined]
from torch.nn import functional

from molflt.attention.build import FAR_SHARE, Built, Sizes, build_rpe
from molflt.attention.config import MatricesConfig
from molflt.attention.far.field import ExactMethod
from molflt.attention.geometry import Geometry
from molflt.attention.layer import RPE_WEIGHT_STD
from molflt.attention.mechanism import COMPONENTS, AttentionLayer, FourierContext, FourierPositions
from molflt.attention.moments import typical_neighbours
from molflt.attention.near import Neighbourhood
from molflt.attention.sparse import weighted_sum
from molflt.vocabulary import MAX_ATOMIC_NUMBER

HIDDEN = 32
"""Width of the hidden layer of a_h."""


class MatrixAttention(AttentionLayer[FourierContext, FourierContext]):
    """One layer. Inside, components come first, (9, n_atoms, C), so that sums over them are plain products.

    Args:
        dim: width of the scalars.
        n_heads: heads; must divide ``n_channels``.
        n_rbf: size of the radial basis.
        n_weights: basis functions of f̂; 0 for no far field.
        n_channels: C, matrices of an atom.
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
        self.output = nn.Linear(5 * n_channels, dim)
        self.rpe_weights = nn.Parameter(RPE_WEIGHT_STD * torch.randn(n_weights, n_heads))
        self.far_channels = math.ceil(n_channels / n_heads / FAR_SHARE)
        self.algebra = Algebra()

    def prepare(self, geometry: Geometry, context: FourierContext) -> FourierContext:
        """See :class:`AttentionLayer`."""
        return context

    def forward(
        self, x: Tensor, geometry: Geometry, prepared: FourierContext, matrices: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See :class:`AttentionLayer`."""
        moments = prepared.moments
        assert moments is not None
        assert matrices is not None
        directed = moments.sums(self.source_filters, self.source_value(x))
        matrices = matrices.transpose(0, 1) + self.source(self.algebra.lifted(directed))
        values = self.value(bounded(matrices))
        sent = values.transpose(0, 1).flatten(1)
        around = prepared.neighbourhood
        summed = weighted_sum(around.pattern, self._near(around), sent)
        messages = self.gathered(summed.unflatten(2, [COMPONENTS, -1]).permute(2, 1, 0, 3))
        if prepared.fields:
            messages = messages + self._from_afar(sent, geometry, prepared)
        change = self.product(bounded(self.algebra(messages, values)))
        matrices = matrices + change + self.algebra.squared(change)
        read = torch.cat([self.algebra.squares_of(matrices), messages[0], matrices[0]], dim=1)
        return self.output(read), matrices.transpose(0, 1)

    def row(self, atom: int, geometry: Geometry, prepared: FourierContext) -> Tensor:
        """Weights of the Y_j in the messages to one atom, near and far, (n_heads, n_atoms); of images the sum."""
        around = prepared.neighbourhood
        mine = around.pattern.rows == atom
        near = self._near(around)[:, mine]
        row = near.new_zeros(self.n_heads, around.pattern.n_rows)
        row.index_add_(1, around.pattern.columns[mine].to(torch.int64), near)
        if prepared.fields:
            layout = geometry.layout.far
            assert layout is not None
            # f̂ is even, so that what the atom sends to all is what it would receive from each.
            here = row.new_zeros(len(row[0]), self.n_heads, 1)
            here[atom] = 1.0
            fields = zip(prepared.fields, layout.pad(here), strict=True)
            row = row + layout.pack([far(self.rpe_weights, v) for far, v in fields])[..., 0].t()
        return row

    def _near(self, around: Neighbourhood) -> Tensor:
        """a_h of every entry, (n_heads, n_entries), 0 of an atom itself."""
        root = math.sqrt(typical_neighbours(around.radial.cutoff))

        def near(basis: Tensor, entries: slice) -> Tensor:
            receivers, senders = (z[entries].to(torch.int64) for z in around.types)
            hidden = functional.silu(self.radial(basis) + self.receiver(receivers) + self.sender(senders))
            return (self.near(hidden) * (around.others[entries] / root)[:, None]).t()

        step, last = around.entries_at_once, around.n_entries
        parts = [around.evaluate(near, slice(first, min(first + step, last))) for first in range(0, last, step)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _from_afar(self, sent: Tensor, geometry: Geometry, context: FourierContext) -> Tensor:
        """Σ_all f̂_h Y_j of the first channels of every head: (n_atoms, 9 C) → (9, n_atoms, C), zero in the others."""
        layout = geometry.layout.far
        assert layout is not None
        heads = sent.unflatten(1, [COMPONENTS, self.n_heads, -1])
        carried = heads[..., : self.far_channels].transpose(1, 2).flatten(2)
        fields = zip(context.fields, layout.pad(carried), strict=True)
        found = layout.pack([far(self.rpe_weights, v) for far, v in fields]).unflatten(2, [COMPONENTS, -1])
        rest = heads.shape[3] - self.far_channels
        return functional.pad(found.permute(2, 0, 1, 3), [0, rest]).flatten(2)


class PerPart(nn.Module):
    """Separate mixtures of channels for the three parts of a matrix."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.trace, self.vector, self.tensor = (
            nn.Parameter(torch.randn(n_in, n_out) * (3 * n_in) ** -0.5) for _ in range(3)
        )

    def forward(self, matrices: Tensor) -> Tensor:
        """(9, n, ...) of n_in channels in all → (9, n, n_out)."""
        t, v, s = self.trace, self.vector, self.tensor
        return torch.bmm(matrices.flatten(2), torch.stack((t, v, v, v, s, s, s, s, s)))


class Algebra(nn.Module):
    """Products of matrices in components: one of the trace, three of the vector, five of the rest.

    Attributes:
        lift: (9, 10), from moments to components, but for a factor of each.
        basis: (9, 9), the elements of the matrix of each component, row after row, but for a factor.
        parts: (3, 9), which components are of one part.
        squares: (2, 9), squares of the inverse factors. All are whole numbers, exact in any precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.basis, self.parts, self.squares = (
            nn.Buffer(matrix, persistent=False) for matrix in _constants()
        )

    def lifted(self, moments: Tensor) -> Tensor:
        """(n, 10, c), see :class:`LocalMoments` → (9, n, c)."""
        lift = self.lift * self.squares[0].rsqrt()[:, None]
        return (lift @ moments.transpose(0, 1).flatten(1)).view(-1, moments.shape[0], moments.shape[2])

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """N Y + Y N, channel by channel; (9, n, c) each."""
        basis = self._orthonormal()
        n, y = self._elements(basis, one), self._elements(basis, other)
        return (basis @ (_times(n, y) + _times(y, n))).view(one.shape)

    def squared(self, matrices: Tensor) -> Tensor:
        """D², channel by channel: (9, n, c) → the same."""
        basis = self._orthonormal()
        d = self._elements(basis, matrices)
        return (basis @ _times(d, d)).view(matrices.shape)

    def _orthonormal(self) -> Tensor:
        return self.basis * self.squares[1].rsqrt()[:, None]

    def _elements(self, basis: Tensor, matrices: Tensor) -> Tensor:
        """(9, n, c) → (3, 3, n c)."""
        return (basis.t() @ matrices.flatten(1)).view(3, 3, -1)

    def squares_of(self, matrices: Tensor) -> Tensor:
        """|X|²_l of every part: (9, n, c) → (n, 3 c)."""
        found = (self.parts @ matrices.square().flatten(1)).view(-1, matrices.shape[1], matrices.shape[2])
        return found.transpose(0, 1).flatten(1)


def _times(left: Tensor, right: Tensor) -> Tensor:
    """Matrix products: (3, 3, n) each → (9, n)."""
    return (left[:, :, None] * right).sum(dim=1).flatten(0, 1)


def bounded(matrices: Tensor) -> Tensor:
    """X/(1 + |X|²) of each channel, (9, n, c) → the same, twice differentiable."""
    if is_scripting():
        return matrices / (1 + matrices.square().sum(dim=0))
    found: Tensor = _Bounded.apply(matrices)
    return found


class _Bounded(torch.autograd.Function):
    """Y = r X with r = 1/(1 + |X|²)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        factor = 1 / (1 + x.square().sum(dim=0))
        found = x * factor
        ctx.save_for_backward(x, found, factor)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        slope: Tensor = _SlopeBounded.apply(gradients[0], *ctx.saved_tensors)
        return slope


class _SlopeBounded(torch.autograd.Function):
    """J g = r g − 2 Y (Y·g)."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, x: Tensor, found: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, found, factor)
        return _slope(gradient, found, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *to_slopes: Tensor) -> tuple[Tensor | None, ...]:
        (along,) = to_slopes
        gradient, found, factor = ctx.saved_tensors
        share, own = (found * gradient).sum(dim=0), (found * along).sum(dim=0)
        turned = _slope(torch.addcmul(along * share, gradient, own), found, factor)
        to_x = torch.addcmul(turned, found, factor * (along * gradient).sum(dim=0))
        return torch.addcmul(along * factor, found, own, value=-2), to_x * -2, None, None


def _slope(gradient: Tensor, found: Tensor, factor: Tensor) -> Tensor:
    return torch.addcmul(gradient * factor, found, (found * gradient).sum(dim=0), value=-2)


def _constants() -> tuple[Tensor, ...]:
    """Return the constants of :class:`Algebra`."""
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
    parts = torch.eye(3)[[0] + [1] * 3 + [2] * 5].t().contiguous()
    squares = torch.stack([lift.square().sum(dim=1), basis.square().sum(dim=(1, 2))])
    return lift, basis.flatten(1), parts, squares


def build_matrices(config: MatricesConfig, sizes: Sizes) -> Built:
    """Build matrices and their far field."""
    rpe = build_rpe(config, config.spectrum, sizes.seed)
    positions = FourierPositions(rpe, ExactMethod(config.frequencies, config.tolerance), moments=True)
    return positions, [
        MatrixAttention(sizes.dim, sizes.n_heads, sizes.n_rbf, positions.n_weights, config.channels)
        for _ in range(sizes.n_layers)
    ]
