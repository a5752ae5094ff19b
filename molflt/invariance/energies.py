"""Energies of structures without neighbour lists, and the scale of their rounding errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.attention.far.choice import Contraction
from molflt.data.batching import StructureCollater
from molflt.model.energy_model import EnergyModel


@dataclass
class Energies:
    """Of a list of structures, in one batch.

    Attributes:
        energy: (n_structures,) eV, float64.
        magnitude: (n_structures,) eV: Σ_i |e_i| over the atoms, what rounding errors are relative to.
        contractions: as in :class:`~molflt.model.energy_model.ModelOutput`.
    """

    energy: np.ndarray
    magnitude: np.ndarray
    contractions: list[Contraction]


def energies(model: EnergyModel, structures: Sequence[Data], padding: int = 0) -> Energies:
    """Evaluate one batch.

    Args:
        model: in evaluation mode, on any device.
        structures: at least one, without neighbour lists.
        padding: empty places beyond the largest structure.
    """
    collate = StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    batch = collate(list(structures)).to(model.device)
    n_max = max(len(data.atomic_numbers) for data in structures) + padding
    with torch.no_grad():
        output = model(batch, n_max)
        sums = torch.zeros_like(output.energy).index_add(0, batch.batch, output.atomic_energies.abs())
    return Energies(output.energy.cpu().numpy(), sums.cpu().numpy(), output.contractions)
