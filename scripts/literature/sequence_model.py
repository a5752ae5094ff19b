"""A small transformer on sequences or grids whose attention can be swapped."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from molflt.attention.build import build_kernel
from molflt.attention.kernels import Kernel
from scripts.literature.sequence.fourier_rpe import FourierRpe, GaussianMixtureRpe, LocalRpe
from scripts.literature.sequence.layer import (
    KernelisedSequenceAttention,
    LogLinearAttention,
    SequenceAttention,
    SoftmaxSequenceAttention,
)
from scripts.literature.sequence.positioned_kernels import ConcatenatedKernel, CosformerKernel
from scripts.literature.sequence.relative_bias import RelativeBias

N_TERMS = 16
"""T of the RPE functions of FLT."""


def attention_layers(
    name: str,
    dim: int,
    n_heads: int,
    n_layers: int,
    shape: tuple[int, ...],
    causal: bool,
    n_features: int,
    n_frequencies: int,
    seed: int,
    kernel: str = "posrf-orf",
) -> list[SequenceAttention]:
    """One layer of attention for each layer of a transformer; an RPE is shared by all of them.

    Args:
        name: "softmax", "performer", "log-linear", "flt-gaussian", "flt-local" or "cosformer".
        dim: width.
        n_heads: heads.
        n_layers: layers.
        shape: (n,) of a sequence, (h, w) of a grid.
        causal: whether a token sees only itself and those before it.
        n_features: m.
        n_frequencies: r.
        seed: of everything random in the attention.
        kernel: feature map; not for "softmax" and "cosformer".
    """
    generator = torch.Generator().manual_seed(seed)
    head_dim = dim // n_heads
    grid = (shape[0], shape[1]) if len(shape) == 2 else None
    if name in ("softmax", "log-linear"):
        bias = RelativeBias(n_heads, shape)
    rpe: FourierRpe
    if name in ("flt-gaussian", "flt-local"):
        kind = GaussianMixtureRpe if name == "flt-gaussian" else LocalRpe
        unit = {} if grid is None else {"unit": max(grid) / 4}
        rpe = kind(n_heads, N_TERMS, n_frequencies, generator, dim=len(shape), **unit)

    def feature_map(width: int) -> Kernel:
        return build_kernel(kernel, width, n_heads, n_features, 16, generator)

    layers: list[SequenceAttention] = []
    for _ in range(n_layers):
        match name:
            case "softmax":
                layers.append(SoftmaxSequenceAttention(dim, n_heads, bias, causal))
            case "performer":
                layers.append(KernelisedSequenceAttention(dim, n_heads, feature_map(head_dim), causal))
            case "log-linear":
                layers.append(LogLinearAttention(dim, n_heads, feature_map(head_dim), bias, causal))
            case "flt-gaussian" | "flt-local":
                positioned = ConcatenatedKernel(feature_map(head_dim + rpe.width), rpe, grid)
                layers.append(KernelisedSequenceAttention(dim, n_heads, positioned, causal))
            case "cosformer":
                n = shape[0] if grid is None else shape[0] * shape[1]
                layers.append(KernelisedSequenceAttention(dim, n_heads, CosformerKernel(head_dim, n), causal))
            case _:
                raise ValueError(f"there is no attention '{name}'")
    return layers


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, attention: nn.Module, dim: int, ffn_dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = attention
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU(), nn.Linear(ffn_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, n, dim) → (batch, n, dim)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class SequenceTransformer(nn.Module):
    """Embedding with learned positions, blocks, and logits per token or, pooled, per sequence.

    Args:
        attention: one for each layer.
        embedding: of tokens (batch, n) or of whatever a token is, to (batch, n, dim).
        dim: width.
        ffn_dim: width of the feed-forward block.
        length: of the longest sequence.
        n_classes: logits.
        pooled: average over the tokens before the logits.
    """

    def __init__(
        self,
        attention: list[SequenceAttention],
        embedding: nn.Module,
        dim: int,
        ffn_dim: int,
        length: int,
        n_classes: int,
        pooled: bool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = nn.Parameter(0.02 * torch.randn(length, dim))
        self.blocks = nn.ModuleList(Block(layer, dim, ffn_dim) for layer in attention)
        self.norm = nn.LayerNorm(dim)
        self.logits = nn.Linear(dim, n_classes)
        self.pooled = pooled

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, n, ...) → (batch, n, n_classes), or (batch, n_classes) where pooled."""
        x = self.embedding(tokens)
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.logits(x.mean(dim=1) if self.pooled else x)
