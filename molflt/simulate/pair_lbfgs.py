"""Relaxation by L-BFGS with a pair Hessian, as an optimiser of ASE.

It needs a third to a half fewer force calls than ASE's own.

The initial Hessian is made from distances alone, springs along and across every pair of near atoms: the sum over
pairs of k r̂r̂ᵀ + l (1 − r̂r̂ᵀ) and a floor, in the spirit of Lindh's model Hessian (Chem. Phys. Lett. 241, 423, 1995),
with k = 5 exp(−6(x − 1)) eV/Å², x being the distance over the sum of the covalent radii, and l = k/e³. It is positive
definite, rotates with the structure, and does not depend on the order of atoms.

Everything is batched over structures and differentiable. scripts/benchmarks/relaxation.py counts the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from ase import Atoms
from ase.constraints import FixAtoms
from ase.data import covalent_radii
from ase.optimize import LBFGS
from torch import Tensor

from molflt.data.neighbours import neighbour_list
from molflt.errors import InputError

REACH = 7.0
"""Å, cutoff of the pairs."""
STIFFNESS = 5.0
"""eV/Å², of neighbours in a metal. L-BFGS rescales the whole by the curvature that it finds."""
DECAY, ACROSS, FLOOR = 6.0, -3.0, -3.0
"""Decrease of log k with x; log l − log k; the logarithm of the floor in units of STIFFNESS."""
MAX_STEP = 0.2
"""Å, the farthest that an atom moves in a step; the default of ASE."""
FIRST_STEP = 0.1
SMALLEST_STEP = 0.005
MEMORY = 30
ENERGY_NOISE = 1e-4
"""eV by which an accepted energy may lie above the last one: single precision is no better."""
PATIENCE = 10
"""Calculations in a row without a lower energy after which ASE's LBFGS takes over."""


