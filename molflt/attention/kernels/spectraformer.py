"""Spectraformer's grid of random features: component functions of ω·x, weight matrices ω.

See Spectraformer §3. A name such as ``posrf-orf`` joins a component function and a matrix (m, c), whose rows are
draws of N(0, I) or stand in for them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from molflt.attention.kernels import Features, masked_mean
from molflt.attention.kernels.random_features import (
    Draw,
    DrawnMatrix,
    RandomFeatureKernel,
    WeightMatrix,
    haar,
    orthogonal,
    positive,
)
from molflt.errors import InputError


def spectraformer_kernel(name: str, dim: int, n_features: int, generator: torch.Generator) -> RandomFeatureKernel:
    """Build the kernel called ``name`` for width ``dim``, with m = ``n_features``.

    Raises:
        InputError: there is no kernel of that name.
    """
    component, _, matrix = name.partition("-")
    if component not in COMPONENT_FUNCTIONS or matrix not in (*DRAWN_MATRICES, "fastfood"):
        raise InputError(f"unknown kernel '{name}'; docs/literature.md lists them")
    weights: WeightMatrix
    if matrix == "fastfood":
        weights = FastFood(n_features, dim, generator)
    else:
        weights = DrawnMatrix(DRAWN_MATRICES[matrix], n_features, dim, generator)
    return RandomFeatureKernel(COMPONENT_FUNCTIONS[component], weights, positive=component != "trigrf")


def trigonometric(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """φ(x) = exp(|x|²/2) [cos ω·x, sin ω·x]/√m: E φ(q)·φ(k) = exp(q·k).

    The cosines alone estimate the Gaussian kernel exp(−|q − k|²/2); the factors exp(|x|²/2) turn it into the softmax
    kernel (Spectraformer Eq. 8). Features, and therefore estimates, can be negative.

    Args:
        query: (batch, heads, n, c).
        key: as ``query``.
        omega: (m, c).
        mask: (batch, 1, n, 1) bool, which tokens exist; not used here.
    """

    def features(x: Tensor) -> Features:
        phase = x @ omega.transpose(-1, -2)
        waves = torch.cat([phase.cos(), phase.sin()], dim=-1) / math.sqrt(omega.shape[0])
        return Features(0.5 * (x * x).sum(dim=-1, keepdim=True), waves)

    return features(query), features(key)


def optimised_positive(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """φ(x) = D exp(A|ω|² + B ω·x − |x|²/2)/√m: E φ(q)·φ(k) = exp(q·k).

    B = √(1 − 4A) and D = (1 − 4A)^{c/4}. A ≤ 0 minimises the variance at the mean of |q + k|² over all pairs of the
    structure, which follows from sums over queries and over keys. With A = 0 these are the positive features. In the
    paper's family the exponent −(s + 1)/2·|x|² = −|x|² belongs to the Gaussian kernel; the softmax kernel has
    exp(|x|²/2) more on either side. Arguments as for :func:`trigonometric`.
    """
    a = optimal_a(mean_square_of_sums(query, key, mask), query.shape[-1])
    return generalised_features(query, omega, a), generalised_features(key, omega, a)


def saderf(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """Optimised positive features of Ψq and Ψ⁻¹k: E φ(q)·φ(k) = exp(q·k).

    The diagonal Ψ_ll = (Σ_j k_jl² / Σ_i q_il²)^{1/4} leaves q·k unchanged and makes queries and keys equally long
    along every axis, which minimises the mean of |Ψq|² + |Ψ⁻¹k|². Arguments as for :func:`trigonometric`.
    """
    # If all queries and keys are zero along an axis, any Ψ will do; this one has a derivative.
    tiny = torch.finfo(query.dtype).eps
    psi = ((masked_mean(key * key, mask) + tiny) / (masked_mean(query * query, mask) + tiny)) ** 0.25
    return optimised_positive(query * psi, key / psi, omega, mask)


def mean_square_of_sums(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of |q_i + k_j|² over all pairs of a structure, (batch, heads, 1, 1), in linear time."""
    q, k = masked_mean(query, mask), masked_mean(key, mask)
    squares = masked_mean(query * query + key * key, mask)
    return (squares + 2 * q * k).sum(dim=-1, keepdim=True)


