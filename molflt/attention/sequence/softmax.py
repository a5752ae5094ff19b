"""Dense softmax attention with a relative bias: the quadratic reference on sequences and grids."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from molflt.attention.sequence.toeplitz import future, toeplitz_matrix


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, shape: tuple[int, ...], causal: bool
) -> Tensor:
    """softmax_j(q_i·k_j + b_{j−i}) v_j (arXiv 2106.12566, Eq. 6), the scale being in the queries and keys.

    Args:
        query: (batch, heads, n, head_dim), scaled so that q·k needs no factor.
        key: as ``query``.
        value: as ``query``.
        bias: b, (heads, 2n − 1), or (heads, 2h − 1, 2w − 1) of a grid in raster order.
        shape: (n,) or (h, w).
        causal: whether a token sees only itself and those before it.

    Returns:
        (batch, heads, n, head_dim).

    Raises:
        InputError: the bias does not fit ``shape``.
    """
    if causal:
        bias = bias.masked_fill(future(shape, bias.device), -torch.inf)
    added = toeplitz_matrix(bias, shape).to(query.dtype)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=added[None], scale=1.0)
