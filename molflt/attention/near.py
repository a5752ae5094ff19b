"""Local RPE: the exponentiated distance bias on the neighbour list, linear in a Gaussian distance basis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from molflt.attention.geometry import Geometry
from molflt.attention.smooth import GAUSSIAN_END, envelope
from molflt.attention.sparse import SparsePattern, sum_of_entries
from molflt.vocabulary import MAX_ATOMIC_NUMBER


class GaussianDistanceBasis(nn.Module):
    """φ_k(d), φ_k a Gaussian of learnable centre and width; with pair types φ_k(γ_zz' d + β_zz').

    The pair-type affine lets a C-H and a Pt-Pt contact of the same length look different (3D-Graphormer, Shi et
    al. 2022, arXiv 2203.04810, Eq. 2). It starts as the identity, also for pairs never seen in training. Two numbers
    for every pair of elements are also what a model remembers its training set by (docs/accuracy.md).

    Args:
        n_basis: number of Gaussians.
        cutoff: Å; centres start evenly spaced on [0, cutoff].
        pair_types: whether there is the affine.
    """

    def __init__(self, n_basis: int, cutoff: float, pair_types: bool = False) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.pair_types = pair_types
        if pair_types:
            n_types = MAX_ATOMIC_NUMBER + 1
            self.gamma = nn.Parameter(torch.ones(n_types * n_types))
            self.beta = nn.Parameter(torch.zeros(n_types * n_types))
        self.centres = nn.Parameter(torch.linspace(0.0, 1.0, n_basis))
        # Widths stay positive by construction; neighbouring Gaussians start overlapping at half height.
        self.log_widths = nn.Parameter(torch.full((n_basis,), 1.0 / max(n_basis - 1, 1)).log())

    def forward(self, distances: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        """Distances (n,) Å and atomic numbers (n,), (n,) → (n, n_basis)."""
        x = distances / self.cutoff
        if self.pair_types:
            x = self._of_types(x, receiver_types, sender_types)
        steepness = torch.exp(-self.log_widths) / math.sqrt(2)
        bells: Tensor = _Bell.apply(torch.addcmul(-self.centres * steepness, x[:, None], steepness))
        return bells

    def _of_types(self, x: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        pair_type = receiver_types.to(torch.int64) * (MAX_ATOMIC_NUMBER + 1) + sender_types
        # gather: adding up the derivative of an index is ten times slower
        gamma, beta = self.gamma.gather(0, pair_type), self.beta.gather(0, pair_type)
        return gamma * x + beta


class _Bell(torch.autograd.Function):
    """exp(−z²), in as few passes over memory as there can be: there are as many z as edges times Gaussians."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        bells = (z * z).clamp_(max=GAUSSIAN_END).neg_().exp_()
        ctx.save_for_backward(z, bells)
        return bells

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        z, bells = ctx.saved_tensors
        if torch.is_grad_enabled():
            return -2 * gradient * z * bells
        return (gradient * z).mul_(bells).mul_(-2)


