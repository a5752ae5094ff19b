"""cosFormer: ReLU features re-weighted by the cosine of the distance (Qin et al. 2022, arXiv 2202.08791)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from molflt.attention.kernels.kernel import Features, Kernel
from molflt.errors import InputError


class CosformerKernel(Kernel):
    """κ(q_i, k_j) = ReLU(q_i)·ReLU(k_j) cos(π(i − j)/2M), from φ(x)_i = [ReLU(x) cos(πi/2M), ReLU(x) sin(πi/2M)].

    No weight is negative as long as no distance exceeds M, nor is any feature. M is fixed, where the paper's code
    takes the length of the batch, so that a text does not depend on what it is batched with.

    Args:
        dim: c, width of a head.
        max_length: M, the longest sequence.

    Raises:
        InputError: ``max_length`` is not positive.
    """

    def __init__(self, dim: int, max_length: int) -> None:
        super().__init__()
        if max_length < 1:
            raise InputError(f"max_length must be at least 1, got {max_length}")
        self.n_features = 2 * dim
        self.max_length = max_length

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`.

        Raises:
            InputError: the sequence is longer than M.
        """
        n = query.shape[-2]
        if n > self.max_length:
            raise InputError(f"got {n} tokens with max_length {self.max_length}; the cosine would turn negative")
        angle = torch.arange(n, device=query.device, dtype=torch.float64)[:, None] * (math.pi / (2 * self.max_length))
        return _features(query, angle), _features(key, angle)


def _features(x: Tensor, angle: Tensor) -> Features:
    positive = functional.relu(x)
    factor = torch.cat([positive * angle.cos().to(x.dtype), positive * angle.sin().to(x.dtype)], dim=-1)
    return Features(torch.zeros_like(x[..., :1]), factor)
