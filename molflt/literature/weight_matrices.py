"""Spectraformer's weight matrices ω (m, c), whose rows are draws of N(0, I) or stand in for them."""

from __future__ import annotations

import math

import torch
from scipy.linalg import hadamard
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from molflt.attention.kernels.random_features import Draw, WeightMatrix, haar, orthogonal
from molflt.errors import InputError


def iid(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): independent draws of N(0, I)."""
    return torch.randn(n_features, dim, generator=generator, dtype=torch.float64)


def sphere(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): independent and uniform on the sphere of radius √dim.

    With positive features E κ(q, k) = exp(−(|q|² + |k|²)/2) Γ(c/2) (2/√c|z|)^{c/2−1} I_{c/2−1}(√c|z|), z = q + k,
    c = dim: the regularised softmax kernel, which is below exp(q·k) and near it for large c.
    """
    rows = iid(n_features, dim, generator)
    return math.sqrt(dim) * rows / rows.norm(dim=1, keepdim=True)


def structured_orthogonal(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): blocks of √p H D₁ H D₂ H D₃ with random signs D and p the next power of two.

    Where ``dim`` is no power of two, inputs count as padded with zeros, which amounts to dropping columns. Every full
    row has length √p exactly, so the matrix is unbiased only as ``dim`` grows.
    """
    p = power_of_two(dim)
    h = signs_of_hadamard(p) / p**0.5
    blocks = []
    for _ in range(math.ceil(n_features / p)):
        block = math.sqrt(p) * torch.eye(p, dtype=torch.float64)
        for diagonal in random_signs((3, p), generator):
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

    The rows are ω̃ = Ã⁻¹(ω − μ̃) with ÃÃᵀ their covariance. The estimate is biased, but by less than the error of one
    draw.

    Raises:
        InputError: there are no more rows than columns, so that the covariance has no inverse.
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

    The rule is of third degree for every p, with weights 1/2p² and 1 − dim/p² for the centre. With p = √3, which is
    Gauss-Hermite's, the centre's weight and its feature would be negative beyond three dimensions; p² = dim + ½
    makes all weights equal, as Spectraformer's component weights are.

    One rule has 2·dim + 1 rows. As many rules as come nearest to ``n_features`` are stacked, the first along the
    axes, the others turned by random rotations; m is the total number of rows.
    """
    p = math.sqrt(dim + 0.5)
    axes = p * torch.eye(dim, dtype=torch.float64)
    rule = torch.cat([torch.zeros(1, dim, dtype=torch.float64), axes, -axes])
    copies = max(1, round(n_features / len(rule)))
    return torch.cat([rule, *(rule @ haar(dim, generator) for _ in range(copies - 1))])


DRAWN_MATRICES: dict[str, Draw] = {
    "iid": iid,
    "orf": orthogonal,
    "sorf": structured_orthogonal,
    "sphere": sphere,
    "qmc": quasi_monte_carlo,
    "mm": moment_matching,
    "sgq": sparse_grid,
}


class FastFood(WeightMatrix):
    """Blocks of S H G Π H B, with the diagonals S, G and B learned.

    At the start B holds random signs, G Gaussian numbers, Π a permutation, and S the lengths of Gaussian vectors
    divided by that of G. Every row is then N(0, I), and the estimate is unbiased until the matrix learns. Queries and
    keys are padded with zeros to a power of two.
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
        self.input = nn.Parameter(random_signs((blocks, p), generator).to(dtype))
        self.hadamard: Tensor
        self.permutation: Tensor
        self.register_buffer("hadamard", signs_of_hadamard(p).to(dtype), persistent=False)
        permutations = [torch.randperm(p, generator=generator) for _ in range(blocks)]
        self.register_buffer("permutation", torch.stack(permutations))

    def forward(self) -> Tensor:
        """See :class:`WeightMatrix`."""
        root = math.sqrt(len(self.hadamard))
        # The rows of Π H B are those of H in another order, with their columns scaled.
        mixed = self.hadamard[self.permutation] * self.input[:, None, :] / root
        rows = self.outer[:, :, None] * (self.hadamard @ (self.inner[:, :, None] * mixed))
        n_features, dim = self.shape
        return rows.flatten(0, 1)[:n_features, :dim]


def power_of_two(dim: int) -> int:
    """The least power of two that is not below ``dim``."""
    return 1 << (dim - 1).bit_length()


def signs_of_hadamard(p: int) -> Tensor:
    """H, (p, p) float64 of ±1, for p a power of two; H/√p is orthogonal."""
    return torch.from_numpy(hadamard(p, dtype=float))


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """±1 with equal probability, float64."""
    return 2.0 * torch.randint(2, shape, generator=generator).to(torch.float64) - 1
