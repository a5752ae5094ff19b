"""Energies of many structures, batched by an atom budget, in the order given."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from ase.data import chemical_symbols
from torch_geometric.data import Data

from molflt.data.batching import AtomBudgetSampler, collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.progress import track
from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.model.derivatives import derivatives
from molflt.model.model_file import LoadedModel
from molflt.vocabulary import DIFFERENTIABLE, LABELS

DEFAULT_MAX_ATOMS = 2048
OnError = Literal["raise", "skip"]


@dataclass
class Prediction:
    """Energies in the order of the structures.

    Attributes:
        energies: (n_structures,) eV, float64; the mean over the members of an ensemble; NaN where it failed.
        names: where each structure came from.
        contractions: how the far field was computed ("lattice, quadratic") and for how many structures.
        std: (n_structures,) eV: standard deviation over the members (n − 1 in the denominator); None for one model.
        failures: what is wrong with the structures that were skipped, by index.
        forces: (n_atoms, 3) eV/Å of each structure; None when they were not asked for.
    """

    energies: np.ndarray
    names: list[str]
    contractions: Counter[str]
    std: np.ndarray | None = None
    failures: dict[int, str] = field(default_factory=dict)
    forces: list[np.ndarray] | None = None

    @property
    def far_field(self) -> str:
        """``contractions`` in words: "lattice, quadratic (300 structures)"."""
        return "; ".join(f"{how} ({n:,} structure{'s' * (n != 1)})" for how, n in self.contractions.most_common())


def unlabelled(data: Data) -> Data:
    """A structure as a prediction needs it, without targets."""
    data = copy.copy(data)
    for name in LABELS:
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


def not_trained_on(unknown: list[str]) -> str:
    """The warning about energies of such elements."""
    return f"the model was not trained on {', '.join(unknown)}; energies of structures with them mean little"


def predict(
    loaded: LoadedModel | Sequence[LoadedModel],
    dataset: StructureDataset,
    device: torch.device | str = "cpu",
    max_atoms: int = DEFAULT_MAX_ATOMS,
    on_error: OnError = "raise",
    forces: bool = False,
) -> tuple[Prediction, set[int]]:
    """Predict the energy of every structure.

    Args:
        loaded: the model, or the members of an ensemble, which need the same neighbours.
        dataset: structures without neighbour lists; they are computed here.
        device: where to compute.
        max_atoms: atoms per batch; bounds memory, changes no result.
        on_error: ``skip`` goes on without structures that cannot be read or computed, and says which in
            ``failures``.
        forces: predict forces as well.

    Returns:
        The predictions, and the atomic numbers seen.

    Raises:
        InputError: a structure cannot be read or computed, or forces of a model whose energy is not that of the
            given geometry.
    """
    members = [loaded] if isinstance(loaded, LoadedModel) else list(loaded)
    device = torch.device(device)
    models = [member.model.to(device) for member in members]
    if forces and (reason := why_no_forces(members[0].metadata.target)):
        raise InputError(f"{members[0].path}: {reason}")
    energies = np.full((len(members), len(dataset)), np.nan)
    found_forces = [np.full((int(n), 3), np.nan) for n in dataset.n_atoms] if forces else None
    names = [""] * len(dataset)
    elements: set[int] = set()
    contractions: Counter[str] = Counter()
    failures: dict[int, str] = {}

    def fail(index: int, error: InputError) -> None:
        if on_error == "raise":
            raise error
        failures[index] = str(error)

    batches = list(AtomBudgetSampler(dataset.n_atoms, max_atoms, shuffle=False, seed=0))
    config = models[0].config
    with torch.no_grad() if forces else torch.inference_mode():
        for indices in track(batches, "predicting", total=len(batches)):
            usable: list[tuple[int, Data]] = []
            for i in indices:
                try:
                    data = unlabelled(dataset[i])
                    names[i] = data.name
                    usable.append((i, attach_neighbours(data, config.neighbour_cutoff, config.all_pairs_if_isolated)))
                except InputError as error:
                    fail(i, error)
            if not usable:
                continue
            kept, structures = [i for i, _ in usable], [data for _, data in usable]
            batch = collate(structures).to(device)
            sizes = [int(data.num_nodes) for data in structures]
            mean_forces = torch.zeros((sum(sizes), 3), dtype=torch.float64, device=device)
            for k, model in enumerate(models):
                if forces:
                    derived = derivatives(model, batch)
                    output = derived.output
                    mean_forces += derived.forces / len(models)
                else:
                    output = model(batch)
                energies[k, kept] = output.energy.detach().cpu().numpy()
            if found_forces is not None:
                for i, part in zip(kept, mean_forces.split(sizes), strict=True):
                    found_forces[i] = part.cpu().numpy()
            contractions.update(str(contraction) for contraction in output.contractions)
            elements.update(batch.atomic_numbers.unique().tolist())
    for i in np.flatnonzero(~np.isfinite(energies).all(axis=0)).tolist():
        if i not in failures:
            energies[:, i] = np.nan
            reason = "the model's energy is not finite; check the structure for overlapping atoms"
            fail(i, InputError(f"{names[i]}: {reason}"))
    std = energies.std(axis=0, ddof=1) if len(members) > 1 else None
    return Prediction(energies.mean(axis=0), names, contractions, std, failures, found_forces), elements


def why_no_forces(target: str) -> str | None:
    """Why a model of this target has no forces; None where it has them."""
    if target in DIFFERENTIABLE:
        return None
    return (
        f"was trained on {target}, the energy of the relaxed structure, which is the same for every geometry on the "
        "way to the minimum: its derivative is no force. Train on energies of the given geometry "
        f"(data.target={' or '.join(DIFFERENTIABLE)}) for forces and stress"
    )