@dataclass
class Neighbourhood:
    """Radial features of a batch's neighbour list, shared by centrality, attention and heads.

    Attributes:
        edges: indices into the geometry's edge list of those within the local cutoff, (n_local,), by receiver.
        pattern: receivers as rows, senders as columns.
        distances: (n_local,) Å.
        types: (n_local,), (n_local,) atomic numbers of receiver and sender, uint8.
        envelope: (n_local,), 1 at distance zero, smoothly 0 at the cutoff.
        self_basis: (n_atoms, n_rbf) φ of distance zero and an atom's own type.
        radial: φ.
        given_basis: (n_local, n_rbf) φ of each edge, where it has been made already.
    """

    edges: Tensor
    pattern: SparsePattern
    distances: Tensor
    types: tuple[Tensor, Tensor]
    envelope: Tensor
    self_basis: Tensor
    radial: GaussianDistanceBasis
    given_basis: Tensor | None = None
    _pair_places: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return len(self.edges)

    @cached_property
    def basis(self) -> Tensor:
        """(n_local, n_rbf) φ of each edge; made once."""
        if self.given_basis is not None:
            return self.given_basis
        if torch.is_grad_enabled() or self.n_edges <= self.edges_at_once:
            return self._make_basis(slice(None))
        out = self.distances.new_empty((self.n_edges, self.self_basis.shape[1]))
        for first in range(0, self.n_edges, self.edges_at_once):
            few = slice(first, first + self.edges_at_once)
            out[few] = self._make_basis(few)
        return out

    @property
    def is_large(self) -> bool:
        """Whether φ of all edges at once would take too much memory."""
        kept = _VALUES_KEPT_FOR_GRADIENT if torch.is_grad_enabled() else _VALUES_KEPT
        return self.n_edges * self.self_basis.shape[1] > kept

    @property
    def edges_at_once(self) -> int:
        """Of how many edges something as wide as φ may be made."""
        return max(1, _VALUES_AT_ONCE // self.self_basis.shape[1])

    def basis_of(self, edges: slice) -> Tensor:
        """φ of some edges; of a large neighbourhood it is made anew."""
        return self._make_basis(edges) if self.is_large else self.basis[edges]

    def _make_basis(self, edges: slice) -> Tensor:
        return self.radial(self.distances[edges], self.types[0][edges], self.types[1][edges])

    def evaluate(self, function: Callable[[Tensor, slice], Tensor], edges: slice) -> Tensor:
        """``function(φ, edges)`` of some edges; of a large neighbourhood nothing but its result is kept."""
        if not self.is_large:
            return function(self.basis[edges], edges)

        def compute(distances: Tensor) -> Tensor:
            return function(self.radial(distances, self.types[0][edges], self.types[1][edges]), edges)

        if torch.is_grad_enabled():
            found: Tensor = checkpoint(compute, self.distances[edges], use_reentrant=False)
            return found
        return compute(self.distances[edges])

    def pair_places(self, geometry: Geometry) -> Tensor:
        """(n_local + n_atoms,) places of the edges and of every atom with itself on pairs; made once."""
        if self._pair_places is None:
            receiver, sender = geometry.edge_index[:, self.edges]
            atoms = torch.arange(geometry.n_atoms, device=receiver.device)
            pairs = torch.cat([receiver, atoms]), torch.cat([sender, atoms])
            self._pair_places = geometry.pair_places(*pairs)
        return self._pair_places

    def sum_over_neighbours(self, function: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Σ over the edges of every receiver of ``function(φ, edges)``, (n_edges, c) → (n_atoms, c)."""
        found = [
            sum_of_entries(pattern, self.evaluate(function, edges))
            for _, edges, pattern in self.pattern.parts(self.edges_at_once)
        ]
        return torch.cat(found)


_VALUES_AT_ONCE = 1 << 25
"""Edges times radial functions of which intermediates are held, 128 MiB in float32 each."""

_VALUES_KEPT = 1 << 30
_VALUES_KEPT_FOR_GRADIENT = 1 << 27
"""Edges times radial functions up to which φ is kept, 4 GiB in float32; less where a derivative keeps more."""


def local_neighbourhood(geometry: Geometry, radial: GaussianDistanceBasis, cutoff: float) -> Neighbourhood:
    """Radial features on the edges shorter than ``cutoff`` Å."""
    edges = torch.nonzero(geometry.edge_distances.detach() < cutoff).squeeze(1)
    receiver = geometry.edge_index[0, edges]
    if bool((receiver.diff() < 0).any()):
        edges = edges[torch.argsort(receiver, stable=True)]
    distances = geometry.edge_distances[edges]
    return neighbourhood_of(geometry, edges, distances, envelope(distances, cutoff), radial)


def neighbourhood_of(
    geometry: Geometry, edges: Tensor, distances: Tensor, fade: Tensor, radial: GaussianDistanceBasis
) -> Neighbourhood:
    """Radial features on some edges, (n_local,) each, by receiver."""
    receiver, sender = geometry.edge_index[0, edges], geometry.edge_index[1, edges]
    z = geometry.atomic_numbers.to(torch.uint8)
    return Neighbourhood(
        edges=edges,
        pattern=SparsePattern.from_rows(receiver, sender, geometry.n_atoms, geometry.n_atoms),
        distances=distances,
        types=(z[receiver], z[sender]),
        envelope=fade,
        self_basis=self_basis(geometry, radial),
        radial=radial,
    )


def self_basis(geometry: Geometry, radial: GaussianDistanceBasis) -> Tensor:
    """(n_atoms, n_rbf): the radial basis at distance zero."""
    zero = torch.zeros(geometry.n_atoms, dtype=geometry.dtype, device=geometry.positions.device)
    return radial(zero, geometry.atomic_numbers, geometry.atomic_numbers)


class LocalRPE(nn.Module):
    """Σ over images of exp(b_h(|Δ_ij|, z_i, z_j)) · env(|Δ_ij|), with env = 1 for the atom itself.

    b_h is linear in the radial basis, which knows z_i and z_j only with ``model.pair_types``. Because exp(q·k + b) =
    exp(q·k) exp(b), the images of one pair can be summed before the content enters, and what is left is one number
    per pair and head.

    Args:
        n_rbf: size of the radial basis.
        n_heads: heads.
    """

    def __init__(self, n_rbf: int, n_heads: int) -> None:
        super().__init__()
        self.bias = nn.Linear(n_rbf, n_heads)

    def on_edges(self, neighbourhood: Neighbourhood, edges: slice = slice(None)) -> Tensor:
        """exp(b_h)·env of some edges, (n_heads, n_edges); of all unless told otherwise."""

        def factor(basis: Tensor, edges: slice) -> Tensor:
            return self.bias(basis).transpose(0, 1).exp() * neighbourhood.envelope[edges]

        first, last, _ = edges.indices(neighbourhood.n_edges)
        step = neighbourhood.edges_at_once
        parts = [slice(a, min(a + step, last)) for a in range(first, last, step)] or [slice(0, 0)]
        found = [neighbourhood.evaluate(factor, part) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def on_self(self, neighbourhood: Neighbourhood) -> Tensor:
        """exp(b_h) of every atom with itself, (n_heads, n_atoms)."""
        return self.bias(neighbourhood.self_basis).exp().transpose(0, 1)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> Tensor:
        """(n_heads, n_structures, n_max, n_max), zero between atoms that are not neighbours."""
        factors = torch.cat([self.on_edges(neighbourhood), self.on_self(neighbourhood)], dim=1)
        return geometry.sum_on_pairs(neighbourhood.pair_places(geometry), factors)
