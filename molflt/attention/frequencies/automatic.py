"""The cheaper of the interchangeable methods, chosen for each structure by counting."""

from __future__ import annotations

from torch import Tensor

from molflt.attention.frequencies.exact import ExactMethod
from molflt.attention.frequencies.images import pairs_from_structures
from molflt.attention.frequencies.lattice import LatticeMethod
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianRPE


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

    def choice(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> ExactMethod | LatticeMethod:
        """The method for structure ``b``."""
        if not geometry.is_periodic(b):
            return self.exact
        cheaper = self.lattice.cost(geometry, b, rpe) < self.exact.cost(geometry, b, rpe)
        return self.lattice if cheaper else self.exact

    def pair_basis(self, geometry: Geometry, rpe: GaussianRPE) -> Tensor:
        """See :class:`FrequencyMethod`."""
        chosen = [self.choice(geometry, b, rpe) for b in range(geometry.n_structures)]
        if all(method is self.exact for method in chosen):
            return self.exact.pair_basis(geometry, rpe)
        blocks = [method.block(geometry, b, rpe) for b, method in enumerate(chosen)]
        return pairs_from_structures(geometry, blocks)
