"""The quadrature under a fixed budget of nodes and spherical waves: strictly linear and exactly invariant."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.far.costs import LayerSizes, Work
from molflt.attention.far.members import TAPER, GaussianBasis, cutoff_factor
from molflt.attention.far.method import PositionFeatures, features_work
from molflt.attention.far.quadrature import QuadratureMethod
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import taper
from molflt.literature.spherical import spherical_operator


class BudgetQuadratureMethod(QuadratureMethod):
    """The trapezoid rule on the same ``n_nodes`` nodes for every structure, each cut at ``l_max``.

    What is cut off depends on the size of a structure and not on its orientation, so invariance under rotation,
    reflection and translation stays exact. Training adapts to what is left, which makes the budget part of the model.
    Periodic structures have no centroid to expand around: there the same nodes are summed over images on pairs.

    Args:
        tolerance: the ε that would hold with enough nodes; it sets how far they reach.
        n_nodes: r.
        l_max: where the expansion of each node ends.
        sigma_low: Å, the narrowest width the RPE can take, which fixes the nodes.
    """

    def __init__(self, tolerance: float, n_nodes: int, l_max: int, sigma_low: float) -> None:
        super().__init__(tolerance)
        self.n_nodes = n_nodes
        self.l_max = l_max
        self.xi_cut = cutoff_factor(tolerance) / (2 * math.pi * sigma_low)

    def nodes(self, basis: GaussianBasis, diameter: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """See :class:`QuadratureMethod`. Here they are the same for every structure."""
        spacing = TAPER * self.xi_cut / (self.n_nodes + 1)
        xi = spacing * torch.arange(1, self.n_nodes + 1, dtype=torch.float64, device=diameter.device)
        radial = spacing * 4 * math.pi * xi**2 * taper(xi, self.xi_cut, TAPER * self.xi_cut)
        return xi, radial[:, None] * basis.spectra(xi)

    def radial_waves(self, basis: GaussianBasis) -> tuple[Tensor, Tensor]:
        """See :class:`FrequencyMethod`."""
        return self.nodes(basis, basis.widths.new_zeros(()), self.tolerance)

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`. This is the same truncated sum as in the linear order."""
        found = []
        for b in structures:
            operator = self.operator(geometry, b, basis)
            found.append(self._block(geometry, b, basis) if operator is None else operator.pairs())
        return geometry.pad_blocks(found)

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work:
        """See :class:`FrequencyMethod`."""
        if geometry.is_periodic(b):
            return super().pair_work(geometry, b, basis)
        return Work(pair_mixed=geometry.sizes[b] ** 2 * self._n_features() * len(basis))

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> PositionFeatures | None:
        """See :class:`FrequencyMethod`: for isolated structures only."""
        if geometry.is_periodic(b):
            return None
        x = geometry.atoms_of(b)
        xi, weights = self.nodes(basis, x.new_zeros(()), self.tolerance)
        return spherical_operator(x, 2 * math.pi * xi, weights, [self.l_max] * self.n_nodes, geometry.dtype)

    def operator_work(self, geometry: Geometry, b: int, basis: GaussianBasis, sizes: LayerSizes) -> Work | None:
        """See :class:`FrequencyMethod`."""
        if geometry.is_periodic(b):
            return None
        return features_work(geometry.sizes[b], self._n_features(), len(basis), sizes)

    def _n_features(self) -> int:
        return self.n_nodes * (self.l_max + 1) ** 2
