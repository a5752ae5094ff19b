"""What was tried to learn for a relaxation: stiffnesses of the pair Hessian, and factors of directions.

Every atom has scalars that do not change under rotation: the size of its force among the others', the angle between
its force and its last step, and the curvature that it met there; how dense its neighbourhood is, and the means of
these scalars, through FLT's mask f(Δ) = Σ_t w_t b_t(|Δ|) with learned widths; and how the mask's sum of all forces,
the far vector, lies to its own. All steps turn with the structure and do not depend on its origin or its order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from molflt.attention.far.members import GaussianRPE
from molflt.simulate.pair_lbfgs import (
    FLOOR,
    STIFFNESS,
    History,
    Structures,
    envelope,
    newton,
    pair_hessian,
    relative_distances,
    two_loops,
)

N_MEMBERS, WIDTH, N_CHANNELS, N_RADIAL = 4, 16, 4, 8
N_SCALARS = 3 + 6 * N_MEMBERS
_TINY = 1e-20


def plain(structures: Structures, history: History) -> Tensor:
    """L-BFGS from a scaled identity, (B, 3n) Å: the history and trust region alone."""
    return two_loops(history, lambda q: q / STIFFNESS)


class Scalars(nn.Module):
    """The scalars of atoms.

    Args:
        attention: whether those through the mask are among them, or zero.
    """

    def __init__(self, attention: bool = True) -> None:
        super().__init__()
        self.attention = attention
        self.mask = GaussianRPE(N_MEMBERS, 1.5, 4.0)

    def masks(self, r: Tensor) -> Tensor:
        """b_t of pairs, (n_pairs, T), tapered to their reach."""
        return self.mask().on_pairs(r**2).movedim(0, -1) * envelope(r)[:, None]

    def forward(self, structures: Structures, history: History, masks: Tensor) -> Tensor:
        """(B·n, N_SCALARS), without unit."""
        shape, free = history.forces.shape, structures.free
        forces = history.forces.reshape(-1, 3)
        size = length(forces)
        typical = ((size.view(shape[:2]) ** 2 * free).sum(1) / free.sum(1).clamp(min=1)).clamp(min=_TINY).sqrt()
        relative = (size / typical.repeat_interleave(shape[1])).clamp(min=1e-3).log()
        angle, curvature = torch.zeros_like(size), torch.zeros_like(size)
        if history.steps:
            s, y = (values[-1].view(-1, 3) for values in (history.steps, history.changes))
            angle = (forces * s).sum(-1) / (size * length(s))
            along = (s * y).view(shape).sum((1, 2)).abs() / s.square().view(shape).sum((1, 2)).clamp(min=_TINY)
            along = along.clamp(min=1e-6).repeat_interleave(shape[1])
            curvature = (length(y) / length(s) / along).clamp(1e-3, 1e3).log()
        own = torch.stack([relative, angle, curvature], -1) * free.flatten()[:, None]
        if not self.attention:
            return nn.functional.pad(own, (0, N_SCALARS - 3))
        density = attended(structures, masks, torch.ones_like(size)[:, None])[..., 0]
        means = attended(structures, masks, own) / (density[..., None] + 0.1)
        far = attended(structures, masks, forces)
        far_angle = (far * forces[:, None]).sum(-1) / (length(far) * size[:, None])
        together = length(far) / (attended(structures, masks, size[:, None])[..., 0] + 1e-10)
        return torch.cat([own, density, means.flatten(1), far_angle, together], -1)


class LearnedHessian(nn.Module):
    """L-BFGS from the pair Hessian, whose stiffnesses are multiplied by what a network makes of a pair.

    Its inputs are the distance and the sum of both atoms' channels, which another network makes of their scalars.
    Untrained, it multiplies by one.
    """

    def __init__(self, attention: bool = True) -> None:
        super().__init__()
        self.scalars = Scalars(attention)
        self.atoms = _mlp(N_SCALARS, N_CHANNELS)
        self.pairs = _mlp(N_CHANNELS + N_RADIAL + 1, 2, zero=True)
        self.floor = nn.Parameter(torch.tensor(FLOOR))
        self.double()

    def hessian(self, structures: Structures, history: History) -> Tensor:
        """H₀, (B, 3n, 3n) eV/Å²."""
        _, r = structures.displacements(history.positions)
        channels = self.atoms(self.scalars(structures, history, self.scalars.masks(r)))
        x = relative_distances(structures, r)[:, None]
        radial = torch.exp(-0.5 * ((x - torch.linspace(0.7, 2.1, N_RADIAL, dtype=x.dtype)) / 0.2) ** 2)
        both = channels[structures.i] + channels[structures.j]
        factors = self.pairs(torch.cat([both, radial, x.log()], -1))
        return pair_hessian(structures, history.positions, factors, self.floor)

    def forward(self, structures: Structures, history: History) -> Tensor:
        """The next step before it is shortened, (B, 3n) Å."""
        return newton(history, self.hessian(structures, history))


class SummedSteps(nn.Module):
    """A step that is a sum of directions, each times what a network makes of an atom's scalars.

    The directions: that of :func:`plain`, the force, the last step, and the mask's sums of forces and of the first.
    Untrained, it is the first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scalars = Scalars()
        self.factors = _mlp(N_SCALARS + 3, 3 + 2 * N_MEMBERS, zero=True)
        self.double()

    def forward(self, structures: Structures, history: History) -> Tensor:
        """The next step before it is shortened, (B, 3n) Å."""
        _, r = structures.displacements(history.positions)
        masks = self.scalars.masks(r)
        first, forces = plain(structures, history), history.forces
        # Forces count in units of the first direction's length.
        unit = first.norm(dim=1) / forces.flatten(1).norm(dim=1).clamp(min=1e-10)
        steepest = (forces * unit[:, None, None]).view(-1, 3)
        last = history.steps[-1].view(-1, 3) if history.steps else torch.zeros_like(steepest)
        own = torch.stack([first.view(-1, 3), steepest, last], 1)
        far = [attended(structures, masks, values) for values in (steepest, first.view(-1, 3))]
        sizes = length(own)
        angles = (own[:, :1] * own[:, 1:]).sum(-1) / (sizes[:, :1] * sizes[:, 1:])
        ratio = (sizes[:, 0] / sizes[:, 1]).log().clamp(-5, 5)[:, None]
        factors = self.factors(torch.cat([self.scalars(structures, history, masks), angles, ratio], -1))
        factors = factors + torch.eye(factors.shape[1], dtype=r.dtype)[0]
        return (factors[..., None] * torch.cat([own, *far], 1)).sum(1).view_as(first)


def attended(structures: Structures, masks: Tensor, values: Tensor) -> Tensor:
    """Σ_j b_t(Δ_ij) v_j: (n_pairs, T) and (B·n, c) → (B·n, T, c)."""
    made = values.new_zeros(len(values), masks.shape[1], values.shape[1])
    return made.index_add(0, structures.i, masks[:, :, None] * values[structures.j][:, None, :])


def length(vectors: Tensor) -> Tensor:
    """Of (..., 3), with a gradient at zero."""
    return vectors.square().sum(-1).clamp(min=_TINY).sqrt()


def _mlp(n_in: int, n_out: int, zero: bool = False) -> nn.Sequential:
    last = nn.Linear(WIDTH, n_out)
    if zero:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(n_in, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), last)
