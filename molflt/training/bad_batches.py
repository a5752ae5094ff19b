"""What is left of a batch whose loss or gradient is no number: enough to look at it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from molflt.files import atomic_file

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


def forget_from(run_dir: Path, epoch: int) -> None:
    """Drop the lines of epochs that are about to be repeated, and one that was cut short.

    Args:
        run_dir: of the run.
        epoch: the first to be repeated, counted from one.
    """
    path = run_dir / FILE
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["epoch"] < epoch:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    with atomic_file(path) as temporary:
        temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