def optimal_a(square: Tensor, c: int) -> Tensor:
    """A = (1 − 1/ρ)/8 ≤ 0 with ρ = [√((2S + c)² + 8cS) − 2S − c]/4S, S = |q + k|².

    This is Spectraformer's Eq. 35, written as ρ = 2c/[√((2S + c)² + 8cS) + 2S + c], which does not cancel and is one
    at S = 0.
    """
    linear = 2 * square + c
    inverse = (torch.sqrt(linear * linear + 8 * c * square) + linear) / (2 * c)
    return (1 - inverse) / 8


def generalised_features(x: Tensor, omega: Tensor, a: Tensor) -> Features:
    """Generalised exponential features (GERF) for the softmax kernel, s = +1.

    A is (batch, heads, 1, 1), below 1/4.
    """
    growth = 1 - 4 * a
    exponent = a * (omega * omega).sum(dim=-1) + growth.sqrt() * (x @ omega.transpose(-1, -2))
    log_d = x.shape[-1] / 4 * torch.log(growth)
    return Features(exponent + log_d - 0.5 * (x * x).sum(dim=-1, keepdim=True) - 0.5 * math.log(omega.shape[0]))


COMPONENT_FUNCTIONS = {"trigrf": trigonometric, "posrf": positive, "oprf": optimised_positive, "saderf": saderf}


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
    """(n_features, dim): blocks of √p H D₁ H D₂ H D₃ with random signs D.

    The size p of a block is the next power of two. If ``dim`` is no power of two, inputs count as padded with zeros,
    which amounts to dropping columns. Every full row has length √p exactly, so the matrix is unbiased only as ``dim``
    grows.
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
    """(n_features, dim): quasi-Monte Carlo rows with mean zero and covariance one exactly.

    The rows are ω̃ = Ã⁻¹(ω − μ̃) with ÃÃᵀ their covariance. The estimate is biased, but by less than the error of one
    draw.

    Raises:
        InputError: there are not more rows than columns, so that the covariance has no inverse.
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
    """(m, dim): {0, ±p e_1, …, ±p e_dim}, the points of the third-degree Smolyak rule.

    All have the same weight. The rule is of third degree for every p, with weights 1/2p² and 1 − dim/p² for the
    centre. With p = √3, which is Gauss-Hermite's, the centre's weight and its feature would be negative beyond three
    dimensions; p² = dim + ½ makes all weights equal, as Spectraformer's component weights are.

    One rule has 2·dim + 1 rows. As many rules as come nearest to ``n_features`` are stacked, the first along the
    axes, the others rotated at random; m is the total number of rows.
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
        self.hadamard = nn.Buffer(signs_of_hadamard(p).to(dtype), persistent=False)
        permutations = [torch.randperm(p, generator=generator) for _ in range(blocks)]
        self.permutation = nn.Buffer(torch.stack(permutations))

    def forward(self) -> Tensor:
        """See :class:`WeightMatrix`."""
        root = math.sqrt(len(self.hadamard))
        # The rows of Π H B are those of H in another order, with their columns scaled.
        mixed = self.hadamard[self.permutation] * self.input[:, None, :] / root
        rows = self.outer[:, :, None] * (self.hadamard @ (self.inner[:, :, None] * mixed))
        n_features, dim = self.shape
        return rows.flatten(0, 1)[:n_features, :dim]


def power_of_two(dim: int) -> int:
    """Return the smallest power of two that is not below ``dim``."""
    return 1 << (dim - 1).bit_length()


def signs_of_hadamard(p: int) -> Tensor:
    """H, (p, p) float64 of ±1, for p a power of two; H/√p is orthogonal."""
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < p:
        h = torch.cat([torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)])
    return h


def random_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """±1 with equal probability, float64."""
    return 2.0 * torch.randint(2, shape, generator=generator).to(torch.float64) - 1
