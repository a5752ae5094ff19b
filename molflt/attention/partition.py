"""Parts of a batch, as batches of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.geometry import Geometry
from molflt.attention.local_rpe import Neighbourhood
from molflt.attention.sparse import SparsePattern


def restrict(
    geometry: Geometry, neighbourhood: Neighbourhood, structures: Sequence[int]
) -> tuple[Geometry, Neighbourhood, Tensor]:
    """Some structures of a batch as a batch of their own, with the edges of the neighbourhood only.

    Args:
        geometry: the batch.
        neighbourhood: its radial features.
        structures: ascending indices, at least one.

    Returns:
        Geometry and neighbourhood of the part, and the index of its atoms in the batch, (n_part,).
    """
    device = geometry.structure.device
    chosen = torch.tensor(list(structures), device=device)
    number = torch.full((geometry.n_structures,), -1, device=device)
    number[chosen] = torch.arange(len(structures), device=device)
    atoms = torch.nonzero(number[geometry.structure] >= 0).squeeze(1)
    new_index = torch.full((geometry.n_atoms,), -1, device=device)
    new_index[atoms] = torch.arange(len(atoms), device=device)
    receivers, senders = geometry.edge_index[:, neighbourhood.edges]
    mine = torch.nonzero(number[geometry.structure[receivers]] >= 0).squeeze(1)
    edges = neighbourhood.edges[mine]
    sizes = [geometry.sizes[b] for b in structures]
    part = Geometry(
        positions=geometry.positions[atoms],
        centroids=geometry.centroids[chosen],
        atomic_numbers=geometry.atomic_numbers[atoms],
        structure=number[geometry.structure[atoms]],
        sizes=sizes,
        cell=geometry.cell[chosen],
        pbc=[geometry.pbc[b] for b in structures],
        edge_index=new_index[geometry.edge_index[:, edges]],
        edge_displacements=geometry.edge_displacements[edges],
        dtype=geometry.dtype,
        n_max=max(sizes),
    )
    around = Neighbourhood(
        edges=torch.arange(len(edges), device=device),
        pattern=SparsePattern.from_rows(new_index[receivers[mine]], new_index[senders[mine]], len(atoms), len(atoms)),
        distances=neighbourhood.distances[mine],
        types=(neighbourhood.types[0][mine], neighbourhood.types[1][mine]),
        envelope=neighbourhood.envelope[mine],
        self_basis=neighbourhood.self_basis[atoms],
        radial=neighbourhood.radial,
    )
    return part, around, atoms


def subset_of_atoms(geometry: Geometry, b: int, atoms: Tensor) -> Geometry:
    """Some atoms of structure ``b``, (n_part,) counted within it, as a structure without neighbours."""
    none = torch.zeros((2, 0), dtype=torch.int64, device=atoms.device)
    index = geometry.starts[b] + atoms
    return Geometry(
        positions=geometry.positions[index],
        centroids=geometry.centroids[b : b + 1],
        atomic_numbers=geometry.atomic_numbers[index],
        structure=torch.zeros_like(index),
        sizes=[len(index)],
        cell=geometry.cell[b : b + 1],
        pbc=[geometry.pbc[b]],
        edge_index=none,
        edge_displacements=geometry.edge_displacements[:0],
        dtype=geometry.dtype,
        n_max=len(index),
    )
