"""Atoms to vectors: element, tag, and 3D centrality."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.near import Neighbourhood
from molflt.model.periodic_table import element_embedding
from molflt.vocabulary import N_TAGS


class AtomEmbedding(nn.Module):
    """Element embedding + tag embedding + 3D centrality.

    Centrality is the sum over the neighbour list of the Gaussian basis (3D-Graphormer, arXiv 2203.04810, Eq. 4),
    here weighted by the neighbour's element, so that four oxygens and four gold atoms at the same distances
    differ from the first layer on.

    Args:
        dim: width of the model.
        n_rbf: size of the distance basis.
    """

    def __init__(self, dim: int, n_rbf: int) -> None:
        super().__init__()
        self.element = element_embedding(dim)
        self.tag = nn.Embedding(N_TAGS, dim)
        self.neighbour_element = element_embedding(n_rbf)
        self.centrality = nn.Sequential(nn.Linear(n_rbf, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, geometry: Geometry, tags: Tensor, neighbourhood: Neighbourhood) -> Tensor:
        """Tags (n_atoms,) → (n_atoms, dim)."""
        z = geometry.atomic_numbers

        def messages(basis: Tensor, edges: slice) -> Tensor:
            weights = self.neighbour_element(neighbourhood.types[1][edges].to(torch.int64))
            return basis * weights * neighbourhood.envelope[edges, None]

        summed = neighbourhood.sum_over_neighbours(messages)
        return self.element(z) + self.tag(tags) + self.centrality(summed)
