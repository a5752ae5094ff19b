"""Random feature kernels: any component function with any weight matrix (Spectraformer, Eq. 11)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from molflt.attention.kernels.kernel import Features, Kernel
from molflt.attention.kernels.trigonometric import trigonometric
from molflt.attention.weight_matrices.weight_matrix import WeightMatrix

ComponentFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Features, Features]]
"""(query, key, ω (m, c), mask) → features of either."""


class RandomFeatureKernel(Kernel):
    """κ(q, k) ≈ exp(q·k).

    Args:
        component: what is done with ω·x.
        weights: the matrix of the ω.
    """

    def __init__(self, component: ComponentFunction, weights: WeightMatrix) -> None:
        super().__init__()
        self.component = component
        self.weights = weights
        # A cosine and a sine for every frequency, of either sign.
        self.positive = component is not trigonometric
        self.n_features = weights.shape[0] * (1 if self.positive else 2)

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        omega: Tensor = self.weights()
        return self.component(query, key, omega, mask)

    def redraw(self, generator: torch.Generator) -> None:
        """New ω, where they are drawn and not learned."""
        self.weights.redraw(generator)