@dataclass
class Structures:
    """B structures of up to n atoms.

    Attributes:
        positions: (B, n, 3) Å.
        numbers: (B, n) atomic numbers, 0 where there is no atom.
        free: (B, n), false where an atom is fixed or not there.
        i, j: (n_pairs,) receivers and senders among the B·n atoms; each pair both ways, images included.
        shifts: (n_pairs, 3) Å, added to the sender's position.
    """

    positions: Tensor
    numbers: Tensor
    free: Tensor
    i: Tensor
    j: Tensor
    shifts: Tensor

    def displacements(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors from receiver to sender, (n_pairs, 3), and their lengths, (n_pairs,), in Å."""
        flat = positions.reshape(-1, 3)
        delta = flat[self.j] + self.shifts - flat[self.i]
        return delta, delta.square().sum(-1).sqrt()


def batch(structures: Sequence[Atoms], reach: float = REACH) -> Structures:
    """Return structures with all pairs up to ``reach`` Å."""
    n = max(len(atoms) for atoms in structures)
    positions = torch.zeros(len(structures), n, 3, dtype=torch.float64)
    numbers = torch.zeros(len(structures), n, dtype=torch.int64)
    pairs, shifts = [], []
    for b, atoms in enumerate(structures):
        positions[b, : len(atoms)] = torch.from_numpy(atoms.positions)
        numbers[b, : len(atoms)] = torch.from_numpy(atoms.numbers)
        edges, offsets = neighbour_list(atoms.positions, atoms.cell.array, atoms.pbc, reach)
        pairs.append(edges + b * n)
        shifts.append(offsets.double() @ torch.from_numpy(atoms.cell.array))
    free = numbers > 0
    for b, atoms in enumerate(structures):
        for constraint in atoms.constraints:
            if isinstance(constraint, FixAtoms):
                free[b, constraint.get_indices()] = False
    i, j = torch.cat(pairs, 1)
    return Structures(positions, numbers, free, i, j, torch.cat(shifts))


@dataclass
class History:
    """State and past steps of B relaxations of n atoms.

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
    """Return the history after the first calculation."""
    return History(positions, energy, forces, torch.full_like(energy, FIRST_STEP))


def learn(history: History, positions: Tensor, energy: Tensor, forces: Tensor) -> History:
    """Return the history after another calculation.

    Curvature is always kept, positions only if the energy has not risen.
    """
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
    """Displacements of free atoms, (B, n, 3) Å, scaled so that none exceeds the radius."""
    p = direction.view_as(history.positions) * structures.free[..., None]
    longest = p.square().sum(-1).clamp(min=1e-20).sqrt().amax(1)
    return p * (history.radius / longest).clamp(max=1.0)[:, None, None]


Solve = Callable[[Tensor], Tensor]
"""H₀⁻¹ of a vector: (B, 3n) → (B, 3n)."""


def two_loops(history: History, solve: Solve) -> Tensor:
    """The L-BFGS step, (B, 3n), from an initial Hessian that is correct up to a factor.

    The factor is yᵀH₀⁻¹y/yᵀs of the last valid step: of the curvatures along it, the stiff ones count most.
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
    """The L-BFGS step from :func:`pair_hessian`: (B, 3n) Å."""
    return newton(history, pair_hessian(structures, history.positions))


def relative_distances(structures: Structures, r: Tensor) -> Tensor:
    """Distances over the sum of the covalent radii, (n_pairs,)."""
    radii = torch.from_numpy(covalent_radii)[structures.numbers.flatten()]
    return r / (radii[structures.i] + radii[structures.j])


def envelope(r: Tensor) -> Tensor:
    """Envelope from 1 at zero to 0 at REACH, where slope and curvature are zero, too."""
    return (1 - (r / REACH) ** 2).clamp(min=0) ** 3


Direction = Callable[[Structures, History], Tensor]
"""Structures and their history → (B, 3n) Å, the next step before it is shortened."""


class PairLBFGS(LBFGS):
    """L-BFGS from a pair Hessian within a trust region, with ASE's LBFGS as a fallback.

        from molflt import MolFLTCalculator, PairLBFGS

        atoms.calc = MolFLTCalculator("runs/first", dtype="float64")
        PairLBFGS(atoms).run(fmax=0.01)

    No atom moves farther than 0.2 Å in a step, and steps to a higher energy are undone, so it cannot diverge as long
    as the forces are derivatives of the energy; otherwise LBFGS takes over after :data:`PATIENCE` calculations. It is
    for atoms, some of which may be fixed (``FixAtoms``), not for cells, bands or other filters. A step costs O(n³),
    as in ASE's BFGS.

    Args:
        atoms: with a calculator of energies and forces.
        direction: another way to make steps, for comparison.
        kwargs: of ASE's LBFGS; ``alpha``, ``memory`` and ``damping`` matter only once it has taken over.

    Raises:
        InputError: ``atoms`` is a filter or a band of images.
    """

    def __init__(self, atoms: Atoms, direction: Direction = pair_direction, **kwargs: Any) -> None:
        if not isinstance(atoms, Atoms):
            raise InputError(
                f"PairLBFGS relaxes atoms in a fixed cell, not a {type(atoms).__name__}; take ASE's BFGS"
            )
        super().__init__(atoms, **kwargs)
        self.direction = direction
        self.history: History | None = None
        self.failures = 0

    def step(self, forces: Any = None) -> None:
        """Move the atoms once."""
        if self.failures < PATIENCE:
            history = self.history = self._learn()
            if self.failures < PATIENCE:
                atoms = self.atoms.copy()
                atoms.set_positions(history.positions[0].numpy(), apply_constraint=False)
                structures = batch([atoms])
                with torch.no_grad():
                    moved = shortened(structures, history, self.direction(structures, history))
                self.atoms.set_positions((history.positions + moved)[0].numpy())
                return
            # LBFGS continues from the lowest structure.
            self.atoms.set_positions(history.positions[0].numpy())
            forces = None
        super().step(forces)

    def _learn(self) -> History:
        """Return the history with the last calculation included."""
        values = self.atoms.positions, [self.atoms.get_potential_energy()], self.atoms.get_forces()
        x, e, f = (torch.tensor(value, dtype=torch.float64) for value in values)
        if self.history is None:
            return begin(x[None], e, f[None])
        found = learn(self.history, x[None], e, f[None])
        self.failures = 0 if bool(found.energy < self.history.energy) else self.failures + 1
        return found
