"""Local RPE: the exponentiated distance bias on the neighbour list, summed over periodic images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from molflt.attention.envelope import envelope
from molflt.attention.geometry import Geometry
from molflt.attention.radial_basis import GaussianDistanceBasis


@dataclass
class Neighbourhood:
    """Radial features of a batch's neighbour list, shared by centrality, attention and heads.

    Attributes:
        edges: indices into the geometry's edge list of those within the local cutoff, (n_local,).
        basis: (n_local, n_rbf) φ of each edge.
        envelope: (n_local,), 1 at distance zero, smoothly 0 at the cutoff.
        self_basis: (n_atoms, n_rbf) φ of distance zero and an atom's own type.
    """

    edges: Tensor
    basis: Tensor
    envelope: Tensor
    self_basis: Tensor


def local_neighbourhood(geometry: Geometry, radial: GaussianDistanceBasis, cutoff: float) -> Neighbourhood:
    """Radial features on the edges shorter than ``cutoff`` Å."""
    edges = torch.nonzero(geometry.edge_distances.detach() < cutoff).squeeze(1)
    distances = geometry.edge_distances[edges]
    z = geometry.atomic_numbers
    receiver, sender = geometry.edge_index[0, edges], geometry.edge_index[1, edges]
    return Neighbourhood(
        edges=edges,
        basis=radial(distances, z[receiver], z[sender]),
        envelope=envelope(distances, cutoff),
        self_basis=self_basis(geometry, radial),
    )


def self_basis(geometry: Geometry, radial: GaussianDistanceBasis) -> Tensor:
    """(n_atoms, n_rbf): the radial basis at distance zero."""
    zero = torch.zeros(geometry.n_atoms, dtype=geometry.dtype, device=geometry.positions.device)
    return radial(zero, geometry.atomic_numbers, geometry.atomic_numbers)


class LocalRPE(nn.Module):
    """Σ over images of exp(b_h(|Δ_ij|, z_i, z_j)) · env(|Δ_ij|), with env = 1 for the atom itself.

    b_h is linear in the radial basis. Because exp(q·k + b) = exp(q·k) exp(b), the images of one pair can be
    summed before the content enters, and what is left is one number per pair and head.

    Args:
        n_rbf: size of the radial basis.
        n_heads: heads.
    """

    def __init__(self, n_rbf: int, n_heads: int) -> None:
        super().__init__()
        self.bias = nn.Linear(n_rbf, n_heads)

    def on_edges(self, neighbourhood: Neighbourhood) -> tuple[Tensor, Tensor]:
        """exp(b_h)·env of every edge, (n_local, n_heads), and of every atom with itself, (n_atoms, n_heads)."""
        edges = self.bias(neighbourhood.basis).exp() * neighbourhood.envelope[:, None]
        return edges, self.bias(neighbourhood.self_basis).exp()

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> Tensor:
        """(n_structures, n_max, n_max, n_heads), zero between atoms that are not neighbours."""
        on_edges, on_self = self.on_edges(neighbourhood)
        receiver, sender = geometry.edge_index[:, neighbourhood.edges]
        atoms = torch.arange(geometry.n_atoms, device=receiver.device)
        return geometry.sum_on_pairs(
            torch.cat([receiver, atoms]), torch.cat([sender, atoms]), torch.cat([on_edges, on_self])
        )
