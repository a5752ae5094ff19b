"""Energies of many structures, batched by an atom budget, in the order given."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase.data import chemical_symbols
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Data

from molflt.data.batching import AtomBudgetSampler, StructureCollater
from molflt.data.progress import track
from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.model.model_file import LoadedModel
from molflt.vocabulary import TARGETS

DEFAULT_MAX_ATOMS = 2048


@dataclass
class Prediction:
    """Energies in the order of the structures.

    Attributes:
        energies: (n_structures,) eV, float64.
        names: where each structure came from.
        contractions: how the far field was computed ("lattice, quadratic") and for how many structures.
    """

    energies: np.ndarray
    names: list[str]
    contractions: Counter[str]

    @property
    def far_field(self) -> str:
        """``contractions`` in words: "lattice, quadratic (300 structures)"."""
        return "; ".join(f"{how} ({n:,} structure{'s' * (n != 1)})" for how, n in self.contractions.most_common())


class _Unlabelled(Dataset[Any]):
    """Structures as a prediction needs them: labels, which perhaps only some carry, do not go into batches."""

    def __init__(self, structures: StructureDataset) -> None:
        self.structures = structures

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Any:
        return unlabelled(self.structures[index])


def unlabelled(data: Data) -> Data:
    """A structure as a prediction needs it, without targets."""
    data = copy.copy(data)
    for name in (*TARGETS, "positions_relaxed"):
        if name in data:
            del data[name]
    return data


def choose_device(name: str) -> torch.device:
    """``auto``: the GPU when there is one, else the CPU.

    Raises:
        InputError: the device does not exist here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"--device {name}: not a device; use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        # Apple's GPUs lack double precision, in which energies are summed.
        raise InputError(f"--device {name}: not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {name}: this machine has no usable GPU; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    return device


def unknown_elements(loaded: LoadedModel, atomic_numbers: set[int]) -> list[str]:
    """Symbols of elements the model was not trained on."""
    return [chemical_symbols[z] for z in sorted(atomic_numbers - set(loaded.metadata.elements))]


def predict(
    loaded: LoadedModel,
    dataset: StructureDataset,
    device: torch.device | str = "cpu",
    max_atoms: int = DEFAULT_MAX_ATOMS,
) -> tuple[Prediction, set[int]]:
    """Predict the energy of every structure.

    Args:
        loaded: the model.
        dataset: structures without neighbour lists; they are computed here.
        device: where to compute.
        max_atoms: atoms per batch; bounds memory, changes no result.

    Returns:
        The predictions, and the atomic numbers seen.
    """
    device = torch.device(device)
    model = loaded.model.to(device)
    sampler = AtomBudgetSampler(dataset.n_atoms, max_atoms, shuffle=False, seed=0)
    collater = StructureCollater(model.config.neighbour_cutoff, model.config.all_pairs_if_isolated)
    batches = list(sampler)
    unlabelled = _Unlabelled(dataset)
    loader: DataLoader[Any] = DataLoader(unlabelled, batch_sampler=batches, collate_fn=collater)
    energies = np.full(len(dataset), np.nan)
    names = [""] * len(dataset)
    elements: set[int] = set()
    contractions: Counter[str] = Counter()
    with torch.inference_mode():
        pairs = zip(batches, loader, strict=True)
        for indices, batch in track(pairs, "predicting", total=len(batches)):
            output = model(batch.to(device))
            energies[indices] = output.energy.cpu().numpy()
            contractions.update(str(contraction) for contraction in output.contractions)
            for i, name in zip(indices, batch.name, strict=True):
                names[i] = name
            elements.update(batch.atomic_numbers.unique().tolist())
    for name, energy in zip(names, energies, strict=True):
        if not np.isfinite(energy):
            raise InputError(f"{name}: the model's energy is not finite; check the structure for overlapping atoms")
    return Prediction(energies, names, contractions), elements
