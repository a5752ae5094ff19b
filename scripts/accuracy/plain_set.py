"""A data set with neighbour lists as plain tensors in a file, for models in an environment without molflt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from benchmarks.batch_file import PlainBatch
from torch import Tensor


@dataclass
class PlainSet:
    """Structures one after another; fields as in ``molflt.vocabulary``, and

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

    def save(self, path: Path) -> None:
        """Write to a file."""
        torch.save({field.name: getattr(self, field.name) for field in fields(self)}, path)

    @classmethod
    def load(cls, path: Path) -> PlainSet:
        """What :meth:`save` wrote."""
        return cls(**torch.load(path, weights_only=True))

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
        receiver, sender = edge_index
        shifts = torch.einsum("ek,ekl->el", offsets.to(cell.dtype), cell[batch[receiver]])
        return PlainBatch(
            positions=positions,
            atomic_numbers=torch.cat([self.atomic_numbers[a] for a in atoms]),
            batch=batch,
            cell=cell,
            pbc=self.pbc[index],
            tags=torch.cat([self.tags[a] for a in atoms]),
            edge_index=edge_index,
            cell_offsets=offsets,
            edge_vectors=(positions[receiver] - positions[sender] - shifts).float(),
            target=self.target[index].float(),
            displacement=torch.zeros_like(positions, dtype=torch.float32),
        )
