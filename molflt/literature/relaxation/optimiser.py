"""Relaxation by L-BFGS with a pair Hessian, as an optimiser of ASE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ase import Atoms
from ase.optimize import LBFGS
from torch import Tensor

from molflt.literature.relaxation.hessian import pair_direction
from molflt.literature.relaxation.history import History, begin, learn, shortened
from molflt.literature.relaxation.structures import Structures, batch

PATIENCE = 10
"""Calculations in a row without a lower energy after which it becomes ASE's LBFGS."""
Direction = Callable[[Structures, History], Tensor]
"""Structures and their history → (B, 3n) Å, the next step before it is shortened."""


class PairLBFGS(LBFGS):
    """L-BFGS from a pair Hessian within a trust region, and ASE's LBFGS should that not descend.

    No atom moves farther than 0.2 Å in a step, and a structure of higher energy is stepped back from, so it cannot
    diverge as long as the energy belongs to the forces; where it does not, LBFGS takes over after :data:`PATIENCE`
    calculations. For atoms, of which some may be fixed (``FixAtoms``): not for cells, bands or other filters. A step
    costs O(n³), as in ASE's BFGS.

    Args:
        atoms: with a calculator of energies and forces.
        direction: another way to make steps, for comparison.
        kwargs: of ASE's LBFGS; ``alpha``, ``memory`` and ``damping`` matter only once it has taken over.
    """

    def __init__(self, atoms: Atoms, direction: Direction = pair_direction, **kwargs: Any) -> None:
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
            # LBFGS goes on from the lowest structure.
            self.atoms.set_positions(history.positions[0].numpy())
            forces = None
        super().step(forces)

    def _learn(self) -> History:
        """What is known once the last calculation is taken in."""
        values = self.atoms.positions, [self.atoms.get_potential_energy()], self.atoms.get_forces()
        x, e, f = (torch.tensor(value, dtype=torch.float64) for value in values)
        if self.history is None:
            return begin(x[None], e, f[None])
        found = learn(self.history, x[None], e, f[None])
        self.failures = 0 if bool(found.energy < self.history.energy) else self.failures + 1
        return found
