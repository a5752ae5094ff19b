"""Kernels with positions: FLT (arXiv 2302.01925, Algorithm 1) and cosFormer."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from molflt.attention.kernels import Features, Kernel
from scripts.literature.sequence.fourier_rpe import FourierRpe


class ConcatenatedKernel(Kernel):
    """Q̂ = [N₁, q], K̂ = [N₂, k], then φ(Q̂), φ(K̂): κ ≈ exp(f(Δ) + q·k), as published (Eq. 3, Algorithm 1).

    Q̂·K̂ = Σ_k a_k cos(2πξ_k·Δ) + q·k holds exactly; what φ makes of it is up to the kernel. The squared length of a
    query or key grows by Σ_k|a_k|, and with it the variance of random features.

    Args:
        kernel: feature map of vectors of width head_dim + 2r.
        rpe: in R¹ for a sequence, in R² for a grid.
        grid: (h, w), its tokens in raster order; None for a sequence.
    """

    def __init__(self, kernel: Kernel, rpe: FourierRpe, grid: tuple[int, int] | None = None) -> None:
        super().__init__()
        assert rpe.dim == (1 if grid is None else 2)
        self.kernel = kernel
        self.rpe = rpe
        self.grid = grid
        self.n_features = kernel.n_features
        self.positive = kernel.positive

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        waves = self.rpe(token_positions(query.shape[-2], self.grid, query.device))
        waves_q, waves_k = (wave.to(query.dtype).expand(len(query), -1, -1, -1) for wave in waves)
        found: tuple[Features, Features] = self.kernel(
            torch.cat([waves_q, query], dim=-1), torch.cat([waves_k, key], dim=-1), mask
        )
        return found


def token_positions(n: int, grid: tuple[int, int] | None, device: torch.device) -> Tensor:
    """Positions in tokens, float64: (n, 1) of a sequence, or rows and columns, (n, 2)."""
    index = torch.arange(n, device=device)
    if grid is None:
        return index[:, None].to(torch.float64)
    height, width = grid
    assert n <= height * width
    return torch.stack([index // width, index % width], dim=-1).to(torch.float64)


class CosformerKernel(Kernel):
    """κ(q_i, k_j) = ReLU(q_i)·ReLU(k_j) cos(π(i − j)/2M), from φ(x)_i = [ReLU(x) cos(πi/2M), ReLU(x) sin(πi/2M)].

    No feature is negative as long as no distance exceeds M, and so no weight is. The paper's code takes the length of
    the batch for M; here M is fixed, so that the result for a text does not depend on its batch-mates.

    Args:
        dim: c, the width of queries and keys.
        max_length: M, the length of the longest sequence.
    """

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        self.n_features = 2 * dim
        self.max_length = max_length

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        n = query.shape[-2]
        # Or the cosine would turn negative.
        assert n <= self.max_length
        angle = torch.arange(n, device=query.device, dtype=torch.float64)[:, None] * (math.pi / (2 * self.max_length))
        return _features(query, angle), _features(key, angle)


def _features(x: Tensor, angle: Tensor) -> Features:
    positive = functional.relu(x)
    factor = torch.cat([positive * angle.cos().to(x.dtype), positive * angle.sin().to(x.dtype)], dim=-1)
    return Features(torch.zeros_like(x[..., :1]), factor)
