"""Parts of a batch, as batches of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.geometry import Geometry, select_rows
from molflt.attention.local_rpe import Neighbourhood
from molflt.attention.sparse import SparsePattern


def split(
    geometry: Geometry, neighbourhood: Neighbourhood, groups: Sequence[Sequence[int]]
) -> tuple[list[tuple[Geometry, Neighbourhood]], Tensor]:
    """Groups of structures as batches of their own, with the edges of the neighbourhood only.

    Args:
        geometry: the batch.
        neighbourhood: its radial features.
        groups: indices of structures; every structure is in one group.

    Returns:
        Geometry and neighbourhood of every group, and (n_atoms,) the atoms of the batch in the order of the groups.
    """
    device = geometry.structure.device
    sequence = [b for group in groups for b in group]
    chosen = torch.tensor(sequence, device=device)
    rank = _inverse(chosen)
    atoms = torch.argsort(rank[geometry.structure], stable=True)
    number = _inverse(atoms)
    receivers, senders = geometry.edge_index[:, neighbourhood.edges]
    order = torch.argsort(rank[geometry.structure[receivers]], stable=True)
    receivers, senders = number[receivers[order]], number[senders[order]]
    positions, numbers = select_rows(geometry.positions, atoms), geometry.atomic_numbers[atoms]
    structure, cell = rank[geometry.structure[atoms]], geometry.cell[chosen]
    displacements = select_rows(geometry.edge_displacements, neighbourhood.edges[order])
    types = neighbourhood.types[0][order], neighbourhood.types[1][order]
    distances, fade = select_rows(neighbourhood.distances, order), select_rows(neighbourhood.envelope, order)
    self_basis = select_rows(neighbourhood.self_basis, atoms)
    basis = None if neighbourhood.is_large else select_rows(neighbourhood.basis, order)
    n_edges = torch.bincount(structure[receivers], minlength=len(sequence)).tolist()
    found, s, a, e = [], 0, 0, 0
    for group in groups:
        sizes = [geometry.sizes[b] for b in group]
        own = slice(s, s + len(group))
        rows, edges = slice(a, a + sum(sizes)), slice(e, e + sum(n_edges[own]))
        index = torch.stack([receivers[edges], senders[edges]]) - a
        part = Geometry(
            positions=positions[rows],
            centroids=geometry.centroids[chosen[own]],
            atomic_numbers=numbers[rows],
            structure=structure[rows] - s,
            sizes=sizes,
            cell=cell[own],
            pbc=[geometry.pbc[b] for b in group],
            edge_index=index,
            edge_displacements=displacements[edges],
            dtype=geometry.dtype,
            n_max=max(sizes),
        )
        around = Neighbourhood(
            edges=torch.arange(index.shape[1], device=device),
            pattern=SparsePattern.from_rows(index[0], index[1], sum(sizes), sum(sizes)),
            distances=distances[edges],
            types=(types[0][edges], types[1][edges]),
            envelope=fade[edges],
            self_basis=self_basis[rows],
            radial=neighbourhood.radial,
        )
        if basis is not None:
            around.__dict__["basis"] = basis[edges]
        found.append((part, around))
        s, a, e = own.stop, rows.stop, edges.stop
    return found, atoms


def similar_sizes(sizes: Sequence[int]) -> list[list[int]]:
    """Structures of similar size together, so that padding the smaller ones to the largest costs little.

    Args:
        sizes: atoms per structure.

    Returns:
        Ascending indices of structures, group after group, groups ascending in size.
    """
    groups: list[list[int]] = []
    for b in sorted(range(len(sizes)), key=lambda b: sizes[b]):
        padding = sum(sizes[b] ** 2 - sizes[other] ** 2 for other in groups[-1]) if groups else 0
        if groups and padding <= GROUP_COST:
            groups[-1].append(b)
        else:
            groups.append([b])
    return [sorted(group) for group in groups]


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


def _inverse(order: Tensor) -> Tensor:
    """The permutation that undoes another, (n,)."""
    return torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))


GROUP_COST = 4_000
"""Pairs of padding that one more group of structures costs as much as: measured on CPUs."""
