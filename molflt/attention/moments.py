"""Moments of an atom's neighbours, which encode angles at the cost of pairs.

    w_jc   = (W φ(|Δ_ij|, z_i, z_j))_c env(|Δ_ij|) v_jc        radial filter times value, channel c
    M^l_ic = Σ_j w_jc û_ij^{⊗l},  û = Δ/√(|Δ|² + 1 Å²)          l = 0, 1, 2; images included
    out_i  = W_o [M^0_c, ⟨M^1_c, (U_1 M^1)_c⟩, ⟨M^2_c, (U_2 M^2)_c⟩]

A product of two moments of order l is Σ_jk w_j w_k (û_ij·û_ik)^l, a sum over triples of atoms; it depends on the
angle, and is invariant because it is made of scalar products. The moments are those of moment tensor potentials
(Shapeev 2016, arXiv 1512.06054), the radial filter of every channel is SchNet's (Schütt et al. 2017, arXiv
1706.08566), the product with a linear mixture of the channels PaiNN's (Schütt et al. 2021, arXiv 2102.03150).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from molflt.attention.far.members import REFERENCE_DENSITY
from molflt.attention.near import Neighbourhood
from molflt.attention.places import place_rows
from molflt.attention.smooth import shortened
from molflt.attention.sparse import SparsePattern, of_columns


@dataclass
class NeighbourSlots:
    """Neighbours of some atoms, padded to the largest number of any atom.

    Attributes:
        pattern: the neighbour in each place.
        basis: (n, width, n_rbf) φ·env over the root of the typical number of neighbours; 0 where there is none.
        powers: (n, 10, width) 1, û, û ⊗ û.
    """

    pattern: SparsePattern
    basis: Tensor
    powers: Tensor

    def moments(self, filters: nn.Linear, values: Tensor) -> Tensor:
        """Values of all atoms (n_atoms, n_channels) → (n, 10, n_channels)."""
        at_neighbours = of_columns(self.pattern, values).view(*self.basis.shape[:2], -1)
        return self.powers @ (filters(self.basis) * at_neighbours)


def neighbour_slots(neighbourhood: Neighbourhood, atoms: slice, entries: slice) -> NeighbourSlots:
    """Return places for the neighbours of some atoms.

    Args:
        neighbourhood: radial features of the batch.
        atoms: the atoms.
        entries: of these atoms.
    """
    around, width = neighbourhood.entries, neighbourhood.entries.width
    n, slots = atoms.stop - atoms.start, around.slot[entries] - atoms.start * width
    unit = shortened(neighbourhood.displacements[entries], 1.0)
    weight = neighbourhood.others[entries] / math.sqrt(typical_neighbours(neighbourhood.radial.cutoff))
    basis = neighbourhood.basis_of(entries) * weight[:, None]
    unit = place_rows(unit, slots, n * width)
    powers = torch.cat([torch.ones_like(unit[:, :1]), unit, second_power(unit)], dim=1)
    starts = torch.arange(0, n * width + 1, max(width, 1), device=slots.device)
    senders = around.sender_of_slot[atoms.start * width : atoms.stop * width]
    reverse = around.reverse_of_slot if len(senders) == len(around.sender_of_slot) else None
    return NeighbourSlots(
        SparsePattern(starts, senders, len(around.row_starts) - 1, reverse),
        place_rows(basis, slots, n * width).view(n, width, -1),
        powers.view(n, width, -1).transpose(1, 2).contiguous(),
    )


def typical_neighbours(cutoff: float) -> float:
    """Estimate the number of near neighbours in condensed matter; at least 1.

    Sums of this many terms of either sign, divided by its root, are of order one for any cutoff in Å, and so are
    their products.
    """
    return max(1.0, REFERENCE_DENSITY * 4 / 3 * math.pi * (ENVELOPE_REACH * cutoff) ** 3)


def second_power(vectors: Tensor) -> Tensor:
    """(n, 3) → (n, 6) whose scalar products are the squares of those of the vectors."""
    return torch.cat([vectors * vectors, math.sqrt(2) * vectors * vectors.roll(1, dims=1)], dim=1)


class NeighbourMoments:
    """Positional part of the moments of a batch, shared by the layers.

    Args:
        neighbourhood: radial features of the batch.
    """

    def __init__(self, neighbourhood: Neighbourhood) -> None:
        self.neighbourhood = neighbourhood
        self._kept: NeighbourSlots | None = None
        pattern = neighbourhood.pattern
        if pattern.n_entries <= neighbourhood.entries_at_once:
            whole = slice(0, pattern.n_rows), slice(0, pattern.n_entries)
            self._kept = neighbour_slots(neighbourhood, *whole)

    def sums(self, filters: nn.Linear, values: Tensor) -> Tensor:
        """(n_atoms, n_channels) values → (n_atoms, 10, n_channels)."""
        if self._kept is not None:
            return self._kept.moments(filters, values)
        around = self.neighbourhood

        def compute(values: Tensor, atoms: slice, entries: slice) -> Tensor:
            return neighbour_slots(around, atoms, entries).moments(filters, values)

        found = []
        for atoms, entries, _ in around.pattern.parts(around.entries_at_once // _ROWS_PER_EDGE):
            if torch.is_grad_enabled():
                found.append(checkpoint(compute, values, atoms, entries, use_reentrant=False))
            else:
                found.append(compute(values, atoms, entries))
        return torch.cat(found)


class LocalMoments(nn.Module):
    """Moments of the neighbours up to the second and their products, added to a layer's output.

    Args:
        dim: width of the model.
        n_rbf: size of the radial basis.
        n_channels: c.
    """

    def __init__(self, dim: int, n_rbf: int, n_channels: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, n_channels)
        self.filters = nn.Linear(n_rbf, n_channels, bias=False)
        self.mix_first = nn.Linear(n_channels, n_channels, bias=False)
        self.mix_second = nn.Linear(n_channels, n_channels, bias=False)
        self.output = nn.Linear(3 * n_channels, dim)
        # Sums over the components of each order.
        self.orders: Tensor
        orders = torch.zeros(3, 10)
        orders[0, :1], orders[1, 1:4], orders[2, 4:] = 1.0, 1.0, 1.0
        self.register_buffer("orders", orders, persistent=False)

    def forward(self, x: Tensor, moments: NeighbourMoments) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim)."""
        return self.read(moments.sums(self.filters, self.value(x)))

    def read(self, moments: Tensor) -> Tensor:
        """Map moments and their products to features: (n, 10, n_channels) → (n, dim)."""
        zeroth, first, second = moments.split([1, 3, 6], dim=1)
        one = self.orders[:1, :1].expand_as(zeroth)
        others = torch.cat([one, self.mix_first(first), self.mix_second(second)], dim=1)
        return self.output((self.orders @ (moments * others)).flatten(1))


ENVELOPE_REACH = 0.61
"""Radius, in cutoffs, of a ball with the volume of the envelope squared."""

_ROWS_PER_EDGE = 4
"""φ, filters, values and their product: held at once for every edge of a part, each about as wide as φ."""
