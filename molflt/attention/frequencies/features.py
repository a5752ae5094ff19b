"""Explicit position features: f̂ as a sum of products, contracted in either order (DESIGN §3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class PositionFeatures:
    """f̂_h(Δ_ij) = Σ_k φ_ik c_kh φ_jk of one structure, with c = coefficients · weights. A FarOperator.

    Attributes:
        features: φ, (n, n_features).
        coefficients: (n_features, n_weights), with their sign: they act on one side only.
    """

    features: Tensor
    coefficients: Tensor

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """Q'(K'ᵀV): (n, n_heads, n_channels) → the same, O(n · n_features)."""
        n, n_heads, n_channels = values.shape
        summed = (self.features.transpose(0, 1) @ values.reshape(n, -1)).view(-1, n_heads, n_channels)
        scaled = summed * (self.coefficients @ weights)[..., None]
        return (self.features @ scaled.flatten(1)).view(n, n_heads, n_channels)

    def pairs(self) -> Tensor:
        """Q'K'ᵀ for each weight: (n, n, n_weights), O(n²)."""
        return (self.features[:, None, :] * self.features[None, :, :]) @ self.coefficients
