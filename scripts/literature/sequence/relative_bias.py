"""Attention with a bias for every offset: log-linear Performer, and dense softmax.

Luo et al. 2021, arXiv 2106.12566.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from molflt.attention.kernels import Kernel, normalised, stable_features
from scripts.literature.sequence.toeplitz import CHANNELS_AT_ONCE, future, toeplitz_matrix, toeplitz_product

_PRODUCTS_PER_TRANSFORM = 7.0
"""Multiply-adds of a matrix product in the time of an FFT per number and log₂ length: measured."""


OrderKind = Literal["auto", "quadratic", "linear"]


def log_linear_attention(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    shape: tuple[int, ...],
    causal: bool,
    order: OrderKind = "auto",
) -> Tensor:
    """Σ_j e^{b_{j−i}} κ(q_i, k_j) v_j / Σ_j e^{b_{j−i}} κ(q_i, k_j) (Eq. 10), in O(n log n · m head_dim).

    Both contraction orders give the same result. "linear" is by FFT. "quadratic" is on all pairs, O(n² (m +
    head_dim)), and faster for sequences of up to some thousand tokens.

    The causal form sets c_{j−i} = e^{b_{j−i}} to zero for j > i (§3.2). By FFT that zero holds to rounding, relative
    to the largest φ_K v of the sequence: see :func:`~scripts.literature.sequence.toeplitz.toeplitz_product`.

    Args:
        kernel: the feature map. With ``causal`` the features of a token must depend on no other token.
        query: (batch, heads, n, c).
        key: as ``query``.
        value: (batch, heads, n, head_dim).
        bias: b, (heads, 2n − 1), or (heads, 2h − 1, 2w − 1) of a grid in raster order.
        shape: (n,) or (h, w).
        causal: whether a token sees only itself and the tokens before it.
        order: "linear", "quadratic", or "auto" for the one that takes less time.

    Returns:
        (batch, heads, n, head_dim).
    """
    query_features, key_features = kernel(query, key)
    phi_q, phi_k = stable_features(query_features, key_features, None)
    if causal:
        bias = bias.masked_fill(future(shape, bias.device), -torch.inf)
    # The largest b of a head gives a common factor, which cancels.
    axes = tuple(range(-len(shape), 0))
    coefficients = torch.exp(bias - bias.detach().amax(dim=axes, keepdim=True))
    ones = torch.ones_like(value[..., :1])
    if order == "auto":
        order = _faster_order(value.shape[-2], phi_q.shape[-1], value.shape[-1])
    weighted_sums = _by_pairs if order == "quadratic" else _by_fft
    sums = weighted_sums(coefficients, phi_q, phi_k, torch.cat([value, ones], dim=-1), shape)
    bound = None if kernel.positive else weighted_sums(coefficients, phi_q.abs(), phi_k.abs(), ones, shape)
    return normalised(sums[..., :-1], sums[..., -1:], bound)


def _faster_order(n: int, n_features: int, head_dim: int) -> OrderKind:
    pairs = n * n * (n_features + head_dim)
    transforms = _PRODUCTS_PER_TRANSFORM * n * n_features * head_dim * math.log2(4 * n)
    return "quadratic" if pairs < transforms else "linear"


def _by_pairs(coefficients: Tensor, phi_q: Tensor, phi_k: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Σ_j c_{j−i} (φ_Q,i · φ_K,j) v_j: (batch, heads, n, c), on all pairs."""
    factors = toeplitz_matrix(coefficients, shape).to(phi_q.dtype)
    return (factors * (phi_q @ phi_k.transpose(-1, -2))) @ value


def _by_fft(coefficients: Tensor, phi_q: Tensor, phi_k: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same by FFT.

    The outer products φ_K vᵀ of all tokens, n m c numbers, are neither held at once nor kept for a backward pass.
    """
    n_features = max(1, CHANNELS_AT_ONCE // value.shape[-1])
    parts = zip(phi_q.split(n_features, dim=-1), phi_k.split(n_features, dim=-1), strict=True)
    sums = [
        checkpoint(_some_features, coefficients, q, k, value, shape, use_reentrant=False, preserve_rng_state=False)
        for q, k in parts
    ]
    return torch.stack(sums).sum(dim=0)


def _some_features(
    coefficients: Tensor, phi_q: Tensor, phi_k: Tensor, value: Tensor, shape: tuple[int, ...]
) -> Tensor:
    outer = (phi_k[..., :, None] * value[..., None, :]).flatten(-2)
    product = toeplitz_product(coefficients, outer, shape).unflatten(-1, (phi_k.shape[-1], -1))
    return (phi_q[..., None, :] @ product.to(phi_q.dtype)).squeeze(-2)


class RelativeBias(nn.Module):
    """b_{j−i} of a sequence, or of a grid with an offset of rows and one of columns; zero at the start.

    In the paper all layers share one bias: give the same module to each.

    Args:
        n_heads: number of heads.
        shape: (n,) of the longest sequence, or (h, w) of the grid.
    """

    def __init__(self, n_heads: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.values = nn.Parameter(torch.zeros(n_heads, *(2 * length - 1 for length in shape)))

    def forward(self, n: int) -> tuple[Tensor, tuple[int, ...]]:
        """The bias of n tokens.

        Args:
            n: at most the length of the longest sequence; for a grid all of its tokens.

        Returns:
            (heads, 2n − 1) or (heads, 2h − 1, 2w − 1), and the shape (n,) or (h, w) that it belongs to.
        """
        if len(self.shape) == 2:
            assert n == self.shape[0] * self.shape[1]
            return self.values, self.shape
        longest = self.shape[0]
        assert n <= longest
        return self.values[:, longest - n : longest + n - 1], (n,)


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, shape: tuple[int, ...], causal: bool
) -> Tensor:
    """softmax_j(q_i·k_j + b_{j−i}) v_j (arXiv 2106.12566, Eq. 6), the scale being in the queries and keys.

    Arguments as for :func:`log_linear_attention`.
    """
    if causal:
        bias = bias.masked_fill(future(shape, bias.device), -torch.inf)
    added = toeplitz_matrix(bias, shape).to(query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=added[None], scale=1.0)
