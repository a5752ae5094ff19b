"""Feature maps of the literature by name: Spectraformer's grid, elu + 1, learned ReLU features, and LARA.

A name such as ``posrf-orf`` joins a component function, which says what is done with ω·x (Spectraformer §3), and a
weight matrix, which says how the rows ω are drawn (:mod:`molflt.literature.weight_matrices`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.config import KernelKeys
from molflt.attention.kernels.kernel import Features, Kernel, masked_mean
from molflt.attention.kernels.random_features import (
    DrawnMatrix,
    RandomFeatureKernel,
    WeightMatrix,
    orthogonal,
    positive,
)
from molflt.errors import InputError
from molflt.literature.lara import LaraKernel, SoftClusters
from molflt.literature.weight_matrices import DRAWN_MATRICES, FastFood


def kernel_of(config: KernelKeys, width: int, n_heads: int, generator: torch.Generator) -> Kernel:
    """The kernel that a configuration names, for queries and keys of a given width."""
    return build_kernel(config.kernel, width, n_heads, config.n_features, config.n_landmarks, generator)


def build_kernel(
    name: str, dim: int, n_heads: int, n_features: int, n_landmarks: int, generator: torch.Generator
) -> Kernel:
    """The kernel called ``name``: "elu", "relu", "lara", or a component function and a weight matrix, "posrf-orf".

    ``dim`` is c, the width of queries and keys; "elu" and "lara" need no m, ``n_features``, and "lara" alone needs C,
    ``n_landmarks``.

    Raises:
        InputError: there is no kernel of that name.
    """
    match name:
        case "elu":
            return EluKernel(dim)
        case "relu":
            return ReluKernel(n_features, dim, generator)
        case "lara":
            return LaraKernel(SoftClusters(n_heads, n_landmarks, dim, generator))
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
    """φ(x) = D exp(A|ω|² + B ω·x − |x|²/2)/√m with B = √(1 − 4A), D = (1 − 4A)^{c/4}: E φ(q)·φ(k) = exp(q·k).

    A ≤ 0 minimises the variance at the mean of |q + k|² over all pairs of the structure, which follows from sums over
    queries and over keys. With A = 0 these are the positive features. In the paper's family the exponent
    −(s + 1)/2·|x|² = −|x|² belongs to the Gaussian kernel; the softmax kernel has exp(|x|²/2) more on either side.
    Arguments as for :func:`trigonometric`.
    """
    a = optimal_a(mean_square_of_sums(query, key, mask), query.shape[-1])
    return generalised_features(query, omega, a), generalised_features(key, omega, a)


def saderf(query: Tensor, key: Tensor, omega: Tensor, mask: Tensor | None) -> tuple[Features, Features]:
    """Optimised positive features of Ψq and Ψ⁻¹k, Ψ_ll = (Σ_j k_jl² / Σ_i q_il²)^{1/4}: E φ(q)·φ(k) = exp(q·k).

    The diagonal Ψ leaves q·k as it is and makes queries and keys equally long along every axis, which minimises the
    mean of |Ψq|² + |Ψ⁻¹k|². Arguments as for :func:`trigonometric`.
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
    """A = (1 − 1/ρ)/8 ≤ 0 with ρ = [√((2S + c)² + 8cS) − 2S − c]/4S, S = |q + k|² (Spectraformer Eq. 35).

    Written as ρ = 2c/[√((2S + c)² + 8cS) + 2S + c], which does not cancel and is one at S = 0.
    """
    linear = 2 * square + c
    inverse = (torch.sqrt(linear * linear + 8 * c * square) + linear) / (2 * c)
    return (1 - inverse) / 8


def generalised_features(x: Tensor, omega: Tensor, a: Tensor) -> Features:
    """Generalised exponential features (GERF) for the softmax kernel, s = +1, of A (batch, heads, 1, 1) below 1/4."""
    growth = 1 - 4 * a
    exponent = a * (omega * omega).sum(dim=-1) + growth.sqrt() * (x @ omega.transpose(-1, -2))
    log_d = x.shape[-1] / 4 * torch.log(growth)
    return Features(exponent + log_d - 0.5 * (x * x).sum(dim=-1, keepdim=True) - 0.5 * math.log(omega.shape[0]))


COMPONENT_FUNCTIONS = {"trigrf": trigonometric, "posrf": positive, "oprf": optimised_positive, "saderf": saderf}


class EluKernel(Kernel):
    """φ(x) = elu(x) + 1, which is positive and estimates no kernel (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.n_features = dim

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        # elu(x) + 1 = exp(min(x, 0)) (1 + max(x, 0)), which does not cancel where x is far below zero.
        phi_q, phi_k = (Features(x.clamp(max=0), 1 + functional.relu(x)) for x in (query, key))
        return phi_q, phi_k


class ReluKernel(Kernel):
    """φ(x) = ReLU(Wx) + ε with W (m, c) learned, which estimates no kernel.

    See Performer, arXiv 2009.14794, and FLT appendix B.2.
    """

    EPSILON = 1e-3
    """Keeps a query that all rows of W cut off from a division by zero; the value of Performer's own code."""

    def __init__(self, n_features: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_features = n_features
        start = orthogonal(n_features, dim, generator) / dim**0.5
        self.matrix = nn.Parameter(start.to(torch.get_default_dtype()))

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        return self._features(query), self._features(key)

    def _features(self, x: Tensor) -> Features:
        factor = functional.relu(x @ self.matrix.transpose(0, 1)) + self.EPSILON
        return Features(torch.zeros_like(x[..., :1]), factor)
