"""The cheaper of the interchangeable methods, chosen for each structure by counting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.frequencies.exact import ExactMethod
from molflt.attention.frequencies.lattice import LatticeMethod
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianBasis


class AutomaticMethod(FrequencyMethod):
    """``exact`` or ``lattice``, whichever takes fewer multiply-adds for the structure at hand.

    The choice is made per structure, never per batch: what else is in a batch must not change a result.

    Args:
        tolerance: ε of ``lattice``.
    """

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.exact = ExactMethod()
        self.lattice = LatticeMethod(tolerance)

    def choice(self, geometry: Geometry, b: int, basis: GaussianBasis) -> ExactMethod | LatticeMethod:
        """The method for structure ``b``."""
        if not geometry.is_periodic(b):
            return self.exact
        cheaper = self.lattice.cost(geometry, b, basis) < self.exact.cost(geometry, b, basis)
        return self.lattice if cheaper else self.exact

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`."""
        chosen = {b: self.choice(geometry, b, basis) for b in structures}
        order: list[int] = []
        found = []
        for method in (self.exact, self.lattice):
            mine = [b for b in structures if chosen[b] is method]
            if mine:
                order += mine
                found.append(method.blocks(geometry, mine, basis))
        position = {b: k for k, b in enumerate(order)}
        return torch.cat(found)[[position[b] for b in structures]] if len(found) > 1 else found[0]
