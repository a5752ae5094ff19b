"""Spectraformer's weight matrices ω (m, c): rows that are, or stand for, draws of N(0, I)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from molflt.attention.kernels.random_features import WeightMatrix, haar
from molflt.errors import InputError


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


def iid(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): N(0, I)."""
    return torch.randn(n_features, dim, generator=generator, dtype=torch.float64)


def sphere(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): independent and uniform on the sphere of radius √dim.

    With positive features E κ(q, k) = exp(−(|q|² + |k|²)/2) Γ(c/2) (2/√c|z|)^{c/2−1} I_{c/2−1}(√c|z|), z = q + k,
    c = dim: the regularised softmax kernel, below exp(q·k) and near it for large c.
    """
    rows = torch.randn(n_features, dim, generator=generator, dtype=torch.float64)
    return math.sqrt(dim) * rows / rows.norm(dim=1, keepdim=True)


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


def quasi_monte_carlo(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): Φ⁻¹ of scrambled Sobol points, one point of [0, 1]^dim per row.

    Scrambling makes every point uniform by itself, so the estimate stays unbiased.
    """
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    points = SobolEngine(dim, scramble=True, seed=seed).draw(n_features, dtype=torch.float64)
    # Sobol points lie on a grid of step 2^-30 that contains zero.
    return torch.special.ndtri(points.clamp(2.0**-31, 1 - 2.0**-31))


def moment_matching(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): quasi-Monte Carlo rows moved and stretched to mean zero and covariance one exactly.

    Rows ω̃ = Ã⁻¹(ω − μ̃) with ÃÃᵀ the covariance of the rows. Biased, but by less than one draw is off.

    Raises:
        InputError: as many rows as columns or fewer, whose covariance has no inverse.
    """
    if n_features <= dim:
        raise InputError(
            f"moment matching needs more random features ({n_features}) than the width of a head ({dim}); "
            f"set n_features to {2 * dim} or more, or take more heads"
        )
    rows = quasi_monte_carlo(n_features, dim, generator)
    centred = rows - rows.mean(dim=0)
    factor = torch.linalg.cholesky(centred.transpose(0, 1) @ centred / n_features)
    return torch.linalg.solve_triangular(factor, centred.transpose(0, 1), upper=False).transpose(0, 1)


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
