"""Many molecules relaxed in one batch with torch-sim, and one by one with ASE: seconds of each.

Both take the same number of FIRE's steps with the model of ``--model``. It needs the extra ``torch-sim``.

    python -m scripts.benchmarks.batched_relaxation

Prints a line of JSON: seconds of the processor for all molecules, each way, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch_sim
from ase.optimize import FIRE
from torch_sim.optimizers import fire

from molflt import MolFLTCalculator
from molflt.data.ase_io import to_atoms
from molflt.data.sources import resolve_inputs
from molflt.prediction.members import load_members
from molflt.simulate.torch_sim import MolFLTModel

SMILES = ("CCO", "c1ccccc1", "CC(=O)N", "CCCC", "CC(C)O", "C1CCCCC1", "OCC=O", "CCN")


def main() -> None:
    """Relax both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pretrained:qm7-small")
    parser.add_argument("--copies", type=int, default=4, help=f"of {len(SMILES)} molecules, each rattled")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    # The model's forces need not mean anything here.
    warnings.simplefilter("ignore")
    frames = [to_atoms(data) for data in resolve_inputs(list(SMILES) * options.copies)]
    for k, atoms in enumerate(frames):
        atoms.rattle(0.03, seed=k)
        # torch-sim wants a cell of everything.
        atoms.cell = 30 * np.eye(3)
    members = load_members(options.model)

    def batched() -> None:
        first, step = fire(MolFLTModel(members[0], stress=False))
        state = first(torch_sim.io.atoms_to_state(frames, torch.device("cpu"), torch.float64))
        for _ in range(options.steps):
            state = step(state)

    def singly() -> None:
        for atoms in frames:
            atoms.calc = MolFLTCalculator(members[0])
            FIRE(atoms, logfile=None).run(fmax=0, steps=options.steps)

    together, alone = seconds(batched), seconds(singly)
    print(json.dumps({"batched": together, "singly": alone, "ratio": alone / together, "molecules": len(frames)}))


def seconds(work: Callable[[], None]) -> float:
    """Of the processor."""
    before = time.process_time()
    work()
    return time.process_time() - before


if __name__ == "__main__":
    main()
