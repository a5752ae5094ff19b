"""Interface of a far field, and the method that computes f itself to a tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from molflt.attention.far.images import covering_needs
from molflt.attention.far.members import TAPER, GaussianBasis, cutoff_factor, spacing_in_widths
from molflt.attention.far.pairs import squared_norm, sum_over_pairs
from molflt.attention.far.ways import MARGIN, FarPlan, Group, Way
from molflt.attention.geometry import Geometry
from molflt.vocabulary import MethodName


class FarField(Protocol):
    """f̂_h(Δ_ij) of a group of structures."""

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """Σ_j f̂_h(Δ_ij) v_jh.

        Args:
            weights: (n_weights, n_heads), the weight of each basis function of f̂.
            values: (n_structures, n_max, n_heads, n_channels), zero where there is no atom.

        Returns:
            The same shape, arbitrary where there is no atom.
        """
        ...

    def matrix(self, weights: Tensor) -> Tensor:
        """(n_heads, n_structures, n_max, n_max) f̂_h on all pairs, arbitrary for empty places."""
        ...


class FarMethod(nn.Module):
    """Module that turns positions into f̂."""

    def n_weights(self, n_basis: int) -> int:
        """Return the size of the basis of f̂, given that of f.

        Each layer and head has as many weights.
        """
        return n_basis

    def plan(self, basis: GaussianBasis, dense: bool) -> FarPlan:
        """Return the plan for batches; ``dense``: whether layers need f̂ as a matrix."""
        raise NotImplementedError

    def fields(self, geometry: Geometry, basis: GaussianBasis) -> list[FarField]:
        """Return f̂ of every group of structures of a batch."""
        raise NotImplementedError

    def radial_waves(self, basis: GaussianBasis) -> tuple[Tensor, Tensor] | None:
        """Return the terms of an estimator f̂ = Σ_k a_k sinc(2π|ξ_k||Δ|), directions averaged.

        Returns:
            |ξ_k| (r,) 1/Å and a_k for each weight (r, n_weights); None where f itself is computed.
        """
        return None


WAYS: dict[MethodName, Way | None] = {"auto": None, "exact": "pairs", "lattice": "waves", "mesh": "mesh"}


class ExactMethod(FarMethod):
    """Method that computes f itself, in the way chosen for each structure or a forced one.

    Args:
        frequencies: the name of the way.
        tolerance: ε of waves and mesh, relative to Σ_t |w_t n_t|.
    """

    def __init__(self, frequencies: MethodName, tolerance: float) -> None:
        super().__init__()
        self.way = WAYS[frequencies]
        self.tolerance = tolerance

    def plan(self, basis: GaussianBasis, dense: bool) -> FarPlan:
        """See :class:`FarMethod`."""
        each = basis.equal_widths(), basis.cutoffs(self.tolerance), basis.widths
        needs = torch.stack([numbers.detach().double() for numbers in each], dim=1).tolist()
        clear = cutoff_factor(self.tolerance / 10)
        members = tuple((equal, TAPER * end, clear * width) for equal, end, width in needs)
        finest, longest, padding = covering_needs(members)
        return FarPlan(
            self.way,
            0.0 if self.way == "pairs" else MARGIN * longest,
            MARGIN * basis.reach,
            MARGIN * padding,
            dense,
            spacing_in_widths(self.tolerance) * finest,
            members,
        )

    def fields(self, geometry: Geometry, basis: GaussianBasis) -> list[FarField]:
        """See :class:`FarMethod`."""
        far, plan, dtype = geometry.layout.far, geometry.layout.plan.far, geometry.dtype
        assert far is not None
        assert plan is not None
        groups = of_groups(geometry)
        waves: Iterator[FarField] = iter(())
        if over_waves := [one for one in groups if one[0].way == "waves"]:
            from molflt.attention.far.waves import on_waves

            waves = iter(on_waves(over_waves, basis, self.tolerance, plan.longest, plan.padding))
        found: list[FarField] = []
        for group, positions, cell in groups:
            if group.way == "waves":
                found.append(next(waves))
            elif group.way == "mesh":
                from molflt.attention.far.mesh import on_mesh

                found.append(on_mesh(group.pieces, positions, cell, basis, self.tolerance, dtype))
            else:
                found.append(
                    sum_over_pairs(
                        group, positions, cell, lambda delta: basis.on_pairs(squared_norm(delta, dtype)), len(basis)
                    )
                )
        return found


def of_groups(geometry: Geometry) -> list[tuple[Group, Tensor, Tensor]]:
    """Return the groups of a batch with their positions and cells.

    Positions are (n_structures, n_max, 3) and cells (n_structures, 3, 3), both in Å, float64.
    """
    far = geometry.layout.far
    assert far is not None
    found = []
    for group, positions in zip(far.groups, far.pad(geometry.positions), strict=True):
        cell = geometry.cell if len(far.groups) == 1 else geometry.cell.index_select(0, group.index)
        found.append((group, positions, cell))
    return found
