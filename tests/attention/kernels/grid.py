"""Spectraformer's grid for the tests: kernels by name, and each estimate from its published formula."""

from __future__ import annotations

import math

import torch

from molflt.attention.build import build_kernel
from molflt.attention.kernels.spectraformer import COMPONENT_FUNCTIONS, DRAWN_MATRICES, FastFood
from tests.attention.kernels.checks import WIDTH, generator

GRID = [f"{component}-{matrix}" for component in COMPONENT_FUNCTIONS for matrix in (*DRAWN_MATRICES, "fastfood")]


def kernel_of(name: str, m: int = 14, c: int = WIDTH, seed: int = 0):
    return build_kernel(name, c, 2, m, 3, generator(seed)).double()


def published_a(square: float, c: int) -> float:
    """Spectraformer Eq. 35 as printed."""
    rho = (math.sqrt((2 * square + c) ** 2 + 8 * c * square) - 2 * square - c) / (4 * square)
    return (1 - 1 / rho) / 8


def pair_terms(component: str, omega: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(n, n, m): what row r adds to κ(q_i, k_j), for the (n, c) tokens of one head of one structure."""
    c = q.shape[1]
    if component == "trigrf":
        phase = torch.einsum("rc,ijc->ijr", omega, q[:, None] - k[None])
        squares = (q**2).sum(1)[:, None] + (k**2).sum(1)[None]
        return torch.exp(squares / 2)[..., None] * torch.cos(phase) / len(omega)
    if component == "saderf":
        psi = ((k**2).sum(0) / (q**2).sum(0)) ** 0.25
        q, k = psi * q, k / psi
    z = q[:, None] + k[None]
    a = 0.0 if component == "posrf" else published_a(float((z**2).sum(-1).mean()), c)
    squares = (q**2).sum(1)[:, None] + (k**2).sum(1)[None]
    exponent = 2 * a * (omega**2).sum(1) + math.sqrt(1 - 4 * a) * torch.einsum("rc,ijc->ijr", omega, z)
    return (1 - 4 * a) ** (c / 2) * torch.exp(exponent - squares[..., None] / 2) / len(omega)


def dense_attention(component: str, omega, q, k, v) -> torch.Tensor:
    """Σ_j κ(q_i, k_j) v_j / Σ_j κ(q_i, k_j) in O(n²) per head and structure."""
    out = torch.zeros_like(v)
    for b in range(len(q)):
        for h in range(q.shape[1]):
            weights = pair_terms(component, omega, q[b, h], k[b, h]).sum(-1)
            out[b, h] = weights @ v[b, h] / weights.sum(1, keepdim=True)
    return out


def fastfood(m: int, c: int, random: torch.Generator) -> torch.Tensor:
    return FastFood(m, c, random)().detach().double()


LAWS = {**DRAWN_MATRICES, "fastfood": fastfood}
