"""The numerical method of the far field, held while atoms move.

``frequencies=auto`` counts multiply-adds for every structure, and the mesh takes its grid from the size of the cell.
Both are integers that jump as a structure changes, and the energy with them, by up to the model's tolerance ε. A
relaxation, dynamics or a finite difference needs one smooth function: what was chosen at the start is kept
(DESIGN §3, "Smoothness"). Orders of contraction agree to rounding and stay free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from molflt.attention.context import FourierPositions
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.mesh import MeshMethod
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.near import local_neighbourhood
from molflt.model.energy_model import EnergyModel

COARSEST = 1.05
"""How much wider than its tolerance asks for the spacing of a held grid may become before a new one is taken: its
error falls with the seventh power of the spacing, and stays below the stated ε, of which it uses two thirds."""


class HeldMeshMethod(MeshMethod):
    """A particle mesh that keeps its grid from one structure to the next.

    Args:
        tolerance: see :class:`MeshMethod`.
    """

    def __init__(self, tolerance: float) -> None:
        super().__init__(tolerance)
        self._held: dict[float, tuple[int, int, int]] = {}

    def n_grid(self, cell: Tensor, basis: GaussianBasis) -> tuple[int, int, int]:
        """See :class:`MeshMethod`."""
        # Each mesh of a structure begins at another width, which does not change while the model is not trained.
        held = self._held.get(basis.narrowest)
        if held is not None:
            # As many points as a cell needs that is smaller by COARSEST.
            needed = super().n_grid(cell / COARSEST, basis)
            if all(have >= need for have, need in zip(held, needed, strict=True)):
                return held
        self._held[basis.narrowest] = super().n_grid(cell, basis)
        return self._held[basis.narrowest]


class HeldMethod:
    """Keeps the numerical method of one model while the atoms of a structure stay the same ones."""

    def __init__(self) -> None:
        self._atoms: tuple[bytes, bytes] | None = None
        self._method: FrequencyMethod | None = None

    @contextmanager
    def applied(self, model: EnergyModel, batch: Any) -> Iterator[None]:
        """Evaluate ``model`` by the method held, chosen anew when atomic numbers or periodic directions change.

        Args:
            model: left as it was at the end.
            batch: of one structure, with a neighbour list.
        """
        positions = model.positions
        if not isinstance(positions, FourierPositions) or positions.method is None:
            yield
            return
        atoms = (batch.atomic_numbers.cpu().numpy().tobytes(), batch.pbc.cpu().numpy().tobytes())
        if atoms != self._atoms:
            self._method, self._atoms = _choose(model, positions, batch), atoms
        own = positions.method
        positions.method = self._method
        try:
            yield
        finally:
            positions.method = own


def _choose(model: EnergyModel, positions: FourierPositions, batch: Any) -> FrequencyMethod | None:
    with torch.no_grad():
        geometry = model.geometry(batch)
        neighbourhood = local_neighbourhood(geometry, model.radial, model.config.cutoff)
        basis = None if positions.rpe is None else positions.rpe()
        method = positions.contractions(geometry, neighbourhood, basis)[0].method
    return HeldMeshMethod(method.tolerance) if isinstance(method, MeshMethod) else method
