"""The interface of all numerical methods for the far field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianBasis


class FarOperator(Protocol):
    """The matrix f̂_h(Δ_ij) of one structure, applied to values without forming the pairs."""

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """Σ_j f̂_h(Δ_ij) v_jh.

        Args:
            weights: (n_weights, n_heads), the weight of each basis function of f̂.
            values: (n, n_heads, n_channels) of the structure's n atoms.

        Returns:
            (n, n_heads, n_channels).
        """
        ...


class FrequencyMethod(nn.Module):
    """Turns a geometry into the basis functions of f̂ on all pairs.

    Attributes:
        interchangeable: the method computes f itself to its tolerance, so that weights trained with one such
            method may be used with another. An estimator is part of the model and is not.
    """

    interchangeable: bool = True

    def n_weights(self, n_basis: int) -> int:
        """Number of basis functions of f̂, that is, of weights per layer and head, for T Gaussians."""
        return n_basis

    def pair_basis(self, geometry: Geometry, basis: GaussianBasis) -> Tensor:
        """(n_structures, n_max, n_max, n_weights), zero where a pair does not exist."""
        return self.blocks(geometry, range(geometry.n_structures), basis)

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """The same for some structures of the batch: (len(structures), n_max, n_max, n_weights)."""
        raise NotImplementedError

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> FarOperator | None:
        """f̂ of structure ``b`` without pairs, or None where the method has only pairs to offer."""
        return None
