"""The numerical method and the contraction order of each structure, chosen by the seconds that they should take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from molflt.attention.config import OrderKind
from molflt.attention.far.costs import LayerSizes, Work
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.lattice import LatticeMethod
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.mesh import MeshMethod, too_large
from molflt.attention.far.method import STRIP, FrequencyMethod, strip_share
from molflt.attention.geometry import Geometry
from molflt.errors import InputError

MESH_FROM = 200
"""Up to so many atoms the mesh is not considered, so that small structures stay invariant to rounding, not to ε."""


Order = Literal["quadratic", "mixed", "linear"]
ORDERS: tuple[Order, ...] = ("quadratic", "mixed", "linear")


class AutomaticMethod(FrequencyMethod):
    """``exact``, ``lattice`` or ``mesh``, whichever should take the least time for the structure at hand.

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


@dataclass(frozen=True)
class Contraction:
    """How one structure is contracted.

    Attributes:
        method: None without a far field.
        order: ``quadratic`` is (Q'K'ᵀ ∘ M) V on padded pairs, ``linear`` is Q'(K'ᵀV) and a neighbour list, and
            ``mixed`` a neighbour list and f̂ on pairs.
        seconds: what it should take, without what is the same for all.
    """

    method: FrequencyMethod | None
    order: Order
    seconds: float

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
    rates: Work,
) -> Contraction:
    """The fastest way to contract structure ``b``.

    Nothing else in the batch enters the choice, nor does the load of the machine: batch-mates and neighbours must not
    change a result.

    Args:
        method: None without a far field.
        order: the only one to consider, or ``auto``.
        sizes: what the layers will do.
        geometry: the batch.
        b: which structure.
        n_edges: of the structure's neighbour list.
        basis: the members of f; None without a far field.
        rates: seconds per unit of work.

    Raises:
        InputError: ``order`` is forced to linear and no candidate has an operator for this structure.
    """
    options = []
    for candidate in (None,) if method is None else method.candidates(geometry, b):
        for of_order in ORDERS:
            if order not in ("auto", of_order):
                continue
            work = work_of(candidate, of_order, sizes, geometry, b, n_edges, basis)
            if work is not None:
                options.append(Contraction(candidate, of_order, work.seconds(rates)))
    if not options and isinstance(method, MeshMethod):
        raise too_large(geometry, b)
    if not options:
        kind = "periodic" if geometry.is_periodic(b) else "isolated"
        raise InputError(
            f"model.attention.order=linear, but frequencies={method.name if method else None} has no linear form "
            f"for a {kind} structure of {geometry.sizes[b]} atoms; use order=auto, or frequencies=mesh"
        )
    return min(options, key=lambda option: option.seconds)


def work_of(
    method: FrequencyMethod | None,
    order: Order,
    sizes: LayerSizes,
    geometry: Geometry,
    b: int,
    n_edges: int,
    basis: GaussianBasis | None,
) -> Work | None:
    """What one way to contract structure ``b`` takes, see :func:`choose_contraction`; None where there is none."""
    n, repeats = geometry.sizes[b], sizes.n_applications
    on_edges = Work(
        edge_applications=repeats,
        edge_products=2 * repeats * (n_edges + n) * sizes.dim,
        edge_heads=repeats * (n_edges + n) * sizes.n_heads,
    )
    if order == "linear":
        if method is None or basis is None:
            return on_edges
        far = method.operator_work(geometry, b, basis, sizes)
        return None if far is None else on_edges + far
    if order == "mixed":
        if method is None or basis is None:
            return None
        made, held = method.pairs_operator_work(geometry, b, basis), n * n * strip_share(n)
        far = Work(
            feature_applications=repeats * math.ceil(n / STRIP),
            pair_mixed=repeats * held * method.n_weights(len(basis)) * sizes.n_heads,
            pair_products=repeats * n * n * sizes.n_channels,
            pair_spilled=_spilled(held * method.n_weights(len(basis))),
        )
        return None if made is None else made + on_edges + far
    on_pairs = Work(
        pair_layers=sizes.n_layers,
        pair_factors=sizes.n_layers * n * n * sizes.n_heads,
        pair_applications=repeats,
        pair_contents=repeats * n * n * sizes.n_heads,
        pair_products=2 * repeats * n * n * sizes.dim,
        pair_spilled=repeats * _spilled(n * n * sizes.n_heads),
    )
    if method is None or basis is None:
        return on_pairs
    n_weights = method.n_weights(len(basis))
    content = sizes.rank * sizes.n_heads if sizes.rank > 1 else 0
    with_far_field = Work(
        pair_mixed=sizes.n_layers * n * n * n_weights * sizes.n_heads,
        pair_contents=repeats * n * n * sizes.n_heads,
        pair_products=repeats * n * n * (sizes.far_dim + content),
        pair_spilled=sizes.n_layers * _spilled(n * n * n_weights),
    )
    made = method.pair_work(geometry, b, basis)
    return None if made is None else on_pairs + made + with_far_field


def _spilled(n_values: float) -> float:
    return max(0.0, n_values - _KEPT)


_KEPT = 1 << 23
"""Values up to which memory is used again. Larger blocks, beyond 32 MiB in float32, come from the system page by page
and do not stay in a processor's cache either."""
