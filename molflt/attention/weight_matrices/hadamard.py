"""The Walsh-Hadamard matrix, and what the structured matrices share."""

from __future__ import annotations

import torch
from torch import Tensor


def power_of_two(dim: int) -> int:
    """The least power of two that is not below ``dim``."""
    return 1 << (dim - 1).bit_length()


def hadamard(dim: int) -> Tensor:
    """(dim, dim) float64: the normalised, orthogonal Walsh-Hadamard matrix; ``dim`` a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], dim=1), torch.cat([matrix, -matrix], dim=1)])
    return matrix / dim**0.5


def signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """±1 with equal probability, float64."""
    return 2.0 * torch.randint(2, shape, generator=generator).to(torch.float64) - 1
