"""Seconds of one step of molecular dynamics with ASE, as a user would run it.

Untrained models move the atoms of a file by velocity Verlet: molflt's ``small`` through its calculator, or
SchNetPack's PaiNN, of the same width, through the calculator that comes with it, in the peers' environment.
``speed.py`` runs each in a process of its own. So are ``forces`` and MACE compared, the latter in an environment with
mace-torch:

    MD="scripts.benchmarks.measuring scripts.benchmarks.md_step:measure"
    python -m $MD '{"model": "forces", "structure": "a.xyz"}'
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 PYTHON -m $MD '{"model": "mace", "structure": "a.xyz"}'

The variable lets e3nn, which MACE needs, read its own tables.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import ase.io
import torch
from ase import units
from ase.calculators.calculator import Calculator
from ase.md.verlet import VelocityVerlet

from scripts.benchmarks import measuring

PRESET = "small"


def molflt_calculator(preset: str = PRESET, device: str = "cpu") -> Calculator:
    """An untrained model of the preset, as one that has been loaded."""
    from molflt import MolFLTCalculator
    from molflt.model.energy import EnergyModel
    from molflt.model.file import LoadedModel, ModelMetadata, TrainingData
    from molflt.training.config import preset_config

    config = preset_config(preset).model
    metadata = ModelMetadata(
        config=config,
        seed=0,
        target="energy",
        elements=list(range(1, 119)),
        standardiser={},
        training_data=TrainingData(path="none", fingerprint="none", n_structures=0),
        validation={},
        epoch=0,
    )
    return MolFLTCalculator(LoadedModel(EnergyModel(config).eval(), metadata, Path("untrained")), device=device)


def painn_calculator() -> Calculator:
    """PaiNN of the width, cutoff and number of layers of the preset."""
    from scripts.benchmarks.peers import painn_with_forces

    return painn_with_forces(n_atom_basis=128, n_interactions=3, n_rbf=24, cutoff=5.0)


def mace_calculator() -> Calculator:
    """MACE with 128 channels and 5 Å for organic molecules."""
    from scripts.benchmarks.peers import mace_with_forces

    return mace_with_forces(128, 5.0, [1, 6, 7, 8])


CALCULATORS = {
    "molflt": molflt_calculator,
    "forces": partial(molflt_calculator, "forces"),
    "painn": painn_calculator,
    "mace": mace_calculator,
}


def measure(model: str, structure: str, steps: int = 3) -> dict[str, Any]:
    """Take one step that sets everything up, and then those that are timed."""
    torch.manual_seed(0)
    device = torch.device("cpu")
    atoms = ase.io.read(structure)
    atoms.calc = CALCULATORS[model]()
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    # The first step also computes the forces where the atoms start.
    first = measuring.seconds_of(lambda: dynamics.run(1), 1, 0.0, device)
    return {
        "layer_seconds": measuring.seconds_of(lambda: dynamics.run(1), steps, 120.0, device),
        "first_seconds": first,
        "peak_bytes": measuring.peak(device),
        "atoms": len(atoms),
    }
