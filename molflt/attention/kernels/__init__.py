"""Feature maps of kernelised attention, κ(q, k) = φ_Q(q)·φ_K(k): the interface, and attention normalised by them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

FLOOR = 0.01
"""Least normaliser of features of either sign, as a share of its bound Σ_j |φ_Q||φ_K|."""


@dataclass
class Features:
    """φ = exp(exponent) · factor, kept apart so that a sum over keys can shift exponents first.

    Attributes:
        exponent: (batch, heads, n, m), or (batch, heads, n, 1) where all features of a token have the same.
        factor: (batch, heads, n, m) of moderate size and of either sign; None stands for one.
    """

    exponent: Tensor
    factor: Tensor | None = None

    def values(self, shift: Tensor | float = 0.0) -> Tensor:
        """exp(exponent − shift) · factor, (batch, heads, n, m)."""
        scale = torch.exp(self.exponent - shift)
        return scale if self.factor is None else scale * self.factor


class Kernel(nn.Module):
    """A map of queries and keys to features whose scalar products are κ(q, k).

    Attributes:
        n_features: number of features.
        positive: whether no feature is ever negative for any input.
    """

    n_features: int
    positive: bool = True

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """Return the features of the queries and of the keys.

        Quantities derived from many tokens (an average, a landmark) are taken from one structure and head, never
        from the batch: a prediction must not depend on batch-mates.

        Args:
            query: (batch, heads, n, c), scaled so that the softmax kernel is exp(q·k).
            key: as ``query``.
            mask: (batch, 1, n, 1) bool, which tokens exist; None for all.
        """
        raise NotImplementedError


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the tokens that exist: (batch, heads, n, c) → (batch, heads, 1, c)."""
    if mask is None:
        return x.mean(dim=-2, keepdim=True)
    return x.masked_fill(~mask, 0.0).sum(dim=-2, keepdim=True) / mask.sum(dim=-2, keepdim=True).clamp(min=1)


def stable_features(query: Features, key: Features, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """φ_Q and φ_K with the largest exponents removed, and zeros in φ_K for missing keys.

    The largest exponent of a feature over all keys of a structure and head moves from the keys to the queries, which
    leaves every product unchanged; a maximum per key would not. Then every query loses its own maximum, which cancels
    against its normaliser. In this way features whose sizes differ by hundreds of orders of magnitude (A|ω|² of
    optimised ones) keep the few that a query needs. Padding is masked in φ_K and not only in the values, so that it
    reaches neither the numerator nor the normaliser.
    """
    exponent = key.exponent if mask is None else key.exponent.masked_fill(~mask, -torch.inf)
    largest = exponent.detach().amax(dim=-2, keepdim=True).clamp(min=torch.finfo(exponent.dtype).min)
    shifted = query.exponent + largest
    phi_q = Features(shifted, query.factor).values(shifted.detach().amax(dim=-1, keepdim=True))
    return phi_q, Features(exponent, key.factor).values(largest)


def normalised(numerator: Tensor, normaliser: Tensor, bound: Tensor | None = None) -> Tensor:
    """Numerator over normaliser, safe where the normaliser vanishes.

    A query whose features overlap with those of no key gets zero instead of NaN. With features of either sign the
    estimate of a positive sum may be zero or less; it is raised to ``FLOOR`` times its bound.

    Args:
        numerator: (..., c).
        normaliser: (..., 1).
        bound: (..., 1), the sum of the absolute values of the normaliser's terms; None where all are positive.
    """
    if bound is not None:
        normaliser = torch.maximum(normaliser, FLOOR * bound)
    # The root of the smallest number, because the backward pass divides by the square.
    met = normaliser > math.sqrt(torch.finfo(normaliser.dtype).tiny)
    return torch.where(met, numerator / torch.where(met, normaliser, 1.0), 0.0)


def kernelised_attention(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """φ_Q (φ_Kᵀ V) / φ_Q (φ_Kᵀ 1), linear in the number of tokens.

    See FLT Eq. 2 and Katharopoulos et al. 2020.

    Args:
        kernel: the feature map.
        query: (batch, heads, n, c).
        key: as ``query``.
        value: (batch, heads, n, head_dim).
        mask: (batch, 1, n, 1) bool, which tokens exist; None for all.
    """
    query_features, key_features = kernel(query, key, mask)
    phi_q, phi_k = stable_features(query_features, key_features, mask)
    numerator = phi_q @ (phi_k.transpose(-1, -2) @ value)
    normaliser = phi_q @ phi_k.sum(dim=-2)[..., None]
    bound = None if kernel.positive else phi_q.abs() @ phi_k.abs().sum(dim=-2)[..., None]
    return normalised(numerator, normaliser, bound)
