"""A model for simulation engines, through metatomic: LAMMPS, i-PI, ASE and others."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from molflt.errors import InputError
from molflt.export.export import description, scripted_energy
from molflt.export.scripted import ScriptedEnergy
from molflt.files import atomic_file
from molflt.model.model_file import LoadedModel
from molflt.prediction.predictor import why_no_forces

try:
    from metatensor.torch import Labels, TensorBlock, TensorMap
    from metatomic.torch import (
        AtomisticModel,
        ModelCapabilities,
        ModelMetadata,
        ModelOutput,
        NeighborListOptions,
        System,
    )
except ModuleNotFoundError as error:
    raise InputError("metatomic is not installed; pip install 'molflt[metatomic]'") from error


class MetatomicEnergy(nn.Module):
    """The total energy of each of several systems.

    Engines differentiate it themselves. They know no tags: all atoms have tag 0, as untagged ones of ASE do.

    Args:
        energy: see :class:`molflt.export.scripted.ScriptedEnergy`.
    """

    def __init__(self, energy: ScriptedEnergy, cutoff: float) -> None:
        super().__init__()
        self.energy = energy
        self.neighbours = NeighborListOptions(cutoff=cutoff, full_list=True, strict=True)

    def requested_neighbor_lists(self) -> list[NeighborListOptions]:
        """What the engine has to provide."""
        return [self.neighbours]

    def forward(
        self,
        systems: list[System],
        outputs: dict[str, ModelOutput],
        selected_atoms: Labels | None,
    ) -> dict[str, TensorMap]:
        """See metatomic's ModelInterface."""
        found: dict[str, TensorMap] = {}
        if "energy" not in outputs:
            return found
        if selected_atoms is not None:
            raise ValueError("the far field needs all atoms: this model computes no selection")
        energies: list[torch.Tensor] = []
        for system in systems:
            samples = system.get_neighbor_list(self.neighbours).samples.values.to(torch.int64)
            tags = torch.zeros_like(system.types).to(torch.int64)
            own = self.energy.atomic_energies(
                system.positions,
                system.cell,
                system.pbc,
                system.types,
                tags,
                samples[:, :2].t(),
                samples[:, 2:],
            )
            energies.append((self.energy.mean + own.sum()).to(system.positions.dtype))
        values = torch.stack(energies)[:, None]
        device = values.device
        index = torch.arange(len(systems), device=device, dtype=torch.int64)[:, None]
        block = TensorBlock(
            values,
            Labels(["system"], index),
            torch.jit.annotate(list[Labels], []),
            Labels.range("energy", 1).to(device),
        )
        found["energy"] = TensorMap(Labels.single().to(device), [block])
        return found


def export_for_metatomic(loaded: LoadedModel, path: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
    """Write a model that metatomic loads.

    Args:
        loaded: a single model.
        path: of the file.
        dtype: of the weights; None: as trained.

    Raises:
        InputError: its attention cannot be exported, or its energy has no forces.
        OSError: the system refuses.
    """
    if reason := why_no_forces(loaded.metadata.target):
        raise InputError(f"{loaded.path}: {reason}")
    energy, metadata = scripted_energy(loaded, dtype), loaded.metadata
    capabilities = ModelCapabilities(
        outputs={"energy": ModelOutput(quantity="energy", unit="eV", sample_kind="system")},
        atomic_types=metadata.elements,
        # Far fields and layers on top of each other see further than any list of neighbours.
        interaction_range=float("inf"),
        length_unit="Angstrom",
        supported_devices=["cpu", "cuda"],
        dtype={torch.float32: "float32", torch.float64: "float64"}[energy.factor.dtype],
    )
    about = ModelMetadata(name=Path(loaded.path).stem, description=str(description(loaded)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated.*")
        model: Any = AtomisticModel(MetatomicEnergy(energy, metadata.config.cutoff).eval(), about, capabilities)
        with atomic_file(Path(path)) as temporary:
            model.save(str(temporary))
