"""Local moments: how a layer sees the angles between an atom's neighbours, at the cost of its pairs.

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
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from molflt.attention.far.members import REFERENCE_DENSITY
from molflt.attention.geometry import Geometry
from molflt.attention.near import Neighbourhood
from molflt.attention.sparse import SparsePattern, of_columns


@dataclass
class NeighbourSlots:
    """Neighbours of some atoms, as many places for each as the one with the most has.

    Attributes:
        pattern: these atoms as rows, all atoms as columns.
        slots: (n_entries,) the place of every neighbour among n·width.
        basis: (n, width, n_rbf) φ·env over the root of the typical number of neighbours; 0 where there is none.
        powers: (n, 10, width) 1, û, û ⊗ û; 0 where there is no neighbour.
    """

    pattern: SparsePattern
    slots: Tensor
    basis: Tensor
    powers: Tensor

    def moments(self, filters: nn.Linear, values: Tensor) -> Tensor:
        """Values of all atoms (n_atoms, n_channels) → (n, 10, n_channels)."""
        n, width = self.basis.shape[:2]
        at_neighbours = to_slots(of_columns(self.pattern, values), self.slots, n, width)
        return self.powers @ (filters(self.basis) * at_neighbours)


def neighbour_slots(
    geometry: Geometry, neighbourhood: Neighbourhood, pattern: SparsePattern, edges: slice
) -> NeighbourSlots:
    """Places for the neighbours of some atoms.

    Args:
        geometry: of the batch.
        neighbourhood: its radial features.
        pattern: these atoms as rows.
        edges: those of the neighbourhood that are the entries of the pattern.
    """
    counts, n = pattern.row_starts.diff(), pattern.n_rows
    width = int(counts.max()) if pattern.n_entries else 0
    first = torch.arange(n, device=counts.device) * width - pattern.row_starts[:-1]
    first = first.repeat_interleave(counts, output_size=pattern.n_entries)
    slots = first + torch.arange(pattern.n_entries, device=counts.device)
    unit = soft_unit(geometry.edge_displacements[neighbourhood.edges[edges]])
    powers = torch.cat([torch.ones_like(unit[:, :1]), unit, second_power(unit)], dim=1)
    weight = neighbourhood.envelope[edges] / math.sqrt(typical_neighbours(neighbourhood.radial.cutoff))
    basis = neighbourhood.basis_of(edges) * weight[:, None]
    return NeighbourSlots(
        pattern,
        slots,
        to_slots(basis, slots, n, width),
        to_slots(powers, slots, n, width).transpose(1, 2).contiguous(),
    )


def to_slots(entries: Tensor, slots: Tensor, n: int, width: int) -> Tensor:
    """(n_entries, c) → (n, width, c), zeros where there is no entry."""
    places = entries.new_zeros((n * width, entries.shape[1]))
    return places.index_copy(0, slots, entries).view(n, width, entries.shape[1])


def soft_unit(displacements: Tensor) -> Tensor:
    """Δ/√(|Δ|² + 1 Å²): a direction, without a kink where two atoms meet."""
    return displacements / (1 + (displacements * displacements).sum(dim=1, keepdim=True)).sqrt()


def typical_neighbours(cutoff: float) -> float:
    """Of an atom in condensed matter, those near enough to count; 1 or more.

    Sums of so many terms of either sign, divided by its root, are of order one whatever the cutoff in Å, and so are
    their products.
    """
    return max(1.0, REFERENCE_DENSITY * 4 / 3 * math.pi * (ENVELOPE_REACH * cutoff) ** 3)


def second_power(vectors: Tensor) -> Tensor:
    """(n, 3) → (n, 6) whose scalar products are the squares of those of the vectors."""
    return torch.cat([vectors * vectors, math.sqrt(2) * vectors * vectors.roll(1, dims=1)], dim=1)


class NeighbourMoments:
    """What the layers share of a batch's positions.

    Args:
        geometry: of the batch.
        neighbourhood: its radial features.
    """

    def __init__(self, geometry: Geometry, neighbourhood: Neighbourhood) -> None:
        self.geometry = geometry
        self.neighbourhood = neighbourhood
        whole = slice(0, neighbourhood.n_edges)
        self._kept: NeighbourSlots | None = None
        if neighbourhood.n_edges <= neighbourhood.edges_at_once:
            self._kept = neighbour_slots(geometry, neighbourhood, neighbourhood.pattern, whole)

    def sums(self, filters: nn.Linear, values: Tensor) -> Iterator[Tensor]:
        """Moments of consecutive atoms: (n_atoms, n_channels) values → (n, 10, n_channels), part after part."""
        if self._kept is not None:
            yield self._kept.moments(filters, values)
            return
        around = self.neighbourhood

        def compute(values: Tensor, pattern: SparsePattern, edges: slice) -> Tensor:
            return neighbour_slots(self.geometry, around, pattern, edges).moments(filters, values)

        for _, edges, pattern in around.pattern.parts(around.edges_at_once // _ROWS_PER_EDGE):
            if torch.is_grad_enabled():
                yield checkpoint(compute, values, pattern, edges, use_reentrant=False)
            else:
                yield compute(values, pattern, edges)


class LocalMoments(nn.Module):
    """Moments of an atom's neighbours up to the second, and their products, as a part of a layer's output.

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

    def forward(self, x: Tensor, moments: NeighbourMoments) -> Tensor:
        """(n_atoms, dim) → (n_atoms, dim)."""
        return torch.cat([self.read(some) for some in self.sums(x, moments)])

    def sums(self, x: Tensor, moments: NeighbourMoments) -> Iterator[Tensor]:
        """(n_atoms, dim) → moments (n, 10, n_channels) of consecutive atoms, part after part."""
        return moments.sums(self.filters, self.value(x))

    def read(self, moments: Tensor) -> Tensor:
        """(n, 10, n_channels) → (n, dim): moments and their products, as the layer sees them."""
        zeroth, first, second = moments.split([1, 3, 6], dim=1)
        products = (first * self.mix_first(first)).sum(dim=1), (second * self.mix_second(second)).sum(dim=1)
        return self.output(torch.cat([zeroth.squeeze(1), *products], dim=1))


ENVELOPE_REACH = 0.61
"""Of the cutoff: a ball of this radius has the volume of the envelope squared."""

_ROWS_PER_EDGE = 4
"""φ, filters, values and their product: held at once for every edge of a part, each about as wide as φ."""
