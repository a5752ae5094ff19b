"""SGQ: sparse-grid quadrature (Dao et al. 2017; Spectraformer appendix A.3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.weight_matrices.orthogonal import haar


def sparse_grid(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(m, dim): {0, ±p e_1, …, ±p e_dim}, the points of the third-degree Smolyak rule, all with the same weight.

    The rule is of third degree for every p, with weights 1/2p² and 1 − dim/p² for the centre. Gauss-Hermite's p = √3
    makes the centre's weight negative beyond three dimensions, and with it the features; p² = dim + ½ makes all
    weights equal, as the component weights of Spectraformer are.

    One rule has 2·dim + 1 rows. As many as come nearest to ``n_features`` are stacked, the first along the axes, the
    others turned by random rotations; m is their total.
    """
    p = math.sqrt(dim + 0.5)
    axes = p * torch.eye(dim, dtype=torch.float64)
    rule = torch.cat([torch.zeros(1, dim, dtype=torch.float64), axes, -axes])
    copies = max(1, round(n_features / len(rule)))
    return torch.cat([rule, *(rule @ haar(dim, generator) for _ in range(copies - 1))])
