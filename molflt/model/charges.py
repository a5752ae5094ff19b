"""Latent charges, by which atoms interact as 1/r, learnt from energies without labels.

This is the idea of latent Ewald summation (Cheng, arXiv 2408.15165): charges are whatever reproduces the energies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.far.coulomb import COULOMB, potentials, potentials_of_neighbours
from molflt.attention.geometry import Geometry


class ChargeHead(nn.Module):
    """Latent charges q_i = q̃_i − (Σ q̃ − Q)/n for every channel.

    Here q̃_i = √(s · 1 Å/k_e) · MLP(h_i), where s is the energies' scale. With that factor two outputs of one, 1 Å
    apart, interact by one unit of standardised energy. The first channel of a structure adds up to its charge Q, all
    others to zero.
    """

    def __init__(self, dim: int, n_channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, n_channels))

    def forward(self, x: Tensor, geometry: Geometry, scale: Tensor, total: Tensor) -> Tensor:
        """Return the charges of all atoms.

        Args:
            x: (n_atoms, dim), from the encoder.
            geometry: the batch.
            scale: s, () eV: the standard deviation of the energies.
            total: Q, (n_structures,) e.

        Returns:
            (n_atoms, n_channels) e, float64.
        """
        free = torch.sqrt(scale / COULOMB) * self.mlp(x).to(torch.float64)
        wanted = functional.pad(total[:, None].to(free.dtype), (0, free.shape[1] - 1))
        surplus = (geometry.sum_over_structures(free) - wanted) / geometry.layout.counts[:, None]
        return free - geometry.to_atoms(surplus)


def charge_energies(geometry: Geometry, charges: Tensor, cutoff: float) -> Tensor:
    """½ q_i φ_i summed over channels, (n_atoms,) eV, float64.

    See :mod:`molflt.attention.far.coulomb`. The interaction of near neighbours is left to the network, which sees
    them: in the gradient of a charge, the same few bonds in all structures would outweigh the differences between
    structures.
    """
    field = potentials(geometry, charges) - potentials_of_neighbours(geometry, charges, cutoff)
    return 0.5 * (charges * field).sum(dim=1)
