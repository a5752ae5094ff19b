"""ORF: orthogonal random features (Yu et al. 2016; Performer §2.4; Spectraformer Eq. 21)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def orthogonal(n_features: int, dim: int, generator: torch.Generator) -> Tensor:
    """(n_features, dim): each row is N(0, I), rows within a block of ``dim`` are orthogonal.

    Directions come from Haar-distributed matrices, lengths from independent Gaussian vectors.
    """
    blocks = [haar(dim, generator) for _ in range(math.ceil(n_features / dim))]
    lengths = torch.randn(n_features, dim, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:n_features] * lengths


def haar(dim: int, generator: torch.Generator) -> Tensor:
    """(dim, dim): a uniformly distributed orthogonal matrix, by QR with the signs that make it so (Mezzadri 2007)."""
    q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    return (q * torch.sign(r.diagonal())).transpose(0, 1)
