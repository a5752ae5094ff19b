"""Models for the calculator's tests: random ones, and one trained on ASE's EMT potential for copper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.cluster import Icosahedron

from molflt.data.ase import from_atoms
from molflt.data.batch import StructureCollater
from molflt.model.config import ModelConfig
from molflt.model.derivatives import derivatives
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel
from tests.model.files import metadata_of

ELEMENTS = [1, 6, 7, 8, 13, 28, 29]
WIDTHS = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4}


def loaded(model: EnergyModel, target: str = "energy", elements: list[int] = ELEMENTS) -> LoadedModel:
    """As if from a file."""
    changes = {"seed": model.seed, "target": target, "elements": elements, "validation": {"val/force_mae": 0.1}}
    metadata = metadata_of(model.config, **changes)
    return LoadedModel(model.eval(), metadata, Path("model.safetensors"))


@pytest.fixture(scope="session")
def random_model() -> Callable[..., LoadedModel]:
    """Factory of untrained models in double precision, their far field ten times as strong as at the start."""

    def make(attention: dict[str, Any] | None = None, target: str = "energy", seed: int = 0) -> LoadedModel:
        torch.manual_seed(seed)
        config = ModelConfig(
            dim=16, n_heads=4, n_layers=2, ffn_dim=32, cutoff=4.0, n_rbf=8, attention={**WIDTHS, **(attention or {})}
        )
        model = EnergyModel(config, seed=seed).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("rpe_weights"):
                    parameter.mul_(10.0)
        return loaded(model, target)

    return make


def emt_structures(n: int, seed: int) -> list[Atoms]:
    """Copper as bulk and as a cluster, strained and rattled."""
    random = np.random.default_rng(seed)
    found = []
    for k in range(n):
        if k % 3 == 0:
            atoms = bulk("Cu", cubic=True) * (1, 1, 1 + k % 2)
        elif k % 3 == 1:
            atoms = bulk("Cu") * (2, 2, 2)
        else:
            atoms = Icosahedron("Cu", 2)
        atoms = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
        strain = np.eye(3) * (1 + random.uniform(-0.05, 0.05)) + random.normal(scale=0.01, size=(3, 3))
        if atoms.pbc.any():
            atoms.set_cell(atoms.cell @ strain, scale_atoms=True)
        else:
            atoms.positions = atoms.positions @ strain
        atoms.positions += random.normal(scale=random.choice([0.01, 0.05, 0.12]), size=atoms.positions.shape)
        atoms.calc = EMT()
        found.append(atoms)
    return found


def train_on_emt(n_structures: int = 72, n_steps: int = 150, seed: int = 0) -> LoadedModel:
    """A small model of copper, fitted to energies and forces in single precision by a loop that fits on a page."""
    torch.manual_seed(seed)
    config = ModelConfig(
        dim=32,
        n_heads=4,
        n_layers=1,
        ffn_dim=64,
        cutoff=5.0,
        n_rbf=16,
        attention={**WIDTHS, "sigma_max": 3.0},
        auxiliary_head=False,
    )
    model = EnergyModel(config, seed=seed)
    data = []
    for k, atoms in enumerate(emt_structures(n_structures, seed)):
        item = from_atoms(atoms, f"structure {k}")
        item.energy = torch.tensor([atoms.get_potential_energy()])
        item.forces = torch.from_numpy(atoms.get_forces())
        data.append(item)
    model.standardiser.references[29] = float(np.mean([float(d.energy) / d.num_nodes for d in data]))
    collate = StructureCollater(config.neighbour_cutoff)
    batches = [collate(data[k : k + 6]) for k in range(0, n_structures, 6)]
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_steps)
    order = np.random.default_rng(seed)
    for _ in range(n_steps):
        batch = batches[order.integers(len(batches))]
        found = derivatives(model, batch, create_graph=True)
        energy_error = (found.output.energy - batch.energy) / torch.bincount(batch.batch)
        force_error = found.forces - batch.forces
        loss = 4 * energy_error.abs().mean() + force_error.norm(dim=1).mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimiser.step()
        schedule.step()
    return loaded(model, elements=[29])


@pytest.fixture(scope="session")
def copper() -> LoadedModel:
    """A model that knows copper a little."""
    return train_on_emt()
