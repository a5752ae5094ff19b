"""Repulsion of nuclei at short range, which holds where no data are.

    E = ½ Σ_ij (e²/4πε₀) z_i z_j φ(d_ij/a_ij)/d_ij · env(d_ij/(R_i + R_j)),    a_ij = 0.46850 Å/(z_i^0.23 + z_j^0.23)
    φ(x) = 0.18175 e^(−3.19980 x) + 0.50986 e^(−0.94229 x) + 0.28022 e^(−0.40290 x) + 0.02817 e^(−0.20162 x)

The universal potential of Ziegler, Biersack and Littmark (The Stopping and Range of Ions in Matter, 1985). As in MACE
(Batatia et al. 2022, arXiv 2206.07697) it ends, with two derivatives, at the sum of the covalent radii R: what a
bond is near its minimum stays to be learnt, and a bond that is pressed further than any in training is pushed apart.
"""

from __future__ import annotations

import torch
from ase.data import covalent_radii
from torch import Tensor, nn

from molflt.attention.near import Neighbourhood
from molflt.attention.sparse import sum_of_entries
from molflt.vocabulary import MAX_ATOMIC_NUMBER


class Repulsion(nn.Module):
    """The formula above, without parameters.

    Attributes:
        radii: (119,) covalent radii in 0.01 Å, whole numbers, exact in any precision.
    """

    def __init__(self) -> None:
        super().__init__()
        radii = torch.tensor(covalent_radii[: MAX_ATOMIC_NUMBER + 1] * 100).round()
        self.radii = nn.Buffer(radii.to(torch.get_default_dtype()), persistent=False)

    def forward(self, neighbourhood: Neighbourhood) -> Tensor:
        """Return each atom's half of its pairs, (n_atoms,) eV."""
        others = neighbourhood.others > 0
        # An atom's distance from itself has no inverse.
        distances = torch.where(others, neighbourhood.distances, 1.0)
        receivers, senders = (z.to(torch.int64) for z in neighbourhood.types)
        halves = half_of_pairs(distances, receivers, senders, self.radii)
        return sum_of_entries(neighbourhood.pattern, torch.where(others, halves, 0.0)[:, None]).squeeze(1)


def half_of_pairs(distances: Tensor, receivers: Tensor, senders: Tensor, radii: Tensor) -> Tensor:
    """Return half of the repulsion of pairs, eV: (n,) Å, (n,) and (n,) atomic numbers, radii in 0.01 Å."""
    x = distances * (receivers.to(distances.dtype) ** 0.23 + senders.to(distances.dtype) ** 0.23) / 0.46850
    screening = 0.18175 * torch.exp(-3.19980 * x) + 0.50986 * torch.exp(-0.94229 * x)
    screening = screening + 0.28022 * torch.exp(-0.40290 * x) + 0.02817 * torch.exp(-0.20162 * x)
    u = (100 * distances / (radii[receivers] + radii[senders])).clamp(max=1.0)
    fade = 1 + u**6 * (u * (48 - 21 * u) - 28)
    # e²/4πε₀ in eV Å
    return 0.5 * 14.399645 * (receivers * senders) * screening / distances * fade
