"""Positive random features of the softmax kernel (FAVOR+; Performer, arXiv 2009.14794, Lemma 1 and §2.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def orthogonal_gaussian(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): rows are N(0, I), orthogonal within each block of ``dim`` (Performer §2.4).

    Directions come from the QR decomposition of a Gaussian matrix, with the signs that make it Haar-distributed;
    lengths from independent Gaussian vectors.
    """
    blocks = []
    for _ in range(math.ceil(n_features / dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        blocks.append((q * torch.sign(r.diagonal())).transpose(0, 1))
    lengths = torch.randn(n_features, dim, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return (torch.cat(blocks)[:n_features] * lengths).to(torch.get_default_dtype())


def positive_features(x: Tensor, omega: Tensor, stabiliser: Tensor | float = 0.0) -> Tensor:
    """φ(x) = exp(ω·x − |x|²/2 − stabiliser)/√m, so that E φ(x)·φ(y) = exp(x·y) without the stabiliser.

    Args:
        x: (..., dim), already scaled so that the wanted kernel is exp(x·y).
        omega: (m, dim).
        stabiliser: what to subtract in the exponent; it must be constant over whatever is summed together.
    """
    return torch.exp(feature_exponent(x, omega) - stabiliser) / math.sqrt(omega.shape[0])


def feature_exponent(x: Tensor, omega: Tensor) -> Tensor:
    """ω·x − |x|²/2: (..., dim) → (..., m)."""
    return x @ omega.transpose(-1, -2) - 0.5 * (x * x).sum(dim=-1, keepdim=True)
