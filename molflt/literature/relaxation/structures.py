"""Structures as the learned relaxation sees them: padded to one size, with their pairs, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from ase import Atoms
from ase.constraints import FixAtoms
from torch import Tensor

from molflt.data.neighbours import neighbour_list

REACH = 7.0
"""Å, how far atoms see each other."""


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
        """From receiver to sender, (n_pairs, 3), and their lengths, (n_pairs,), in Å."""
        flat = positions.reshape(-1, 3)
        delta = flat[self.j] + self.shifts - flat[self.i]
        return delta, delta.square().sum(-1).sqrt()


def batch(structures: Sequence[Atoms], reach: float = REACH) -> Structures:
    """Structures with all pairs up to ``reach`` Å."""
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
