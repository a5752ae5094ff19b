"""Charges of atoms, which act by 1/r at any distance, their dipole, and dispersion, which acts by 1/r⁶."""

from __future__ import annotations

import torch
from ase import units
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.far.coulomb import COULOMB, INVERSE, INVERSE_SIXTH, fields, fields_of_neighbours
from molflt.attention.geometry import Geometry
from molflt.vocabulary import MAX_ATOMIC_NUMBER


class ChargeHead(nn.Module):
    """Latent charges q_i = q̃_i − (Σ q̃ − Q)/n for every channel, which act as 1/r and are learnt from energies.

    This is the idea of latent Ewald summation (Cheng, arXiv 2408.15165).
    Here q̃_i = √(s · 1 Å/k_e) · MLP(h_i), where s is the energies' scale. With that factor two outputs of one, 1 Å
    apart, interact by one unit of standardised energy. The first channel of a structure adds up to its charge Q, all
    others to zero.
    """

    def __init__(self, dim: int, n_channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, n_channels))

    def forward(self, x: Tensor, geometry: Geometry, scale: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """Return the charges of all atoms, and what was shared to make their sums right.

        Args:
            x: (n_atoms, dim), from the encoder.
            geometry: the batch.
            scale: s, () eV: the standard deviation of the energies.
            total: Q, (n_structures,) e.

        Returns:
            (n_atoms, n_channels) e and (n_structures, n_channels) e, the surplus Σ q̃ − Q, float64.
        """
        free = torch.sqrt(scale / COULOMB) * self.mlp(x).to(torch.float64)
        wanted = functional.pad(total[:, None].to(free.dtype), (0, free.shape[1] - 1))
        surplus = geometry.sum_over_structures(free) - wanted
        return free - geometry.to_atoms(surplus / geometry.layout.counts[:, None]), surplus


def long_range(geometry: Geometry, charges: Tensor, dispersion: Tensor | None, cutoff: float) -> Tensor:
    """½ q_i φ_i summed over channels, and −½ c_i Σ_j c_j/r_ij⁶, (n_atoms,) eV, float64.

    See :mod:`molflt.attention.far.coulomb`. The interaction of near neighbours is left to the network, which sees
    them: in the gradient of a charge, the same few bonds in all structures would outweigh the differences between
    structures.

    Args:
        geometry: the batch, whose plan is for charges.
        charges: q, (n_atoms, n_channels) e.
        dispersion: c, (n_atoms, 1) eV^½ Å³; None for no dispersion.
        cutoff: of the neighbours, Å.
    """
    sources = [(INVERSE, charges)] if dispersion is None else [(INVERSE, charges), (INVERSE_SIXTH, dispersion)]
    energies = []
    for (law, values), field, factor in zip(sources, fields(geometry, sources), (COULOMB, -1.0), strict=False):
        beyond = field - fields_of_neighbours(geometry, law, values, cutoff)
        energies.append(0.5 * factor * (values * beyond).sum(dim=1))
    return sum(energies[1:], energies[0])


class Dispersion(nn.Module):
    """Coefficients c_i = √C₆ of each element, so that C₆ of a pair is their product.

    Grimme, J. Comput. Chem. 2006, 27, 1787, Table 1: H to Xe; 0 for others. Near neighbours apart, the damping at
    short range is that of the ladder's finest Gaussian.

    Attributes:
        c6: (119,) of a pair of atoms, 0.01 J nm⁶/mol, whole numbers, exact in any precision.
    """

    def __init__(self) -> None:
        super().__init__()
        c6 = torch.zeros(MAX_ATOMIC_NUMBER + 1)
        c6[1 : len(D2) + 1] = torch.tensor(D2, dtype=c6.dtype)
        self.c6 = nn.Buffer(c6, persistent=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """(n_atoms,) → (n_atoms, 1) eV^½ Å³, float64."""
        return (EV * self.c6[numbers].to(torch.float64)).sqrt()[:, None]


EV = 1e6 * units.J / units.mol / 100
"""eV Å⁶ in 0.01 J nm⁶/mol."""
D2 = (
    *(14, 8, 161, 161, 313, 175, 123, 70, 75, 63, 571, 571, 1079, 923, 784, 557, 507, 461),
    *(1080, 1080, *[1080] * 10, 1699, 1710, 1637, 1264, 1247, 1201),
    *(2467, 2467, *[2467] * 10, 3732, 3871, 3844, 3174, 3150, 2999),
)
"""C₆ of H to Xe, 0.01 J nm⁶/mol."""


def dipoles(charges: Tensor, positions: Tensor, structure: Tensor, n_structures: int) -> Tensor:
    """Σ_i q_i r_i of every structure, (n_structures, 3) e Å.

    Args:
        charges: q, (n_atoms,) e; of a structure that is not neutral, the origin of the coordinates matters.
        positions: (n_atoms, 3) Å.
        structure: (n_atoms,) which one an atom belongs to.
        n_structures: how many there are.
    """
    found = positions.new_zeros(n_structures, 3)
    return found.index_add(0, structure, charges[:, None] * positions)
