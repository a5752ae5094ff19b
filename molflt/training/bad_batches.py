"""What is left of a batch whose loss or gradient is no number: enough to look at it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

FILE = "bad_batches.jsonl"
MOST_IN_A_ROW = 20
"""Bad batches one after another with which training stops though it was told to leave them out."""


def record_bad_batch(
    run_dir: Path, batch: Any, energy: Tensor, label: Tensor, seed: int, epoch: int, step: int, rank: int, why: str
) -> Path:
    """Append a line of JSON on a batch.

    Args:
        run_dir: where to.
        batch: its structures.
        energy: (n_structures,) eV, predicted.
        label: (n_structures,) eV.
        seed: of the run.
        epoch: counted from one, as the terminal does.
        step: optimiser steps before it.
        rank: of the process whose batch it is.
        why: what was no number.

    Returns:
        The file.
    """
    sizes = (batch.ptr[1:] - batch.ptr[:-1]).tolist()
    names = batch.name if "name" in batch else [None] * len(sizes)
    sids = batch.sid.tolist() if "sid" in batch else [None] * len(sizes)
    columns = (names, sids, sizes, energy.detach().tolist(), label.tolist())
    structures = [
        # As text where they are no numbers: JSON has none such.
        {"name": name, "sid": sid, "n_atoms": n, "predicted": str(predicted), "label": str(true)}
        for name, sid, n, predicted, true in zip(*columns, strict=True)
    ]
    line = {"epoch": epoch, "step": step, "seed": seed, "rank": rank, "why": why, "structures": structures}
    path = run_dir / FILE
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(json.dumps(line) + "\n")
    return path
