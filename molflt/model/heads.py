"""From atom states to a per-atom energy and a relaxed displacement."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.mechanism import split_heads
from molflt.attention.near import Neighbourhood
from molflt.attention.sparse import scalar_products


class EnergyHead(nn.Module):
    """MLP(h_i) · factor[tag_i]: each atom's share of the standardised energy (3D-Graphormer)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))
        # A sum over many atoms: starting small keeps the first predictions near the mean. The few atoms of an
        # adsorbate (tag 2) carry most of an adsorption energy.
        self.factor = nn.Parameter(torch.tensor([0.1, 0.1, 1.0]))

    def forward(self, x: Tensor, tags: Tensor) -> Tensor:
        """(n_atoms, dim), (n_atoms,) → (n_atoms,) float64."""
        return (self.mlp(x).squeeze(-1) * self.factor[tags]).to(torch.float64)


class DisplacementHead(nn.Module):
    """Equivariant Σ_j w_ij Δ̂_ij over the neighbour list, w_ij from both atoms and their distance.

    Args:
        dim: width of the model.
        n_heads: number of scalar products whose radially weighted sum is w_ij.
        n_rbf: size of the distance basis.
    """

    def __init__(self, dim: int, n_heads: int, n_rbf: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.receiver = nn.Linear(dim, dim)
        self.sender = nn.Linear(dim, dim)
        self.radial = nn.Linear(n_rbf, n_heads)

    def forward(self, x: Tensor, geometry: Geometry, neighbourhood: Neighbourhood) -> Tensor:
        """(n_atoms, dim) → (n_atoms, 3) in units of the standard deviation of the displacements."""
        unit = geometry.edge_displacements[neighbourhood.edges]
        unit = unit / geometry.edge_distances[neighbourhood.edges, None]
        a, b = (split_heads(part(x), self.n_heads).transpose(0, 1) for part in (self.receiver, self.sender))
        scores = scalar_products(neighbourhood.pattern, a, b) * a.shape[-1] ** -0.5

        def arrows(basis: Tensor, edges: slice) -> Tensor:
            weight = (scores[:, edges] * self.radial(basis).transpose(0, 1)).sum(dim=0) * neighbourhood.envelope[
                edges
            ]
            return weight[:, None] * unit[edges]

        return neighbourhood.sum_over_neighbours(arrows)
