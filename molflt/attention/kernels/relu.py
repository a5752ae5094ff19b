"""ReLU features with a learnable matrix (FLT appendix B.2; Performer's generalised attention)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels.kernel import Features, Kernel
from molflt.attention.weight_matrices.orthogonal import orthogonal


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
