"""TrigRF: trigonometric random features (Rahimi and Recht 2007; Spectraformer Eq. 31, RFA)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.kernels.kernel import Features


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
