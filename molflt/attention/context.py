"""What the layers share of a batch: how each structure is contracted, and with what.

Structures contracted on pairs are padded to the largest of those of similar size; the others need no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from molflt.attention.config import OrderKind
from molflt.attention.far.choice import Contraction, choose_contraction
from molflt.attention.far.costs import LayerSizes, costs
from molflt.attention.far.members import GaussianBasis, GaussianRPE
from molflt.attention.far.method import FarOperator, FrequencyMethod
from molflt.attention.geometry import Geometry, select_rows
from molflt.attention.mechanism import Context, SharedPositions
from molflt.attention.moments import NeighbourMoments
from molflt.attention.near import Neighbourhood
from molflt.attention.sparse import SparsePattern


@dataclass
class Part:
    """Structures of a batch that are contracted together.

    Attributes:
        geometry: of the part.
        neighbourhood: radial features of its neighbour list.
        far_basis: quadratic order: (n_weights, n_structures, n_max, n_max) basis of f̂; None without a far field.
        operators: linear and mixed order: f̂ of every structure; empty without a far field.
        quadratic: whether that is the order.
    """

    geometry: Geometry
    neighbourhood: Neighbourhood
    far_basis: Tensor | None
    operators: list[FarOperator]
    quadratic: bool


@dataclass
class FourierContext(Context):
    """What every layer makes its own of.

    Attributes:
        parts: at least one.
        order: (n_atoms,) atoms of the batch, part after part; None when the one part is the batch.
        moments: of the neighbours in the whole batch; None if no layer has them.
    """

    parts: list[Part]
    order: Tensor | None
    moments: NeighbourMoments | None

    @cached_property
    def _back(self) -> Tensor:
        """(n_atoms,): the order undone. Every layer and recycle needs it."""
        assert self.order is not None
        return self.order.argsort()

    def distribute(self, values: Tensor) -> list[Tensor]:
        """(n_atoms, ...) → (n_part, ...) for every part."""
        if self.order is None:
            return [values]
        return list(select_rows(values, self.order).split([part.geometry.n_atoms for part in self.parts]))

    def collect(self, values: Sequence[Tensor]) -> Tensor:
        """(n_part, ...) of every part → (n_atoms, ...)."""
        if self.order is None:
            return values[0]
        return select_rows(torch.cat(list(values)), self._back)


class FourierPositions(SharedPositions):
    """Widths of the RPE function and the numerical method that evaluates it; shared by all layers and heads.

    Args:
        rpe: the RPE function; None without a far field.
        method: how it is evaluated.
        sizes: what the layers will do with it.
        order: ``auto`` picks the faster contraction order for each structure.
        moments: whether the layers have moments of the neighbours.
    """

    def __init__(
        self,
        rpe: GaussianRPE | None,
        method: FrequencyMethod | None,
        sizes: LayerSizes,
        order: OrderKind,
        moments: bool,
    ) -> None:
        super().__init__()
        self.rpe = rpe
        self.method = method
        self.sizes = sizes
        self.order: OrderKind = order
        self.moments = moments

    @property
    def n_weights(self) -> int:
        """Weights per layer and head; 0 without a far field."""
        return 0 if self.method is None or self.rpe is None else self.method.n_weights(self.rpe.n_basis)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> FourierContext:
        """See :class:`SharedPositions`."""
        basis = None if self.rpe is None else self.rpe()
        contractions = self.contractions(geometry, neighbourhood, basis)
        on_pairs = [b for b, contraction in enumerate(contractions) if contraction.order == "quadratic"]
        on_edges = [b for b, contraction in enumerate(contractions) if contraction.order != "quadratic"]
        groups = [[on_pairs[b] for b in group] for group in similar_sizes([geometry.sizes[b] for b in on_pairs])]
        groups += [on_edges] if on_edges else []
        order = None
        found = [(geometry, neighbourhood)]
        if len(groups) > 1:
            found, order = split(geometry, neighbourhood, groups)
        parts = [
            _part(*of_group, [contractions[b] for b in group], basis)
            for of_group, group in zip(found, groups, strict=True)
        ]
        moments = NeighbourMoments(geometry, neighbourhood) if self.moments else None
        return FourierContext(parts, order, moments, contractions=contractions)

    def contractions(
        self, geometry: Geometry, neighbourhood: Neighbourhood, basis: GaussianBasis | None
    ) -> list[Contraction]:
        """Method and order for every structure of a batch.

        Besides the structure they depend on the number of threads and on whether anything is to be differentiated.

        Raises:
            InputError: the file of costs cannot be used, or a forced order is not there.
        """
        # The radial basis has weights, so that this holds in all training.
        backward = neighbourhood.self_basis.requires_grad or geometry.positions.requires_grad
        rates = costs().of(torch.get_num_threads(), torch.is_grad_enabled() and backward)
        ends = torch.tensor([*geometry.starts, geometry.n_atoms], device=geometry.structure.device)
        n_edges = neighbourhood.pattern.row_starts[ends].diff().tolist()
        return [
            choose_contraction(self.method, self.order, self.sizes, geometry, b, n_edges[b], basis, rates)
            for b in range(geometry.n_structures)
        ]


def _part(
    geometry: Geometry,
    neighbourhood: Neighbourhood,
    contractions: list[Contraction],
    basis: GaussianBasis | None,
) -> Part:
    part = Part(geometry, neighbourhood, None, [], contractions[0].order == "quadratic")
    if basis is not None and part.quadratic:
        part.far_basis = _pair_basis(geometry, [contraction.method for contraction in contractions], basis)
    elif basis is not None:
        part.operators = [_operator(geometry, b, basis, of_b) for b, of_b in enumerate(contractions)]
    return part


def _operator(geometry: Geometry, b: int, basis: GaussianBasis, contraction: Contraction) -> FarOperator:
    method = contraction.method
    assert method is not None
    if contraction.order == "mixed":
        return method.pairs_operator(geometry, b, basis)
    operator = method.operator(geometry, b, basis)
    assert operator is not None
    return operator


def _pair_basis(geometry: Geometry, methods: list[FrequencyMethod | None], basis: GaussianBasis) -> Tensor:
    """Structures of one method together, then back in the order of the part."""
    order: list[int] = []
    found = []
    for method in dict.fromkeys(methods):
        assert method is not None
        mine = [b for b, m in enumerate(methods) if m is method]
        order += mine
        found.append(method.blocks(geometry, mine, basis))
    if len(found) > 1:
        found = [torch.cat(found)[torch.tensor(order, device=found[0].device).argsort()]]
    return found[0].movedim(-1, 0).contiguous()


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
    structure = rank[geometry.structure[atoms]]
    n_structures = [len(group) for group in groups]
    n_atoms = [sum(geometry.sizes[b] for b in group) for group in groups]
    of_structures = torch.bincount(structure[receivers], minlength=len(sequence))
    n_edges = [int(of_group.sum()) for of_group in of_structures.split(n_structures)]

    def of_atoms(values: Tensor) -> tuple[Tensor, ...]:
        return select_rows(values, atoms).split(n_atoms)

    def of_edges(values: Tensor) -> tuple[Tensor, ...]:
        # The derivative of all parts together is one tensor; that of every slice would be one as large as the whole.
        return select_rows(values, order).split(n_edges)

    centroids, cells = geometry.centroids[chosen].split(n_structures), geometry.cell[chosen].split(n_structures)
    positions, numbers = of_atoms(geometry.positions), of_atoms(geometry.atomic_numbers)
    self_basis, structures = of_atoms(neighbourhood.self_basis), structure.split(n_atoms)
    displacements = select_rows(geometry.edge_displacements, neighbourhood.edges[order]).split(n_edges)
    receiver_types, sender_types = map(of_edges, neighbourhood.types)
    distances, fade = of_edges(neighbourhood.distances), of_edges(neighbourhood.envelope)
    basis = None if neighbourhood.is_large else of_edges(neighbourhood.basis)
    indices = torch.stack([receivers, senders]).split(n_edges, dim=1)
    found, first_structure, first_atom = [], 0, 0
    for k, group in enumerate(groups):
        sizes = [geometry.sizes[b] for b in group]
        index = indices[k] - first_atom
        part = Geometry(
            positions=positions[k],
            centroids=centroids[k],
            atomic_numbers=numbers[k],
            structure=structures[k] - first_structure,
            sizes=sizes,
            cell=cells[k],
            pbc=[geometry.pbc[b] for b in group],
            edge_index=index,
            edge_displacements=displacements[k],
            dtype=geometry.dtype,
            n_max=max(sizes),
        )
        around = Neighbourhood(
            edges=torch.arange(index.shape[1], device=device),
            pattern=SparsePattern.from_rows(index[0], index[1], n_atoms[k], n_atoms[k]),
            distances=distances[k],
            types=(receiver_types[k], sender_types[k]),
            envelope=fade[k],
            self_basis=self_basis[k],
            radial=neighbourhood.radial,
            given_basis=None if basis is None else basis[k],
        )
        found.append((part, around))
        first_structure, first_atom = first_structure + n_structures[k], first_atom + n_atoms[k]
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


def _inverse(order: Tensor) -> Tensor:
    """The permutation that undoes another, (n,)."""
    return torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=order.device))


GROUP_COST = 4_000
"""Pairs of padding that one more group of structures costs as much as: measured on CPUs."""
