"""LARA's landmarks for sequences (Zheng et al. 2022, appendix G.3.1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from molflt.attention.kernels.lara import Landmarks


class Segments(Landmarks):
    """Averages over C contiguous segments whose lengths differ by at most one token."""

    def __init__(self, n_landmarks: int) -> None:
        super().__init__()
        self.n_landmarks = n_landmarks

    def forward(self, query: Tensor, mask: Tensor | None) -> Tensor:
        """Weights of the averages, (C, n).

        Args:
            query: (batch, heads, n, c).
            mask: not used, because sequences are whole.
        """
        n = query.shape[-2]
        segment = torch.arange(n, device=query.device) * self.n_landmarks // n
        member = functional.one_hot(segment, self.n_landmarks).to(query.dtype).transpose(0, 1)
        return member / member.sum(dim=1, keepdim=True).clamp(min=1)
