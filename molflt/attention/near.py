"""Local RPE: an exponentiated distance bias on neighbours, linear in a Gaussian basis."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from molflt.attention.geometry import Geometry
from molflt.attention.layout import Entries
from molflt.attention.places import Kept
from molflt.attention.smooth import GAUSSIAN_END, NOTHING, envelope
from molflt.attention.sparse import SparsePattern, sum_of_entries
from molflt.vocabulary import MAX_ATOMIC_NUMBER, Spacing


class GaussianDistanceBasis(nn.Module):
    """Gaussians φ_k(d) of learnable centre and width; with pair types φ_k(γ_zz' d + β_zz').

    The pair-type affine lets a C-H and a Pt-Pt contact of the same length look different (3D-Graphormer, Shi et
    al. 2022, arXiv 2203.04810, Eq. 2). It starts as the identity, also for pairs never seen in training. With two
    numbers for every pair of elements a model can also memorise its training set (docs/accuracy.md).

    With the exponential spacing they are Gaussians of e^(−d/1 Å) (PhysNet, Unke and Meuwly 2019, arXiv 1902.08408,
    Eq. 7): fine at the lengths of bonds, and so coarse beyond that little can be learnt by heart there.

    Args:
        n_basis: number of Gaussians.
        cutoff: Å; centres start evenly spaced on [0, cutoff].
        pair_types: whether to apply the affine.
        spacing: of the Gaussians.
    """

    def __init__(self, n_basis: int, cutoff: float, pair_types: bool = False, spacing: Spacing = "even") -> None:
        super().__init__()
        self.n_basis, self.cutoff, self.spacing = n_basis, cutoff, spacing
        self.pair_types = pair_types
        if pair_types:
            n_types = MAX_ATOMIC_NUMBER + 1
            self.gamma = nn.Parameter(torch.ones(n_types * n_types))
            self.beta = nn.Parameter(torch.zeros(n_types * n_types))
        self.centres = nn.Parameter(torch.linspace(0.0, 1.0, n_basis))
        # Widths stay positive by construction; neighbouring Gaussians start overlapping at half height.
        width = 1.0 / max(n_basis - 1, 1) if spacing == "even" else math.sqrt(2) / n_basis
        self.log_widths = nn.Parameter(torch.full((n_basis,), width).log())

    def forward(self, distances: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        """Distances (n,) Å and atomic numbers (n,), (n,) → (n, n_basis)."""
        even = self.spacing == "even"
        x = distances / self.cutoff if even else torch.expm1(-distances) / math.expm1(-self.cutoff)
        if self.pair_types:
            x = self._of_types(x, receiver_types, sender_types)
        steepness = torch.exp(-self.log_widths) / math.sqrt(2)
        bells: Tensor = _Bell.apply(torch.addcmul(-self.centres * steepness, x[:, None], steepness))
        return bells

    def _of_types(self, x: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        pair_type = receiver_types.to(torch.int64) * (MAX_ATOMIC_NUMBER + 1) + sender_types
        # Not an index, since summing its derivative is ten times slower.
        gamma, beta = self.gamma.gather(0, pair_type), self.beta.gather(0, pair_type)
        return gamma * x + beta


class _Bell(torch.autograd.Function):
    """exp(−z²) in as few passes over memory as possible, one z per edge and Gaussian."""

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
    """Radial features of a batch's neighbours, shared by centrality, attention and heads.

    Every atom is an entry among its own neighbours, at distance zero.

    Attributes:
        entries: the neighbours of every atom.
        displacements: (n_entries, 3) Å.
        distances: (n_entries,) Å.
        types: (n_entries,), (n_entries,) atomic numbers of receiver and sender, uint8.
        envelope: (n_entries,), 1 at distance zero, smoothly 0 at the cutoff.
        others: (n_entries,) the envelope, but 0 for an atom itself.
        radial: φ.
    """

    entries: Entries
    displacements: Tensor
    distances: Tensor
    types: tuple[Tensor, Tensor]
    envelope: Tensor
    others: Tensor
    radial: GaussianDistanceBasis

    @property
    def pattern(self) -> SparsePattern:
        """Receivers as rows, senders as columns."""
        return self.entries.pattern

    @property
    def n_entries(self) -> int:
        """Number of entries."""
        return len(self.distances)

    @Kept
    def basis(self) -> Tensor:
        """(n_entries, n_rbf) φ of each entry; computed once."""
        if torch.is_grad_enabled() or self.n_entries <= self.entries_at_once:
            return self._make_basis(slice(None))
        out = self.distances.new_empty((self.n_entries, self.radial.n_basis))
        for first in range(0, self.n_entries, self.entries_at_once):
            few = slice(first, first + self.entries_at_once)
            out[few] = self._make_basis(few)
        return out

    @property
    def is_large(self) -> bool:
        """True if φ of all entries at once would take too much memory."""
        kept = _VALUES_KEPT_FOR_GRADIENT if torch.is_grad_enabled() else _VALUES_KEPT
        return self.n_entries * self.radial.n_basis > kept

    @property
    def entries_at_once(self) -> int:
        """Number of entries for which a tensor as wide as φ may be made."""
        return max(1, _VALUES_AT_ONCE // self.radial.n_basis)

    def basis_of(self, entries: slice) -> Tensor:
        """φ of some entries; recomputed in a large neighbourhood."""
        return self._make_basis(entries) if self.is_large else self.basis[entries]

    def _make_basis(self, entries: slice) -> Tensor:
        return self.radial(self.distances[entries], self.types[0][entries], self.types[1][entries])

    def evaluate(self, function: Callable[[Tensor, slice], Tensor], entries: slice) -> Tensor:
        """Evaluate ``function(φ, entries)``, keeping only the result in a large neighbourhood."""
        if not self.is_large:
            return function(self.basis[entries], entries)

        def compute(distances: Tensor) -> Tensor:
            return function(self.radial(distances, self.types[0][entries], self.types[1][entries]), entries)

        if torch.is_grad_enabled():
            found: Tensor = checkpoint(compute, self.distances[entries], use_reentrant=False)
            return found
        return compute(self.distances[entries])

    def sum_over_neighbours(self, function: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """Sum ``function(φ, entries)`` over receivers' entries: (n_entries, c) → (n_atoms, c)."""
        found = [
            sum_of_entries(pattern, self.evaluate(function, entries))
            for _, entries, pattern in self.pattern.parts(self.entries_at_once)
        ]
        return found[0] if len(found) == 1 else torch.cat(found)


