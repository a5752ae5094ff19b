"""SORF: structured orthogonal random features (Yu et al. 2016; Spectraformer Eq. 22)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.weight_matrices.hadamard import hadamard, power_of_two, signs


def structured_orthogonal(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): blocks of √p H D₁ H D₂ H D₃ with random signs D and p the next power of two.

    Where ``dim`` is no power of two, inputs count as padded with zeros, which is to drop columns. Every full row
    has length √p exactly, so the matrix is unbiased only as ``dim`` grows.
    """
    p = power_of_two(dim)
    h = hadamard(p)
    blocks = []
    for _ in range(math.ceil(n_features / p)):
        block = math.sqrt(p) * torch.eye(p, dtype=torch.float64)
        for diagonal in signs((3, p), generator):
            block = (block @ h) * diagonal
        blocks.append(block[:, :dim])
    return torch.cat(blocks)[:n_features]
