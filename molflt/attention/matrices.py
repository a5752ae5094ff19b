"""3×3 matrices that every atom carries, their messages and products (DESIGN §3).

    X_i += W_s M_i                                  moments of the neighbours: scalar, vector and tensor
    Y_i  = W_v X̂_i,  X̂ = X/(1 + |X|²)
    N_i  = Σ_j f_l(|Δ_ij|, z_i, z_j) Y_j + far_i    order l of every channel with its own radial function
    D_i  = W_p P̂_i,  P = N Y + Y N
    X_i += D_i + D_i²
    x_i += W [|X|²_l]

A matrix is the sum of its trace, an antisymmetric part, which is a vector, and a traceless symmetric part; mixtures
of channels W act on each of them, l = 0, 1, 2, separately. N Y + Y N rotates as its factors do, and is of the same
parity, so that the sums of squares are exactly invariant. A product of two sums over neighbours is a sum over
triples, and every further product adds a body. Bodies are counted: only the products multiply sums, and nothing
saturates but by X̂, where the attention's exponentials and normalised layers have bodies without bound. This is
TensorNet's interaction (Simeon and De Fabritiis 2023, arXiv 2306.06482, Eq. 8 to 11) with directions in every layer,
radial functions that know both elements, and a far field.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.moments import NeighbourSlots
from molflt.attention.sparse import of_columns
from molflt.vocabulary import MAX_ATOMIC_NUMBER

COMPONENTS = 9
"""Components of a matrix: one for the trace, three of a vector, five of a traceless symmetric tensor."""
ORDERS = (1, 3, 5)


class MatrixStream(nn.Module):
    """Update of the matrices in one layer.

    Args:
        dim: width of the scalars.
        n_rbf: size of the radial basis.
        n_moments: channels of the moments of the neighbours.
        n_channels: C.
        n_heads: of the attention; must divide ``n_channels``.
        far_channels: number of channels of every head that the far field carries.

    Attributes:
        lift: (9, 10), from moments to components, but for a factor of each.
        basis: (9, 9), the elements of a matrix for each component, row after row, but for a factor.
        squares: (2, 9), squares of these factors. All are whole numbers, exact in any precision.
    """

    def __init__(self, dim: int, n_rbf: int, n_moments: int, n_channels: int, n_heads: int, far_channels: int) -> None:
        super().__init__()
        self.n_heads, self.n_channels, self.far_channels = n_heads, n_channels, far_channels
        n_hidden = 32
        self.source = PerOrder(n_moments, n_channels)
        self.value = PerOrder(n_channels, n_channels)
        self.product = PerOrder(n_channels, n_channels)
        self.radial = nn.Linear(n_rbf, n_hidden)
        self.receiver, self.sender = (nn.Embedding(MAX_ATOMIC_NUMBER + 1, n_hidden) for _ in range(2))
        self.filters = nn.Linear(n_hidden, n_heads)
        self.gathered = PerOrder(n_heads * n_channels, n_channels)
        self.output = nn.Linear(len(ORDERS) * n_channels, dim)
        self.lift: Tensor
        self.basis: Tensor
        self.squares: Tensor
        for name, matrix in zip(("lift", "basis", "squares"), _constants(), strict=True):
            self.register_buffer(name, matrix, persistent=False)

    def take(self, moments: Tensor) -> Tensor:
        """(n_atoms, 10, n_moments), see :class:`LocalMoments` → (n_atoms, 9, C)."""
        return self.source(times(self.lift * self.squares[0].rsqrt()[:, None], moments))

    def values(self, matrices: Tensor) -> Tensor:
        """Return Y, (n_atoms, 9, C) → the same."""
        return self.value(bounded(matrices))

    def messages(self, slots: NeighbourSlots, values: Tensor) -> Tensor:
        """Σ_j f_l Y_j of some atoms, (n_atoms, 9, C) → (n, 9, C)."""
        n, width, _ = slots.basis.shape
        given = of_columns(slots.pattern, values.flatten(1)).view(n, width, -1)
        receivers, senders = (number.to(torch.int64) for number in slots.numbers)
        hidden = functional.silu(self.radial(slots.radial) + self.receiver(receivers) + self.sender(senders))
        near = self.filters(hidden) * slots.weight
        found = near.transpose(1, 2) @ given
        return self.gathered(found.unflatten(2, [COMPONENTS, -1]).transpose(1, 2).flatten(2))

    def sent(self, values: Tensor) -> Tensor:
        """Return what the far field carries: (n_atoms, 9, C) → (n_atoms, n_heads, 9 · far_channels)."""
        return values.unflatten(2, [self.n_heads, -1])[..., : self.far_channels].permute(0, 2, 1, 3).flatten(2)

    def with_far(self, messages: Tensor, far: Tensor) -> Tensor:
        """Add what came by the far field, of the shape of :meth:`sent`, to messages (n_atoms, 9, C)."""
        far = far.unflatten(2, [COMPONENTS, -1]).permute(0, 2, 1, 3)
        far = functional.pad(far, [0, self.n_channels // self.n_heads - self.far_channels])
        return messages + far.flatten(2)

    def update(self, matrices: Tensor, values: Tensor, messages: Tensor) -> Tensor:
        """Return the matrices after a layer, each (n_atoms, 9, C)."""
        basis = self.basis * self.squares[1].rsqrt()[:, None]
        one, other = (times(basis.t(), t).unflatten(1, [3, 3]) for t in (messages, values))
        product = times(basis, (matmul(one, other) + matmul(other, one)).flatten(1, 2))
        change = self.product(bounded(product))
        square = times(basis.t(), change).unflatten(1, [3, 3])
        return matrices + change + times(basis, matmul(square, square).flatten(1, 2))

    def read(self, matrices: Tensor) -> Tensor:
        """(n_atoms, 9, C) → (n_atoms, dim)."""
        return self.output(torch.cat([part.square().sum(dim=1) for part in matrices.split(ORDERS, dim=1)], dim=1))


class PerOrder(nn.Module):
    """Separate mixtures of channels for the three parts of a matrix."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.ParameterList(torch.randn(n_out, n_in) * (3 * n_in) ** -0.5 for _ in ORDERS)

    def forward(self, matrices: Tensor) -> Tensor:
        """(n, 9, n_in) → (n, 9, n_out)."""
        parts = matrices.split(ORDERS, dim=1)
        return torch.cat([part @ w.t() for part, w in zip(parts, self.weight, strict=True)], dim=1)


def bounded(matrices: Tensor) -> Tensor:
    """X/(1 + |X|²) of each channel, (n, 9, C) → the same."""
    return matrices / (1 + matrices.square().sum(dim=1, keepdim=True))


def matmul(one: Tensor, other: Tensor) -> Tensor:
    """Products of matrices, channel by channel, (n, 3, 3, C) each."""
    return (one[:, :, :, None] * other[:, None]).sum(dim=2)


def times(matrix: Tensor, tensors: Tensor) -> Tensor:
    """(a, b) times (n, b, c) → (n, a, c)."""
    return torch.bmm(matrix.expand(len(tensors), -1, -1), tensors)


def _constants() -> tuple[Tensor, Tensor, Tensor]:
    """``lift``, ``basis`` and ``squares`` of :class:`MatrixStream`."""
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
