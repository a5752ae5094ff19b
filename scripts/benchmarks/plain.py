"""Batches and data sets as plain tensors in files, for models in an environment without molflt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

FIELDS = ("positions", "atomic_numbers", "batch", "cell", "pbc", "tags", "edge_index", "cell_offsets")
"""What a loader of molflt gives."""


class _Saved:
    """A dataclass of tensors that goes to a file and comes back."""

    def save(self, path: Path) -> None:
        """Write to a file."""
        torch.save({field.name: getattr(self, field.name) for field in fields(self)}, path)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> Self:
        """What :meth:`save` wrote."""
        found = torch.load(path, weights_only=True)
        return cls(**{key: value.to(device) if isinstance(value, Tensor) else value for key, value in found.items()})


def edge_vectors(positions: Tensor, batch: Tensor, cell: Tensor, edge_index: Tensor, cell_offsets: Tensor) -> Tensor:
    """(n_edges, 3) float32, Δ_ij = r_i − r_j − offset·cell of every edge (i, j)."""
    receiver, sender = edge_index
    shifts = torch.einsum("ek,ekl->el", cell_offsets.to(cell.dtype), cell[batch[receiver]])
    return (positions[receiver] - positions[sender] - shifts).float()


@dataclass
class PlainBatch(_Saved):
    """A batch for every model alike; fields as in ``molflt.vocabulary``, and

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

    def to(self, device: str | torch.device) -> Self:
        """The batch on another device."""
        return type(self)(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass
class PlainSet(_Saved):
    """Structures with neighbour lists, one after another; fields as in ``molflt.vocabulary``, and

    Attributes:
        n_atoms: (n_structures,).
        n_edges: (n_structures,).
        edge_index: (2, n_edges_in_all), atoms counted within their structure.
        target: (n_structures,) standardised energies.
        scale: eV of one unit of ``target``.
    """

    positions: Tensor
    atomic_numbers: Tensor
    n_atoms: Tensor
    cell: Tensor
    pbc: Tensor
    tags: Tensor
    edge_index: Tensor
    cell_offsets: Tensor
    n_edges: Tensor
    target: Tensor
    scale: float

    def __len__(self) -> int:
        return len(self.n_atoms)

    def batch(self, chosen: Sequence[int]) -> PlainBatch:
        """Some of the structures as a batch."""
        first_atom, first_edge = self.n_atoms.cumsum(0) - self.n_atoms, self.n_edges.cumsum(0) - self.n_edges
        atoms = [slice(int(first_atom[b]), int(first_atom[b] + self.n_atoms[b])) for b in chosen]
        edges = [slice(int(first_edge[b]), int(first_edge[b] + self.n_edges[b])) for b in chosen]
        index = torch.tensor(list(chosen))
        sizes = self.n_atoms[index]
        batch = torch.repeat_interleave(torch.arange(len(index)), sizes)
        starts = (sizes.cumsum(0) - sizes).tolist()
        edge_index = torch.cat([self.edge_index[:, e] + start for e, start in zip(edges, starts, strict=True)], dim=1)
        positions, cell = torch.cat([self.positions[a] for a in atoms]), self.cell[index]
        offsets = torch.cat([self.cell_offsets[e] for e in edges])
        return PlainBatch(
            positions=positions,
            atomic_numbers=torch.cat([self.atomic_numbers[a] for a in atoms]),
            batch=batch,
            cell=cell,
            pbc=self.pbc[index],
            tags=torch.cat([self.tags[a] for a in atoms]),
            edge_index=edge_index,
            cell_offsets=offsets,
            edge_vectors=edge_vectors(positions, batch, cell, edge_index, offsets),
            target=self.target[index].float(),
            displacement=torch.zeros_like(positions, dtype=torch.float32),
        )
