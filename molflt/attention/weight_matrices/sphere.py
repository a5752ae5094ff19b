"""Rows on a sphere: Sphere-PRF (Performer §2.4, regularised softmax kernel; arXiv 2106.12566 §4.5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sphere(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): independent and uniform on the sphere of radius √dim.

    With positive features E κ(q, k) = exp(−(|q|² + |k|²)/2) Γ(c/2) (2/√c|z|)^{c/2−1} I_{c/2−1}(√c|z|), z = q + k,
    c = dim: the regularised softmax kernel, below exp(q·k) and near it for large c.
    """
    rows = torch.randn(n_features, dim, generator=generator, dtype=torch.float64)
    return math.sqrt(dim) * rows / rows.norm(dim=1, keepdim=True)
