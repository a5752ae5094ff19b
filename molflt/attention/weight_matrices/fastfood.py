"""FastFood with learnable diagonals (Le et al. 2013; Yang et al. 2015; Spectraformer Eq. 17 and appendix A.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.weight_matrices.hadamard import hadamard, power_of_two, signs
from molflt.attention.weight_matrices.weight_matrix import WeightMatrix


class FastFood(WeightMatrix):
    """Blocks of S H G Π H B, with the diagonals S, G and B learned.

    At the start B holds random signs, G Gaussian numbers, Π a permutation, and S the lengths of Gaussian vectors
    divided by that of G, so that every row is N(0, I) and the estimate unbiased, until it learns.

    Args:
        n_features: m.
        dim: c, width of a head; padded with zeros to a power of two.
        generator: of the start.
    """

    def __init__(self, n_features: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = (n_features, dim)
        p = power_of_two(dim)
        blocks = math.ceil(n_features / p)
        gaussian = torch.randn(blocks, p, generator=generator, dtype=torch.float64)
        lengths = torch.randn(blocks, p, p, generator=generator, dtype=torch.float64).norm(dim=2)
        dtype = torch.get_default_dtype()
        self.outer = nn.Parameter((lengths / gaussian.norm(dim=1, keepdim=True)).to(dtype))
        self.inner = nn.Parameter(gaussian.to(dtype))
        self.input = nn.Parameter(signs((blocks, p), generator).to(dtype))
        self.hadamard: Tensor
        self.permutation: Tensor
        self.register_buffer("hadamard", (hadamard(p) * math.sqrt(p)).to(dtype), persistent=False)
        permutations = [torch.randperm(p, generator=generator) for _ in range(blocks)]
        self.register_buffer("permutation", torch.stack(permutations))

    def forward(self) -> Tensor:
        """See :class:`WeightMatrix`."""
        root = math.sqrt(len(self.hadamard))
        # Rows of Π H B: those of H in another order, their columns scaled. H unnormalised holds ±1.
        mixed = self.hadamard[self.permutation] * self.input[:, None, :] / root
        rows = self.outer[:, :, None] * (self.hadamard @ (self.inner[:, :, None] * mixed))
        n_features, dim = self.shape
        return rows.flatten(0, 1)[:n_features, :dim]
