"""What the accuracy benchmark adds to training: its time, and what two rows change."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback
from torch_geometric.data import Batch

from molflt.attention.near import LocalRPE
from molflt.files import atomic_file


class ProcessorTime(Callback):
    """Keeps the processor time of a run in a file, at the end of every epoch: a killed run loses one epoch's at most.

    Args:
        path: of the file; what it says already was spent before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = json.loads(path.read_text()) if path.exists() else 0.0
        self.start = time.process_time()

    @property
    def seconds(self) -> float:
        """Up to now, with what was spent before."""
        return self.before + time.process_time() - self.start

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Write the file."""
        with atomic_file(self.path) as temporary:
            temporary.write_text(json.dumps(self.seconds))


class RandomRotations(Callback):
    """Turns every structure of a training batch at random, another way each time.

    Args:
        seed: of the rotations.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def on_train_batch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Positions, cells, and the relaxed positions where there are any."""
        turn(batch, self.generator)


class WithoutLocalRPE(Callback):
    """Holds the distance bias of every layer at zero: neighbours count by content and envelope alone."""

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Before the optimiser is made, in the model and in its moving average."""
        for module in pl_module.modules():
            if isinstance(module, LocalRPE):
                for parameter in module.parameters():
                    torch.nn.init.zeros_(parameter)
                    parameter.requires_grad_(False)


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
