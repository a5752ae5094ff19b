"""Molecules relaxed in one batch by torch-sim, and one by one by ASE: seconds of each.

Both take the same number of FIRE's steps with ``pretrained:qm7-small``. It needs the extra ``torch-sim``.

    python -m scripts.benchmarks.batched_relaxation

Prints a line of JSON: seconds of the processor for all molecules, each way, and their ratio.
"""

from __future__ import annotations

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
from molflt.data.ase import to_atoms
from molflt.data.open import resolve_inputs
from molflt.prediction.members import load_members
from molflt.simulate.torch_sim import MolFLTModel
from scripts import results

SMILES = ("CCO", "c1ccccc1", "CC(=O)N", "CCCC", "CC(C)O", "C1CCCCC1", "OCC=O", "CCN")


def main() -> None:
    """Relax both ways."""
    options = results.parser(__doc__).parse_args()
    copies, steps = (1, 2) if options.quick else (4, 20)
    # The model's forces need not mean anything here.
    warnings.simplefilter("ignore")
    frames = [to_atoms(data) for data in resolve_inputs(list(SMILES) * copies)]
    for k, atoms in enumerate(frames):
        atoms.rattle(0.03, seed=k)
        # torch-sim wants a cell of everything.
        atoms.cell = 30 * np.eye(3)
    members = load_members("pretrained:qm7-small")

    def batched() -> None:
        first, step = fire(MolFLTModel(members[0], stress=False))
        state = first(torch_sim.io.atoms_to_state(frames, torch.device("cpu"), torch.float64))
        for _ in range(steps):
            state = step(state)

    def singly() -> None:
        for atoms in frames:
            atoms.calc = MolFLTCalculator(members[0])
            FIRE(atoms, logfile=None).run(fmax=0, steps=steps)

    together, alone = seconds(batched), seconds(singly)
    print(json.dumps({"batched": together, "singly": alone, "ratio": alone / together, "molecules": len(frames)}))


def seconds(work: Callable[[], None]) -> float:
    """Of the processor."""
    before = time.process_time()
    work()
    return time.process_time() - before


if __name__ == "__main__":
    main()
