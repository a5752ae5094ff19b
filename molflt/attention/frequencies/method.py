"""The interface of all numerical methods for the far field."""

from __future__ import annotations

from torch import Tensor, nn

from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianRPE


class FrequencyMethod(nn.Module):
    """Turns a geometry into the basis functions of f̂ on all pairs.

    Attributes:
        interchangeable: the method computes f itself to its tolerance, so that weights trained with one such
            method may be used with another. An estimator is part of the model and is not.
    """

    interchangeable: bool = True

    def n_weights(self, rpe: GaussianRPE) -> int:
        """Number of basis functions, that is, of weights per layer and head."""
        return rpe.n_basis

    def pair_basis(self, geometry: Geometry, rpe: GaussianRPE) -> Tensor:
        """(n_structures, n_max, n_max, n_weights), zero where a pair does not exist."""
        raise NotImplementedError
