"""The interchangeable methods, to choose from for each structure."""

from __future__ import annotations

from collections.abc import Sequence

from molflt.attention.frequencies.exact import ExactMethod
from molflt.attention.frequencies.lattice import LatticeMethod
from molflt.attention.frequencies.mesh import MeshMethod
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.geometry import Geometry

MESH_FROM = 200
"""Atoms below which the mesh is not considered: smaller structures stay invariant to rounding, not to ε."""


class AutomaticMethod(FrequencyMethod):
    """``exact``, ``lattice`` or ``mesh``, whichever takes fewer multiply-adds for the structure at hand.

    ``lattice`` is offered where its artificial cell vectors turn with the structure: two periodic axes or three.

    Args:
        tolerance: ε of ``lattice`` and ``mesh``.
    """

    name = "auto"

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.exact = ExactMethod()
        self.lattice = LatticeMethod(tolerance)
        self.mesh = MeshMethod(tolerance)

    def candidates(self, geometry: Geometry, b: int) -> Sequence[FrequencyMethod]:
        """See :class:`FrequencyMethod`."""
        offered: list[FrequencyMethod] = [self.exact]
        if sum(geometry.pbc[b]) >= 2:
            offered.append(self.lattice)
        if geometry.sizes[b] > MESH_FROM:
            offered.append(self.mesh)
        return offered