_VALUES_AT_ONCE = 1 << 25
"""Entries times radial functions whose intermediates are held at once, 128 MiB in float32 each."""

_VALUES_KEPT = 1 << 30
_VALUES_KEPT_FOR_GRADIENT = 1 << 27
"""Most entries times radial functions for which φ is kept, 4 GiB in float32; less where a derivative keeps more."""


def local_neighbourhood(geometry: Geometry, radial: GaussianDistanceBasis, cutoff: float) -> Neighbourhood:
    """Return radial features of the neighbours nearer than ``cutoff`` Å."""
    return neighbourhood_of(geometry, geometry.layout.near, geometry.near_displacements, radial, cutoff)


def neighbourhood_of(
    geometry: Geometry,
    entries: Entries,
    displacements: Tensor,
    radial: GaussianDistanceBasis,
    cutoff: float,
    unending: Tensor | None = None,
) -> Neighbourhood:
    """Return radial features of some entries.

    Args:
        geometry: of the batch.
        entries: the neighbours of every atom.
        displacements: (n_entries, 3) Å.
        radial: φ.
        cutoff: Å, where the envelope ends.
        unending: (n_entries,) bool, entries whose envelope is one; None: no such entries.
    """
    # The norm has no derivative at zero, the distance of every atom from itself.
    distances = (displacements * displacements).sum(dim=1).clamp(min=NOTHING).sqrt()
    fade = envelope(distances, cutoff)
    if unending is not None:
        fade = torch.where(unending, 1.0, fade)
    z = geometry.atomic_numbers.to(torch.uint8)
    return Neighbourhood(
        entries=entries,
        displacements=displacements,
        distances=distances,
        types=(z[entries.receiver], z[entries.sender]),
        envelope=fade,
        others=fade * entries.others.to(fade.dtype),
        radial=radial,
    )


class LocalRPE(nn.Module):
    """Σ over images of exp(b_h(|Δ_ij|, z_i, z_j)) · env(|Δ_ij|), env = 1 for an atom itself.

    b_h is linear in the radial basis, which depends on z_i and z_j only with ``model.pair_types``. Because
    exp(q·k + b) = exp(q·k) exp(b), the images of one pair can be summed before the content enters, which leaves one
    number per pair and head.

    Args:
        n_rbf: size of the radial basis.
        n_heads: heads.
    """

    def __init__(self, n_rbf: int, n_heads: int) -> None:
        super().__init__()
        self.bias = nn.Linear(n_rbf, n_heads)

    def on_entries(self, neighbourhood: Neighbourhood, entries: slice | None = None) -> Tensor:
        """exp(b_h)·env of some entries, by default of all, (n_heads, n_entries)."""

        def factor(basis: Tensor, entries: slice) -> Tensor:
            return (
                torch.addmm(self.bias.bias[:, None], self.bias.weight, basis.t()).exp()
                * neighbourhood.envelope[entries]
            )

        first, last = (0, neighbourhood.n_entries) if entries is None else (entries.start, entries.stop)
        step = neighbourhood.entries_at_once
        if last - first <= step:
            return neighbourhood.evaluate(factor, slice(first, last))
        parts = [slice(a, min(a + step, last)) for a in range(first, last, step)]
        return torch.cat([neighbourhood.evaluate(factor, part) for part in parts], dim=1)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> Tensor:
        """(n_heads, n_structures, n_max, n_max), zero between atoms that are not neighbours."""
        return geometry.sum_on_pairs(neighbourhood.entries, self.on_entries(neighbourhood))
