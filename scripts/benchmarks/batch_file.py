"""A batch as plain tensors in a file: the same one for every model, in whichever environment it runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor


@dataclass
class PlainBatch:
    """Fields as in ``molflt.vocabulary``, and

    Attributes:
        edge_vectors: (n_edges, 3) float32, Δ_ij = r_i − r_j − offset·cell.
        target: (n_structures,) what a training step fits.
        displacement: (n_atoms, 3) float32, what an auxiliary head fits.
    """

    positions: Tensor
    atomic_numbers: Tensor
    batch: Tensor
    cell: Tensor
    pbc: Tensor
    tags: Tensor
    edge_index: Tensor
    cell_offsets: Tensor
    edge_vectors: Tensor
    target: Tensor
    displacement: Tensor

    @property
    def n_structures(self) -> int:
        """Structures of the batch."""
        return len(self.cell)

    def save(self, path: Path) -> None:
        """Write to a file."""
        torch.save({field.name: getattr(self, field.name) for field in fields(self)}, path)

    @classmethod
    def load(cls, path: Path, device: torch.device) -> PlainBatch:
        """What :meth:`save` wrote."""
        return cls(**{key: value.to(device) for key, value in torch.load(path, weights_only=True).items()})
