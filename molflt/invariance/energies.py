"""Energies to compare, the scale of their rounding errors, and how much the far field matters to them.

No property of the far field is proven by a far field that is zero, so there is a way to make it matter.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.data.batch import StructureCollater
from molflt.data.images import separate_fragments
from molflt.model.energy_model import EnergyModel

SHARE = 0.3
"""Of the spread of the energies: what removing the far field must move them by, on average."""


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
    contractions: list[str]


def energies(model: EnergyModel, structures: Sequence[Data], padding: int = 0) -> Energies:
    """Evaluate at least one structure in one batch, with ``padding`` empty places beyond the largest."""
    collate = StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    batch = collate(list(structures)).to(model.device)
    n_max = max(len(data.atomic_numbers) for data in structures) + padding
    with torch.no_grad():
        output = model(batch, n_max)
        sums = torch.zeros_like(output.energy).index_add(0, batch.batch, output.atomic_energies.abs())
    return Energies(output.energy.cpu().numpy(), sums.cpu().numpy(), output.contractions)


def far_share(model: EnergyModel, structures: Sequence[Data]) -> float:
    """Mean change of energy when the far field is removed, over the mean absolute deviation of the learnt energies.

    Learnt: without the standardiser's references. A single structure has no deviation; its learnt energy
    itself stands in.
    """
    whole = energies(model, structures).energy
    statistics = model.standardiser
    references = torch.stack([statistics.references.cpu()[data.atomic_numbers].sum() for data in structures])
    learnt = whole - references.numpy() - float(statistics.mean)
    spread = np.abs(learnt - learnt.mean()).mean() if len(learnt) > 1 else np.abs(learnt).mean()
    without = energies(with_far_weights_times(model, 0.0), structures).energy
    return float(np.abs(without - whole).mean() / max(float(spread), 1e-300))


def scaled_until_it_matters(model: EnergyModel, structures: Sequence[Data]) -> EnergyModel | None:
    """A copy whose far weights are multiplied by the least power of two that reaches :data:`SHARE`.

    None where no factor up to 2^16 is enough: without a far field, or where structures differ so much in composition
    that it cannot compete.
    """
    for power in range(17):
        scaled = with_far_weights_times(model, 2.0**power)
        if far_share(scaled, structures) >= SHARE:
            return scaled
    return None


def has_far_field(model: EnergyModel) -> bool:
    """Whether any layer has weights of the RPE function."""
    return any(name.endswith("rpe_weights") and p.numel() for name, p in model.named_parameters())


def with_far_weights_times(model: EnergyModel, factor: float) -> EnergyModel:
    """A copy with the weights of the RPE function multiplied, in every layer."""
    out = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in out.named_parameters():
            if name.endswith("rpe_weights"):
                parameter.mul_(factor)
    return out


FRAGMENTS_APART = 8.0
"""Å, between the nearest atoms of two fragments whose energies ought to add up."""
ADDITIVE = 0.02
"""eV."""


def additivity(model: EnergyModel, structures: Sequence[Data]) -> np.ndarray:
    """How far the energies of two structures are from adding up with 8 Å between them: E(AB) − E(A) − E(B).

    Args:
        model: in evaluation mode.
        structures: those that are not periodic are paired, each with the next.

    Returns:
        (n_isolated,) eV. The mean of the standardiser, which belongs to no atom, is counted for each structure.
    """
    isolated = [data for data in structures if not bool(data.pbc.any())]
    if not isolated:
        return np.zeros(0)
    random = np.random.default_rng(0)
    following = [*isolated[1:], isolated[0]]
    pairs = [separate_fragments(pair, [FRAGMENTS_APART], random) for pair in zip(isolated, following, strict=True)]
    mean = float(model.standardiser.mean)
    single = energies(model, isolated).energy - mean
    return energies(model, pairs).energy - mean - single - np.roll(single, -1)
