"""What a relaxation remembers, and L-BFGS on it (Nocedal and Wright, Numerical Optimization, algorithm 7.4).

Everything is batched over structures and differentiable, so that the same code relaxes and is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from molflt.literature.relaxation.structures import Structures

MAX_STEP = 0.2
"""Å, the farthest that an atom moves in a step; the default of ASE."""
FIRST_STEP = 0.1
SMALLEST_STEP = 0.005
MEMORY = 30
ENERGY_NOISE = 1e-4
"""eV by which an accepted energy may lie above the last one: single precision is no better."""


@dataclass
class History:
    """Where B relaxations of n atoms are and how they got there.

    Attributes:
        positions, energy, forces: of the lowest structure so far, (B, n, 3) Å, (B,) eV and (B, n, 3) eV/Å.
        radius: (B,) Å, the farthest that an atom may move.
        steps, changes: s and y of past steps, (B, 3n) each, in Å and eV/Å; y is the change of the gradient.
        valid: (B,) each, false where the curvature was not positive.
    """

    positions: Tensor
    energy: Tensor
    forces: Tensor
    radius: Tensor
    steps: list[Tensor] = field(default_factory=list)
    changes: list[Tensor] = field(default_factory=list)
    valid: list[Tensor] = field(default_factory=list)


def begin(positions: Tensor, energy: Tensor, forces: Tensor) -> History:
    """After the first calculation."""
    return History(positions, energy, forces, torch.full_like(energy, FIRST_STEP))


def learn(history: History, positions: Tensor, energy: Tensor, forces: Tensor) -> History:
    """After another one. Its curvature is always kept, its positions only if the energy has not risen."""
    moved = (positions - history.positions).flatten(1)
    change = (history.forces - forces).flatten(1)
    valid = (moved * change).sum(1) > 1e-3 * moved.norm(dim=1) * change.norm(dim=1)
    longest = (positions - history.positions).norm(dim=-1).amax(1).detach()
    lower = energy <= history.energy + ENERGY_NOISE
    grown = torch.where(longest > 0.9 * history.radius, 1.5 * history.radius, history.radius).clamp(max=MAX_STEP)
    keep = lower[:, None, None]
    return History(
        torch.where(keep, positions, history.positions),
        torch.where(lower, energy, history.energy),
        torch.where(keep, forces, history.forces),
        torch.where(lower, grown, (0.4 * longest).clamp(min=SMALLEST_STEP)),
        [*history.steps, moved][-MEMORY:],
        [*history.changes, change][-MEMORY:],
        [*history.valid, valid][-MEMORY:],
    )


def shortened(structures: Structures, history: History, direction: Tensor) -> Tensor:
    """Displacements of free atoms, (B, n, 3) Å, as a whole no longer than the radius for any atom."""
    p = direction.view_as(history.positions) * structures.free[..., None]
    longest = p.square().sum(-1).clamp(min=1e-20).sqrt().amax(1)
    return p * (history.radius / longest).clamp(max=1.0)[:, None, None]


Solve = Callable[[Tensor], Tensor]
"""H₀⁻¹ of a vector: (B, 3n) → (B, 3n)."""


def two_loops(history: History, solve: Solve) -> Tensor:
    """The L-BFGS step, (B, 3n), from an initial Hessian that is right up to a factor.

    The factor is yᵀH₀⁻¹y/yᵀs of the last valid step: of the curvatures that it met, the stiff ones count most.
    """
    q = history.forces.flatten(1)
    one = q.new_ones(len(q), 1)
    used = []
    for s, y, valid in zip(history.steps, history.changes, history.valid, strict=True):
        rho = torch.where(valid, 1 / torch.where(valid, (s * y).sum(1), 1.0), 0.0)[:, None]
        used.append((s, y, rho))
    last, over = torch.zeros_like(q), one
    for _, y, rho in used:
        last, over = torch.where(rho > 0, y, last), torch.where(rho > 0, rho, over)
    met = (last * solve(last)).sum(1, keepdim=True) * over
    factor = torch.where(met > 0, met.clamp(1e-2, 1e2), one)
    kept = []
    for s, y, rho in reversed(used):
        alpha = rho * (s * q).sum(1, keepdim=True)
        q = q - alpha * y
        kept.append(alpha)
    p = solve(q) / factor
    for (s, y, rho), alpha in zip(used, reversed(kept), strict=True):
        p = p + s * (alpha - rho * (y * p).sum(1, keepdim=True))
    return p
