"""Feature maps that estimate no kernel: elu + 1, and ReLU with a learned matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels.kernel import Features, Kernel
from molflt.attention.kernels.random_features import orthogonal


class EluKernel(Kernel):
    """φ(x) = elu(x) + 1, which is positive.

    Args:
        dim: c, width of a head.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.n_features = dim

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        return _features(query), _features(key)


def _features(x: Tensor) -> Features:
    # exp(min(x, 0)) (1 + max(x, 0)), which is the same and does not cancel where x is far below zero.
    return Features(x.clamp(max=0), 1 + functional.relu(x))


class ReluKernel(Kernel):
    """φ(x) = ReLU(Wx) + ε with W learned.

    Args:
        n_features: m.
        dim: c, width of a head.
        generator: of the start of W.
    """

    EPSILON = 1e-3
    """Keeps a query that all rows of W cut off from dividing by zero; the value of Performer's own code."""

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
