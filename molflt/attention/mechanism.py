"""The interface of all attention mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from molflt.attention.far.field import FarField, FarMethod
from molflt.attention.far.members import GaussianRPE
from molflt.attention.geometry import Geometry
from molflt.attention.layout import Plan
from molflt.attention.moments import NeighbourMoments
from molflt.attention.near import Neighbourhood

COMPONENTS = 9
"""Components of a vector, three, and a tensor, six: its diagonal, then √2 times xz, yx, zy (``second_power``)."""


ContextT = TypeVar("ContextT")
"""Output of a mechanism's shared part for a batch, which all layers receive."""
PreparedT = TypeVar("PreparedT")


class SharedPositions(nn.Module):
    """Shared part of a mechanism: computed once per batch, reused in every layer and recycle.

    Attributes:
        rpe: the RPE function of the far field; None where there is none.
        method: that evaluates it.
        wide: whether layers use the whole neighbour list, and not only the part within the local cutoff.
        n_weights: of the far field, per layer and head; 0 without one.
    """

    wide: bool = False
    n_weights: int = 0

    def __init__(self, rpe: GaussianRPE | None = None, method: FarMethod | None = None) -> None:
        super().__init__()
        self.rpe = rpe
        self.method = method

    def plan(self, cutoff: float) -> Plan:
        """Return the plan of layouts at the present widths; ``cutoff``: of the near part, Å."""
        return Plan(cutoff, self.wide)

    def forward(self, geometry: Geometry, neighbourhood: Neighbourhood) -> Any:
        """Return the context that every layer receives; by default, the neighbours within the local cutoff."""
        return neighbourhood


@dataclass
class FourierContext:
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
        super().__init__(rpe, method)
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


class AttentionLayer(nn.Module, Generic[ContextT, PreparedT]):
    """One layer of attention over the atoms of each structure.

    Attributes:
        vector_channels: C, vectors and tensors of every atom (``vectors.py``), or matrices (``matrices.py``); 0
            unless a mechanism has them.
        feed_forward: whether a feed-forward block follows.
    """

    vector_channels: int = 0
    feed_forward: bool = True

    def prepare(self, geometry: Geometry, context: ContextT) -> PreparedT:
        """Prepare all that depends on positions alone, once for a batch.

        Args:
            geometry: of the batch.
            context: from the mechanism's shared part.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, geometry: Geometry, prepared: PreparedT) -> Tensor | tuple[Tensor, Tensor]:
        """(n_atoms, dim) → (n_atoms, dim); ``prepared`` comes from :meth:`prepare`.

        A layer with vectors takes them as a fourth argument, (n_atoms, 9, C), and returns both the update to be added
        to ``x`` and its vectors.
        """
        raise NotImplementedError


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(n_atoms, dim) → (n_atoms, n_heads, dim / n_heads)."""
    return x.view(x.shape[0], n_heads, -1)


def merge_heads(x: Tensor) -> Tensor:
    """(n_structures, n_heads, n_max, head_dim) → (n_structures, n_max, dim)."""
    return x.transpose(1, 2).flatten(2)


def heads_first(padded: Tensor) -> Tensor:
    """Exchange heads and places, (n_structures, n_max, n_heads, head_dim) and back."""
    return padded.transpose(1, 2)
