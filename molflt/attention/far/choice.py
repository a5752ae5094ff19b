"""The numerical method and the contraction order of each structure, chosen by counting multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from molflt.attention.config import OrderKind
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.mesh import MeshMethod
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.errors import InputError

MESH_FROM = 200
"""Up to so many atoms the mesh is not considered, so that small structures stay invariant to rounding, not to ε."""


class AutomaticMethod(FrequencyMethod):
    """``exact``, ``lattice`` or ``mesh``, whichever takes the fewest multiply-adds for the structure at hand.

    ``lattice`` is offered only with two or three periodic axes: there its artificial cell vectors turn with the
    structure.

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


EDGE_COST = 11.0
"""How many times dearer a multiply-add is along a neighbour list, where it gathers, than in a matrix product."""

PAIR_COST = 100.0
"""What the exponential, the mask and the sum of one pair cost per head, in multiply-adds."""


@dataclass(frozen=True)
class LayerSizes:
    """What the layers will do with f̂.

    Attributes:
        n_applications: number of layers times number of recycles.
        n_heads: number of heads.
        dim: width of the near values, all heads together.
        far_dim: width of the values that the far field carries, all heads together.
        rank: rank of the content factor, 1 or m.
    """

    n_applications: int
    n_heads: int
    dim: int
    far_dim: int
    rank: int


@dataclass(frozen=True)
class Contraction:
    """How one structure is contracted.

    Attributes:
        method: None without a far field.
        order: ``quadratic`` is (Q'K'ᵀ ∘ M) V on padded pairs, ``linear`` is Q'(K'ᵀV) and a neighbour list.
        multiply_adds: how many it takes.
    """

    method: FrequencyMethod | None
    order: Literal["quadratic", "linear"]
    multiply_adds: float

    def __str__(self) -> str:
        return f"{self.method.name if self.method is not None else 'none'}, {self.order}"


def choose_contraction(
    method: FrequencyMethod | None,
    order: OrderKind,
    sizes: LayerSizes,
    geometry: Geometry,
    b: int,
    n_edges: int,
    basis: GaussianBasis | None,
) -> Contraction:
    """The cheapest way to contract structure ``b``.

    Nothing else in the batch enters the choice: batch-mates must not change a result.

    Raises:
        InputError: ``order`` is forced to linear and no candidate has an operator for this structure.
    """
    n, repeats = geometry.sizes[b], sizes.n_applications
    near_on_pairs = repeats * n * n * (2.0 * sizes.dim + PAIR_COST * sizes.n_heads)
    near_on_edges = repeats * EDGE_COST * (n_edges + n) * 2.0 * sizes.dim
    options = []
    if method is None or basis is None:
        options = [Contraction(None, "quadratic", near_on_pairs), Contraction(None, "linear", near_on_edges)]
    else:
        # The cost of mixing basis functions into heads and of the content factor.
        apply = repeats * n * n * sizes.n_heads * (method.n_weights(len(basis)) + sizes.rank)
        for candidate in method.candidates(geometry, b):
            if order != "linear":
                quadratic = candidate.pair_cost(geometry, b, basis) + apply + near_on_pairs
                options.append(Contraction(candidate, "quadratic", quadratic))
            if order != "quadratic":
                channels = sizes.far_dim * sizes.rank
                linear = candidate.operator_cost(geometry, b, basis, channels, repeats) + near_on_edges
                options.append(Contraction(candidate, "linear", linear))
    allowed = [o for o in options if math.isfinite(o.multiply_adds) and order in ("auto", o.order)]
    if not allowed:
        kind = "periodic" if geometry.is_periodic(b) else "isolated"
        raise InputError(
            f"model.attention.order=linear, but frequencies={method.name if method else None} has no linear form "
            f"for a {kind} structure of {n} atoms; use order=auto, or frequencies=mesh"
        )
    return min(allowed, key=lambda option: option.multiply_adds)
