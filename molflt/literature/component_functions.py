"""Spectraformer's component functions beside the positive one: what is done with ω·x (Spectraformer, §3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.kernels.kernel import Features, masked_mean


def trigonometric(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """φ(x) = exp(|x|²/2) [cos ω·x, sin ω·x]/√m: E φ(q)·φ(k) = exp(q·k).

    The cosines alone estimate the Gaussian kernel exp(−|q − k|²/2); the factors exp(|x|²/2) make it the softmax
    kernel (Spectraformer Eq. 8). Features are of either sign, and so is their estimate.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: not used; part of the interface of component functions.
    """
    return _waves(query, omega), _waves(key, omega)


def _waves(x: Tensor, omega: Tensor) -> Features:
    phase = x @ omega.transpose(-1, -2)
    waves = torch.cat([phase.cos(), phase.sin()], dim=-1) / math.sqrt(omega.shape[0])
    return Features(0.5 * (x * x).sum(dim=-1, keepdim=True), waves)


def optimised_positive(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """φ(x) = D exp(A|ω|² + B ω·x − |x|²/2)/√m with B = √(1 − 4A), D = (1 − 4A)^{c/4}: E φ(q)·φ(k) = exp(q·k).

    A ≤ 0, the one that minimises the variance at the mean of |q + k|² over all pairs of the structure, computed
    from sums over queries and over keys. With A = 0 they are the positive features. The family's exponent
    −(s + 1)/2·|x|² = −|x|² belongs to the Gaussian kernel; the softmax kernel has exp(|x|²/2) more on either side.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: (batch, 1, n, 1) bool, which tokens exist.
    """
    a = optimal_a(mean_square_of_sums(query, key, mask), query.shape[-1])
    return generalised_features(query, omega, a), generalised_features(key, omega, a)


def mean_square_of_sums(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of |q_i + k_j|² over all pairs of a structure, (batch, heads, 1, 1), in linear time."""
    q, k = masked_mean(query, mask), masked_mean(key, mask)
    squares = masked_mean(query * query + key * key, mask)
    return (squares + 2 * q * k).sum(dim=-1, keepdim=True)


def optimal_a(square: Tensor, c: int) -> Tensor:
    """A = (1 − 1/ρ)/8 ≤ 0 with ρ = [√((2S + c)² + 8cS) − 2S − c]/4S, S = |q + k|² (Spectraformer Eq. 35).

    Written as ρ = 2c/[√((2S + c)² + 8cS) + 2S + c], which does not cancel and is one at S = 0.
    """
    linear = 2 * square + c
    inverse = (torch.sqrt(linear * linear + 8 * c * square) + linear) / (2 * c)
    return (1 - inverse) / 8


def generalised_features(x: Tensor, omega: Tensor, a: Tensor) -> Features:
    """Generalised exponential features (GERF) for the softmax kernel, s = +1.

    Args:
        x: (batch, heads, n, c).
        omega: (m, c).
        a: A, (batch, heads, 1, 1), below 1/4.
    """
    growth = 1 - 4 * a
    exponent = a * (omega * omega).sum(dim=-1) + growth.sqrt() * (x @ omega.transpose(-1, -2))
    log_d = x.shape[-1] / 4 * torch.log(growth)
    return Features(exponent + log_d - 0.5 * (x * x).sum(dim=-1, keepdim=True) - 0.5 * math.log(omega.shape[0]))


def saderf(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """Optimised positive features of Ψq and Ψ⁻¹k, Ψ_ll = (Σ_j k_jl² / Σ_i q_il²)^{1/4}: E φ(q)·φ(k) = exp(q·k).

    The diagonal Ψ leaves q·k as it is and makes queries and keys equally long along every axis, which is where the
    mean of |Ψq|² + |Ψ⁻¹k|² is least.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: (batch, 1, n, 1) bool, which tokens exist.
    """
    # Zero queries and keys on an axis: any Ψ will do, and one has a gradient.
    tiny = torch.finfo(query.dtype).eps
    psi = ((masked_mean(key * key, mask) + tiny) / (masked_mean(query * query, mask) + tiny)) ** 0.25
    return optimised_positive(query * psi, key / psi, omega, mask)
