"""Independent Gaussian rows (Rahimi and Recht 2007; Spectraformer Eq. 16)."""

from __future__ import annotations

import torch
from torch import Tensor


def iid(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): N(0, I)."""
    return torch.randn(n_features, dim, generator=generator, dtype=torch.float64)
