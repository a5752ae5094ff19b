"""The linear transformer's feature map (Katharopoulos et al. 2020, arXiv 2006.16236, Eq. 7)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from molflt.attention.kernels.kernel import Features, Kernel


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
