"""Seconds of one step of molecular dynamics with ASE, forces included, as a user would run it.

Untrained models move the atoms of a file by velocity Verlet: molflt's ``small`` through its calculator, or
SchNetPack's PaiNN, of the same width, through the calculator that comes with it, in the peers' environment.

    python -m scripts.benchmarks.md_step molflt bulk.xyz
    .venv-peers/bin/python -m scripts.benchmarks.md_step painn bulk.xyz

The answer is one line of JSON: seconds of every step after the first, of that one, and the peak of resident memory;
see :func:`scripts.benchmarks.measuring.answer`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ase.io
import torch
from ase import units
from ase.calculators.calculator import Calculator
from ase.md.verlet import VelocityVerlet

from scripts.benchmarks import measuring

PRESET = "small"


def molflt_calculator(device: str = "cpu") -> Calculator:
    """An untrained model of the preset, as one that has been loaded."""
    from molflt import MolFLTCalculator
    from molflt.model.energy import EnergyModel
    from molflt.model.file import LoadedModel, ModelMetadata, TrainingData
    from molflt.training.config import preset_config

    config = preset_config(PRESET).model
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


CALCULATORS = {"molflt": molflt_calculator, "painn": painn_calculator}


def measure(model: str, path: Path, steps: int, threads: int) -> dict[str, Any]:
    """One step that sets everything up, and then those that are timed."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = torch.device("cpu")
    atoms = ase.io.read(path)
    atoms.calc = CALCULATORS[model]()
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
    # The first step also computes the forces where the atoms start.
    first = measuring.seconds_of(lambda: dynamics.run(1), 1, 0.0, device)
    return {
        "seconds": measuring.seconds_of(lambda: dynamics.run(1), steps, 120.0, device),
        "first_seconds": first,
        "peak_bytes": measuring.peak(device),
        "atoms": len(atoms),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(CALCULATORS))
    parser.add_argument("structure", type=Path, help="a file that ASE reads")
    parser.add_argument("--steps", type=int, default=3, help="that are timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    measuring.answer(lambda: measure(options.model, options.structure, options.steps, options.threads))


if __name__ == "__main__":
    main()
