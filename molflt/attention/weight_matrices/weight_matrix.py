"""The interface of all weight matrices, and those that are drawn once and kept."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Draw = Callable[[int, int, torch.Generator], Tensor]
"""(n_features, dim, generator) → ω, (m, dim) float64."""


class WeightMatrix(nn.Module):
    """ω of a random feature kernel, part of the model and saved with it.

    Attributes:
        shape: (m, c); m may differ from the number asked for where a law comes in whole rules.
    """

    shape: tuple[int, int]

    def forward(self) -> Tensor:
        """(m, dim)."""
        raise NotImplementedError

    def redraw(self, generator: torch.Generator) -> None:
        """Draw anew; nothing, for matrices that are learned."""


class DrawnMatrix(WeightMatrix):
    """A matrix drawn from a law, the same until it is drawn anew.

    Args:
        draw: the law.
        n_features: m.
        dim: c, width of a head.
        generator: of the first draw.
    """

    def __init__(self, draw: Draw, n_features: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.draw = draw
        self.n_features = n_features
        # Where the generator is, whatever device modules are being built on: some laws need numbers, not shapes.
        with generator.device:
            omega = draw(n_features, dim, generator)
        self.shape = (len(omega), dim)
        self.omega: Tensor
        self.register_buffer("omega", omega.to(torch.get_default_dtype()))

    def forward(self) -> Tensor:
        """See :class:`WeightMatrix`."""
        return self.omega

    def redraw(self, generator: torch.Generator) -> None:
        """See :class:`WeightMatrix`."""
        with generator.device:
            omega = self.draw(self.n_features, self.shape[1], generator)
        self.omega.copy_(omega)
