"""Landmarks of LARA: averages of queries and keys over parts of a structure or a sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class SoftClusters(nn.Module):
    """Parts for atoms, which have no order: a soft partition learned per head.

    Atom i belongs to cluster c by the share softmax_c(e_c·q_i/|q_i|), and a landmark is the average over its
    cluster. A permutation of the atoms permutes the shares and leaves every average as it is, and an n-fold
    supercell has the averages of its cell. LARA needs no more of its landmarks than that they do not depend on the
    noise of ω: its weights sum to one for any proposals.

    Args:
        n_heads: heads.
        n_landmarks: C, clusters per head.
        dim: c, width of a head.
        generator: of the start of e.
    """

    def __init__(self, n_heads: int, n_landmarks: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_landmarks = n_landmarks
        start = torch.randn(n_heads, n_landmarks, dim, generator=generator, dtype=torch.float64)
        self.centres = nn.Parameter(_SHARPNESS * start.to(torch.get_default_dtype()))

    def forward(self, query: Tensor, mask: Tensor | None) -> Tensor:
        """Weights of the averages, (batch, heads, C, n): every row sums to one over the tokens that exist.

        Args:
            query: (batch, heads, n, c).
            mask: (batch, 1, n, 1) bool, which tokens exist; None for all.
        """
        shares = torch.softmax(self.centres @ functional.normalize(query, dim=-1).transpose(-1, -2), dim=-2)
        if mask is not None:
            shares = shares * mask.transpose(-1, -2)
        return shares / shares.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


class Segments(nn.Module):
    """Parts for sequences: contiguous segments of equal length, to one token (LARA appendix G.3.1).

    Args:
        n_landmarks: C.
    """

    def __init__(self, n_landmarks: int) -> None:
        super().__init__()
        self.n_landmarks = n_landmarks

    def forward(self, query: Tensor, mask: Tensor | None) -> Tensor:
        """Weights of the averages, (C, n).

        Args:
            query: (batch, heads, n, c).
            mask: not used: sequences are whole.
        """
        n = query.shape[-2]
        segment = torch.arange(n, device=query.device) * self.n_landmarks // n
        member = functional.one_hot(segment, self.n_landmarks).to(query.dtype).transpose(0, 1)
        return member / member.sum(dim=1, keepdim=True).clamp(min=1)


_SHARPNESS = 3.0
"""Standard deviation of e: large enough that clusters differ from the first step on."""
