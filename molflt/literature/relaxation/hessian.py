"""An initial Hessian made from distances alone: springs along and across every pair of near atoms.

It is the sum over pairs of k r̂r̂ᵀ + l (1 − r̂r̂ᵀ) and a floor, in the spirit of Lindh's model Hessian (Chem. Phys.
Lett. 241, 423, 1995), with k = 5 exp(−6(x − 1)) eV/Å², x being the distance over the sum of the covalent radii, and
l = k/e³. It is positive definite, turns with the structure, and does not know the order of atoms.
"""

from __future__ import annotations

import torch
from ase.data import covalent_radii
from torch import Tensor

from molflt.literature.relaxation.history import History, two_loops
from molflt.literature.relaxation.structures import REACH, Structures

STIFFNESS = 5.0
"""eV/Å², of neighbours in a metal. L-BFGS scales the whole by what it meets."""
DECAY, ACROSS, FLOOR = 6.0, -3.0, -3.0
"""How fast log k falls with x; log l − log k; the logarithm of the floor in units of STIFFNESS."""


def pair_hessian(
    structures: Structures, positions: Tensor, factors: Tensor | None = None, floor: Tensor | float = FLOOR
) -> Tensor:
    """H₀, (B, 3n, 3n) eV/Å²; the identity on atoms that are not free.

    Args:
        structures: their pairs.
        positions: (B, n, 3) Å.
        factors: added to log k and log l of each pair, (n_pairs, 2), symmetric in its atoms; by default nothing.
        floor: see :data:`FLOOR`.
    """
    n_structures, n = structures.numbers.shape
    i, j, free = structures.i, structures.j, structures.free.flatten()
    delta, r = structures.displacements(positions)
    logarithm = -DECAY * (relative_distances(structures, r) - 1)[:, None] + r.new_tensor([0.0, ACROSS])
    if factors is not None:
        logarithm = logarithm + factors
    along, across = (STIFFNESS * envelope(r)[:, None] * logarithm.clamp(-12, 6).exp())[..., None, None].unbind(1)
    unit, eye = delta / r[:, None], torch.eye(3, dtype=r.dtype)
    block = (along - across) * unit[:, :, None] * unit[:, None, :] + across * eye
    bottom = STIFFNESS * torch.as_tensor(floor, dtype=r.dtype).exp() * eye
    diagonal = bottom.repeat(len(free), 1, 1).index_add(0, i, block)
    diagonal = torch.where(free[:, None, None], diagonal, eye)
    between = block * (free[i] & free[j])[:, None, None]
    each = torch.arange(len(free))
    h = r.new_zeros(len(free) * n, 3, 3).index_add(0, i * n + j % n, -between)
    h = h.index_add(0, each * n + each % n, diagonal)
    return h.view(n_structures, n, n, 3, 3).transpose(2, 3).reshape(n_structures, 3 * n, 3 * n)


def newton(history: History, hessian: Tensor) -> Tensor:
    """The L-BFGS step from an initial Hessian (B, 3n, 3n): (B, 3n) Å."""
    factor = torch.linalg.cholesky(hessian)
    return two_loops(history, lambda q: torch.cholesky_solve(q[..., None], factor)[..., 0])


def pair_direction(structures: Structures, history: History) -> Tensor:
    """The same from :func:`pair_hessian`."""
    return newton(history, pair_hessian(structures, history.positions))


def relative_distances(structures: Structures, r: Tensor) -> Tensor:
    """Distances over the sum of the covalent radii, (n_pairs,)."""
    radii = torch.from_numpy(covalent_radii)[structures.numbers.flatten()]
    return r / (radii[structures.i] + radii[structures.j])


def envelope(r: Tensor) -> Tensor:
    """From 1 at no distance to 0 at REACH, with slope and curvature."""
    return (1 - (r / REACH) ** 2).clamp(min=0) ** 3
