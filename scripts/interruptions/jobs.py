"""Commands to interrupt, the documented way to go on with each, and what they must leave behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ase.build import molecule

from interruptions.outcome import lmdb_content, page_content, run_content
from interruptions.strike import run_to_the_end
from molflt.data.lmdb_writer import write_lmdb

MOLECULES = ("H2O", "NH3", "CH4", "CO2", "CO", "CH3OH", "HCN", "C2H4")
CONFIG = """\
seed: 3
data: {train: ../inputs/train.lmdb, val: {val: ../inputs/val.lmdb, other: ../inputs/other.lmdb}, max_atoms: 24}
model:
  {dim: 16, n_heads: 2, n_layers: 1, ffn_dim: 16, n_rbf: 8, cutoff: 4.0, dropout: 0.2, attention_dropout: 0.1,
  attention: {n_basis: 4, n_features: 8, n_frequencies: 8}}
loss: {noisy_nodes: true}
optimiser: {lr: 5.0e-3, warmup_steps: 2, ema_decay: 0.9}
trainer: {max_epochs: 3, keep_last: 2, accelerator: cpu}
"""
"""Everything random that training has, and enough files to be torn."""


@dataclass(frozen=True)
class Job:
    """Something to interrupt. All of it runs in a folder of its own beside ``inputs``.

    Attributes:
        name: as on the command line of chaos.py.
        commands: arguments of ``molflt``, run one after another; repeated, they go on.
        out: what they write, of which files are torn.
        outcome: of the folder, to be compared.
        remedy: arguments that a refusal asks for, added to the last command; none: remove ``out``.
    """

    name: str
    commands: Sequence[Sequence[str]]
    out: Callable[[Path], list[Path]]
    outcome: Callable[[Path], dict[str, Any]]
    remedy: Sequence[str] = ()


def _files(*patterns: str) -> Callable[[Path], list[Path]]:
    return lambda folder: sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())


_PREDICT = ("predict", "../inputs/model.safetensors", "../inputs/set.lmdb", "-o", "out.csv", "--max-atoms", "64")

JOBS = {
    job.name: job
    for job in (
        Job(
            "train",
            [("train", "../inputs/config.yaml", "--out", "run", "--resume", "auto")],
            _files("run/*"),
            lambda folder: run_content(folder / "run"),
        ),
        Job(
            "convert",
            [("convert", "../inputs/set.lmdb", "../inputs/val.lmdb", "out.lmdb")],
            _files("out.lmdb*"),
            lambda folder: lmdb_content(folder / "out.lmdb"),
            ("--overwrite",),
        ),
        Job(
            "predict",
            [_PREDICT],
            _files("out.csv", ".out.*"),
            lambda folder: {"out.csv": (folder / "out.csv").read_bytes()},
            ("--overwrite",),
        ),
        Job(
            "shards",
            [
                (*_PREDICT, "--shard", "1/2"),
                (*_PREDICT, "--shard", "2/2"),
                ("merge", "out.csv.shard-1-of-2", "out.csv.shard-2-of-2", "-o", "out.csv"),
            ],
            _files("out.csv*", ".out.*"),
            lambda folder: {"out.csv": (folder / "out.csv").read_bytes()},
            ("--overwrite",),
        ),
        Job(
            "report",
            [("evaluate", "../inputs/model.safetensors", "../inputs/val.lmdb", "--report", "report.html")],
            _files("*.html", ".report.*"),
            lambda folder: page_content(folder / "report.html"),
            ("--overwrite",),
        ),
    )
}


def _record(chance: np.random.Generator) -> dict[str, Any]:
    """A molecule of up to six atoms, out of shape, with an energy that no model will learn."""
    atoms = molecule(chance.choice(MOLECULES))
    relaxed = atoms.get_positions()
    return {
        "pos": relaxed + chance.normal(scale=0.1, size=relaxed.shape),
        "pos_relaxed": relaxed,
        "atomic_numbers": atoms.get_atomic_numbers(),
        "natoms": len(atoms),
        "y_relaxed": float(chance.normal()),
    }


def make_inputs(folder: Path) -> None:
    """Write what the jobs read: small molecules, a configuration, a model trained by it."""
    folder.mkdir()
    chance = np.random.default_rng(0)
    for name, size in {"train": 24, "val": 8, "other": 6, "set": 700}.items():
        write_lmdb(folder / f"{name}.lmdb", [_record(chance) for _ in range(size)], progress=False)
    (folder / "config.yaml").write_text(CONFIG)
    scratch = folder.parent / "model"
    scratch.mkdir()
    made = run_to_the_end(scratch, [("train", "../inputs/config.yaml", "--out", "run", "--no-report")])
    if made.status:
        raise RuntimeError(f"training the model failed:\n{made.text}")
    shutil.copy(scratch / "run" / "best.safetensors", folder / "model.safetensors")
    shutil.rmtree(scratch)
