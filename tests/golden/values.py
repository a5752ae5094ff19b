"""What stored models and freshly initialised presets give on three structures.

``python -m tests.golden.values`` writes ``presets.json`` again. That is legitimate only where a change is meant to
change what a preset computes, and then the changelog says so. The stored models and ``stored.json`` are never written
again: each was made by the molflt whose schema is in its name, and its predictions hold for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from ase import Atoms
from ase.build import add_adsorbate, fcc111, molecule

from molflt.data.ase_io import from_atoms
from molflt.data.batching import StructureCollater
from molflt.model.energy_model import EnergyModel
from molflt.training.presets import PRESETS, preset_config

FOLDER = Path(__file__).parent
LARGE = tuple(name for name in PRESETS if name.startswith("paper"))


def structures() -> list[Atoms]:
    """Ethanol, carbon dioxide, oxygen on a small copper slab."""
    slab = fcc111("Cu", (2, 2, 2), vacuum=5.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    slab.pbc = True
    return [molecule("CH3CH2OH"), molecule("CO2"), slab]


def energies(model: EnergyModel) -> list[float]:
    """eV, each structure by itself."""
    config = model.config
    collate = StructureCollater(config.neighbour_cutoff, config.all_pairs_if_isolated)
    data = [from_atoms(atoms, f"structure {i}", tags="oc20") for i, atoms in enumerate(structures())]
    with torch.no_grad():
        return [float(model.eval()(collate([one])).energy[0]) for one in data]


def preset_energies(name: str) -> list[float]:
    """eV, of a preset with the weights of seed 0, in double precision."""
    torch.manual_seed(0)
    return energies(EnergyModel(preset_config(name).model, 0).double())


if __name__ == "__main__":
    values = {name: preset_energies(name) for name in PRESETS}
    (FOLDER / "presets.json").write_text(json.dumps(values, indent=1) + "\n")
