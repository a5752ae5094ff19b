"""Context shared by the layers: radial features, moments of the neighbours, the far field."""

from __future__ import annotations

from dataclasses import dataclass

from molflt.attention.far.field import FarField, FarMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.geometry import Geometry
from molflt.attention.layout import Plan
from molflt.attention.mechanism import Context, SharedPositions
from molflt.attention.moments import NeighbourMoments
from molflt.attention.near import Neighbourhood


@dataclass
class FourierContext(Context):
    """Positional input that every layer combines with its own weights.

    Attributes:
        neighbourhood: radial features of the near part.
        fields: f̂ of every group of the layout; empty without a far field.
        moments: of the neighbours; None if no layer has them.
    """

    neighbourhood: Neighbourhood
    fields: list[FarField]
    moments: NeighbourMoments | None


class FourierPositions(SharedPositions):
    """RPE function and the method that evaluates it, shared by all layers and heads.

    Args:
        rpe: the RPE function; None without a far field.
        method: that evaluates it.
        moments: whether the layers have moments of the neighbours.
        dense: whether they need the far field as a matrix.
    """

    def __init__(self, rpe: GaussianRPE | None, method: FarMethod | None, moments: bool, dense: bool = False) -> None:
        super().__init__()
        self.rpe = rpe
        self.method = method
        self.moments = moments
        self.dense = dense
        if rpe is not None and method is not None:
            self.n_weights = method.n_weights(rpe.n_basis)

    def plan(self, cutoff: float) -> Plan:
        """See :class:`SharedPositions`."""
        if self.rpe is None or self.method is None:
            return Plan(cutoff)
        return Plan(cutoff, far=self.method.plan(self.rpe(), self.dense))

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> FourierContext:
        """See :class:`SharedPositions`."""
        fields: list[FarField] = []
        far = geometry.layout.far
        if self.rpe is not None and self.method is not None and far is not None:
            fields = self.method.fields(geometry, self.rpe())
        moments = NeighbourMoments(neighbourhood) if self.moments else None
        return FourierContext(neighbourhood, fields, moments)
