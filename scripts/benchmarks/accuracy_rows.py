"""Rows of the accuracy table that molflt trains: their configurations and callbacks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch_geometric.data import Batch

from molflt.attention.far.members import GaussianRPE
from molflt.attention.near import LocalRPE
from molflt.files import atomic_file
from molflt.training.config import TrainConfig
from molflt.training.training_structures import SHARE
from scripts.benchmarks.accuracy_data import DATA_SETS, Split

MODEL: dict[str, Any] = {
    "dim": 128,
    "n_heads": 8,
    "n_layers": 2,
    "ffn_dim": 256,
    "n_rbf": 32,
    "auxiliary_head": False,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "flt": {},
    "flt, muon": {},
    "vectors, muon": {"attention": {"vector_channels": 8}},
    "gaussians": {"attention": {"spectrum": "gaussians"}},
    "flt-undamped": {"attention": "flt-undamped"},
    "compositions": {},
    "no moments": {"attention": {"moment_channels": 0}},
    "no far field": {"attention": {"mechanism": "local"}},
    "no far field, muon": {"attention": {"mechanism": "local"}},
    "no local RPE": {},
    "scales frozen": {},
    "performer": {"attention": "performer"},
    "concat, turned at random": {"attention": "flt-concat"},
    # Wider feed-forward layers, for as many parameters as flt has.
    "softmax": {"attention": "softmax", "ffn_dim": 332},
    "far_rank = 1": {"attention": {"far_rank": 1}},
    "far_rank = m": {"attention": {"far_rank": "m"}},
    "all channels": {"attention": {"far_dim": MODEL["dim"]}},
    "undamped": {"attention": {"mechanism": "undamped"}},
    "undamped, free spectrum": {"attention": {"mechanism": "undamped", "spectrum": "free"}},
    "4 recycles": {"n_recycles": 4},
    "gaussians, pair types": {"attention": {"spectrum": "gaussians"}, "pair_types": True},
    "softmax, pair types": {"attention": "softmax", "ffn_dim": 332, "pair_types": True},
}
"""Changes of the model, row by row."""


def run_config(name: str, data: str, split: Split, seed: int, epochs: int, max_steps: int = -1) -> TrainConfig:
    """Common trainer with the model of a row of :data:`VARIANTS`, for the files of a division."""
    chosen = DATA_SETS[data]
    model = {**MODEL, "cutoff": chosen.cutoff, **chosen.model, **VARIANTS[name]}
    values: dict[str, Any] = {
        "seed": seed,
        "data": {
            "train": split.train,
            "val": split.held_out,
            "target": split.target,
            "standardise": chosen.standardise,
            "max_atoms": chosen.max_atoms,
        },
        "model": model,
        # Of distant molecules, or of two adsorbates on one slab.
        "loss": {"separation": SHARE if name == "compositions" else 0},
        # What the other rows of the set were made with, so that rows differ in one thing.
        "optimiser": {
            "name": "muon" if name.endswith("muon") else chosen.optimiser,
            "lr": 2e-3,
            "warmup_steps": 200,
        },
        "trainer": {"max_epochs": epochs, "max_steps": max_steps, "val_every": max(1, epochs // 10)},
    }
    return TrainConfig.model_validate(values)


class ProcessorTime(Callback):
    """Keeps the processor time of a run in a file: a killed run loses one epoch's at most.

    Args:
        path: of the file; what it says already was spent before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else 0.0
        self.start = time.process_time()

    @property
    def seconds(self) -> float:
        """Up to now, with what was spent before."""
        return self.before + time.process_time() - self.start

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the file."""
        with atomic_file(self.path) as temporary:
            temporary.write_text(json.dumps(self.seconds), encoding="utf-8")


class RandomRotations(Callback):
    """Turns every structure of a training batch at random, another way each time."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Positions, cells, and the relaxed positions where there are any."""
        turn(batch, self.generator)


class FrozenScales(Callback):
    """Keeps the widths of the members of f, and so the scales of its waves, as they start."""

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Before the optimiser is made."""
        for module in pl_module.modules():
            if isinstance(module, GaussianRPE):
                module.raw_widths.requires_grad_(False)


class WithoutLocalRPE(Callback):
    """Holds the distance bias at zero: neighbours count by content and envelope alone."""

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Before the optimiser is made, in the model and in its moving average."""
        for module in pl_module.modules():
            if isinstance(module, LocalRPE):
                for parameter in module.parameters():
                    torch.nn.init.zeros_(parameter)
                    parameter.requires_grad_(False)


def callbacks(name: str, seed: int) -> list[Callback]:
    """Changes of the training of a row."""
    match name:
        case "concat, turned at random":
            return [RandomRotations(seed)]
        case "no local RPE":
            return [WithoutLocalRPE()]
        case "scales frozen":
            return [FrozenScales()]
    return []


def turn(batch: Batch, generator: torch.Generator) -> None:
    """Rotate the structures of a batch, in place."""
    # The orthogonal factor of a Gaussian matrix with its signs fixed is uniform on the group.
    q, r = torch.linalg.qr(torch.randn(len(batch.cell), 3, 3, generator=generator, dtype=torch.float64))
    q = q * torch.sign(torch.diagonal(r, dim1=1, dim2=2))[:, None, :]
    q = q * torch.sign(torch.linalg.det(q))[:, None, None]
    of_atom = q[batch.batch]
    batch.cell = torch.einsum("bkl,blm->bkm", batch.cell.double(), q).to(batch.cell.dtype)
    for name in ("positions", "positions_relaxed"):
        if name in batch:
            turned = torch.einsum("nk,nkl->nl", batch[name].double(), of_atom)
            batch[name] = turned.to(batch[name].dtype)
