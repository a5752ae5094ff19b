"""QMC: quasi-Monte Carlo features (Avron et al. 2016; Spectraformer Eq. 28)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


def quasi_monte_carlo(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): Φ⁻¹ of scrambled Sobol points, one point of [0, 1]^dim per row.

    Scrambling makes every point uniform by itself, so the estimate stays unbiased.
    """
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    points = SobolEngine(dim, scramble=True, seed=seed).draw(n_features, dtype=torch.float64)
    # Sobol points lie on a grid of step 2^-30 that contains zero.
    return torch.special.ndtri(points.clamp(2.0**-31, 1 - 2.0**-31))
