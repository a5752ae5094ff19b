"""A learnable number for every offset and head: b_{j−i} (arXiv 2106.12566, Eq. 6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from molflt.errors import InputError


class RelativeBias(nn.Module):
    """b_{j−i} of a sequence, or of a grid with an offset of rows and one of columns. Zero at the start.

    In the paper one bias is shared by all layers: give the same module to each.

    Args:
        n_heads: heads.
        shape: (n,) of the longest sequence, or (h, w) of the grid.

    Raises:
        InputError: ``shape`` has neither one nor two lengths, or one is not positive.
    """

    def __init__(self, n_heads: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        if len(shape) not in (1, 2) or min(shape) < 1:
            raise InputError(f"a bias needs the length of a sequence or height and width of a grid, got {shape}")
        self.shape = shape
        self.values = nn.Parameter(torch.zeros(n_heads, *(2 * length - 1 for length in shape)))

    def forward(self, n: int) -> tuple[Tensor, tuple[int, ...]]:
        """The bias of n tokens.

        Args:
            n: up to the longest sequence; for a grid all of its tokens.

        Returns:
            (heads, 2n − 1) or (heads, 2h − 1, 2w − 1), and the shape (n,) or (h, w) that it belongs to.

        Raises:
            InputError: there is no bias for that many tokens.
        """
        if len(self.shape) == 2:
            if n != self.shape[0] * self.shape[1]:
                raise InputError(f"got {n} tokens for a bias of a grid of {self.shape[0]} by {self.shape[1]}")
            return self.values, self.shape
        longest = self.shape[0]
        if n > longest:
            raise InputError(f"got {n} tokens and a bias for {longest}; build it with shape ({n},)")
        return self.values[:, longest - n : longest + n - 1], (n,)
