"""Gaussian distance basis, with the pair-type affine of 3D-Graphormer where it is wanted."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from molflt.vocabulary import MAX_ATOMIC_NUMBER


class GaussianDistanceBasis(nn.Module):
    """φ_k(d), φ_k a Gaussian of learnable centre and width; with pair types φ_k(γ_zz' d + β_zz').

    The pair-type affine lets a C-H and a Pt-Pt contact of the same length look different (3D-Graphormer, Shi et
    al. 2022, arXiv 2203.04810, Eq. 2). It starts as the identity, also for pairs never seen in training. Two numbers
    for every pair of elements are also what a model remembers its training set by (docs/accuracy.md).

    Args:
        n_basis: number of Gaussians.
        cutoff: Å; centres start evenly spaced on [0, cutoff].
        pair_types: whether there is the affine.
    """

    def __init__(self, n_basis: int, cutoff: float, pair_types: bool = False) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.pair_types = pair_types
        if pair_types:
            n_types = MAX_ATOMIC_NUMBER + 1
            self.gamma = nn.Parameter(torch.ones(n_types * n_types))
            self.beta = nn.Parameter(torch.zeros(n_types * n_types))
        self.centres = nn.Parameter(torch.linspace(0.0, 1.0, n_basis))
        # Widths stay positive by construction; neighbouring Gaussians start overlapping at half height.
        self.log_widths = nn.Parameter(torch.full((n_basis,), 1.0 / max(n_basis - 1, 1)).log())

    def forward(self, distances: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        """Distances (n,) Å and atomic numbers (n,), (n,) → (n, n_basis)."""
        x = distances / self.cutoff
        if self.pair_types:
            x = self._of_types(x, receiver_types, sender_types)
        steepness = torch.exp(-self.log_widths) / math.sqrt(2)
        bells: Tensor = _Bell.apply(torch.addcmul(-self.centres * steepness, x[:, None], steepness))
        return bells

    def _of_types(self, x: Tensor, receiver_types: Tensor, sender_types: Tensor) -> Tensor:
        pair_type = receiver_types.to(torch.int64) * (MAX_ATOMIC_NUMBER + 1) + sender_types
        # gather: adding up the derivative of an index is ten times slower
        gamma, beta = self.gamma.gather(0, pair_type), self.beta.gather(0, pair_type)
        return gamma * x + beta


class _Bell(torch.autograd.Function):
    """exp(−z²), in as few passes over memory as there can be: there are as many z as edges times Gaussians."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        bells = (z * z).clamp_(max=_TAIL).neg_().exp_()
        ctx.save_for_backward(z, bells)
        return bells

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        z, bells = ctx.saved_tensors
        return -2 * gradient * z * bells


def gaussian(exponent: Tensor) -> Tensor:
    """exp(−exponent), ended at e⁻⁶⁰: the tails beyond would be denormal numbers, which slow a CPU a hundredfold."""
    return torch.exp(-exponent.clamp(max=_TAIL))


_TAIL = 60.0
