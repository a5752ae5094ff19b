"""The interface of all numerical methods for the far field, and f̂ as a sum of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from molflt.attention.far.costs import LayerSizes, Work
from molflt.attention.far.members import GaussianBasis
from molflt.attention.geometry import Geometry


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
    """Turns a geometry into f̂: its basis functions on all pairs or, where it can, an operator without pairs.

    Attributes:
        name: the name that reports and ``frequencies=`` use.
    """

    name: str

    def n_weights(self, n_basis: int) -> int:
        """How many basis functions f̂ has for T Gaussians, that is, how many weights each layer and head has."""
        return n_basis

    def candidates(self, geometry: Geometry, b: int) -> Sequence[FrequencyMethod]:
        """The methods among which to choose for structure ``b``."""
        return (self,)

    def pair_basis(self, geometry: Geometry, basis: GaussianBasis) -> Tensor:
        """(n_structures, n_max, n_max, n_weights), zero where a pair does not exist."""
        return self.blocks(geometry, range(geometry.n_structures), basis)

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """The same for some structures of the batch: (len(structures), n_max, n_max, n_weights)."""
        raise NotImplementedError

    def radial_waves(self, basis: GaussianBasis) -> tuple[Tensor, Tensor] | None:
        """The terms of an estimator f̂ = Σ_k a_k sinc(2π|ξ_k||Δ|), with directions averaged.

        Returns:
            |ξ_k| (r,) 1/Å and a_k for each weight (r, n_weights); None where f itself is computed.
        """
        return None

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work | None:
        """What the block of structure ``b`` takes; None where it is too large."""
        raise NotImplementedError

    def pairs_operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> PairsOperator:
        """f̂ of structure ``b`` on half of its pairs."""
        alone = geometry.of_structure(b)
        whole, n = self.blocks(alone, [0], basis)[0].movedim(-1, 0), alone.n_atoms
        return PairsOperator([whole[:, a : a + STRIP, a:].contiguous() for a in range(0, n, STRIP)])

    def pairs_operator_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work | None:
        """What it takes to make that."""
        return self.pair_work(geometry, b, basis)

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> FarOperator | None:
        """f̂ of structure ``b`` without pairs; None where the method only works on pairs."""
        return None

    def operator_work(self, geometry: Geometry, b: int, basis: GaussianBasis, sizes: LayerSizes) -> Work | None:
        """What it takes to make the operator of structure ``b`` and to apply it in all layers; None without one."""
        return None


def features_work(n: int, n_features: float, n_weights: int, sizes: LayerSizes) -> Work:
    """What it takes to make and apply the :class:`PositionFeatures` of a structure of ``n`` atoms."""
    repeats = sizes.n_applications
    return Work(
        wave_phases=n * n_features,
        feature_applications=repeats,
        feature_products=2 * repeats * n * n_features * sizes.n_channels,
        feature_weights=repeats * n_features * n_weights * sizes.n_heads,
    )


@dataclass
class PositionFeatures:
    """f̂_h(Δ_ij) = Σ_k φ_ik c_kh φ_jk of one structure, with c = coefficients · weights; a :class:`FarOperator`.

    Attributes:
        features: φ, (n, n_features).
        coefficients: (n_features, n_weights) with their sign, because they act on one side only.
    """

    features: Tensor
    coefficients: Tensor

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """Q'(K'ᵀV): (n, n_heads, n_channels) → the same, O(n · n_features)."""
        n, n_heads, n_channels = values.shape
        summed = (self.features.transpose(0, 1) @ values.reshape(n, -1)).view(-1, n_heads, n_channels)
        scaled = summed * (self.coefficients @ weights)[..., None]
        return (self.features @ scaled.flatten(1)).view(n, n_heads, n_channels)


@dataclass
class PairsOperator:
    """f̂ of one structure on its pairs, where they are few enough; a :class:`FarOperator`.

    As f̂_ij = f̂_ji, half of the pairs will do. They are held in strips of rows, each from its diagonal on, which are
    small enough to stay in a processor's cache between the steps of their use.

    Attributes:
        strips: (n_weights, n_rows, n − first) basis functions of f̂, ``first`` being the rows of the strips before.
    """

    strips: list[Tensor]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """Σ_j f̂_h(Δ_ij) v_jh, O(n²)."""
        v, mixing = values.transpose(0, 1), weights.transpose(0, 1)
        out, first = torch.zeros_like(v), 0
        for strip in self.strips:
            _, n_rows, width = strip.shape
            end = first + n_rows
            far = (mixing @ strip.flatten(1)).view(-1, n_rows, width)
            out[:, first:end] += far @ v[:, first:]
            if width > n_rows:
                out[:, end:] += far[:, :, n_rows:].transpose(1, 2) @ v[:, first:end]
            first = end
        return out.transpose(0, 1)


STRIP = 128
"""Rows of a strip of pairs."""


def strip_share(n: int) -> float:
    """What part of n² pairs is held in strips."""
    starts = range(0, n, STRIP)
    return sum(min(STRIP, n - first) * (n - first) for first in starts) / max(1, n * n)
