"""Kernelised attention over a sequence, forward or causal, linear in its length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from molflt.attention.kernels import Kernel, kernelised_attention, normalised, stable_features

CHUNK = 64
"""Near the usual m, where the pairs within a chunk cost a token about as much as the state before the chunk."""


def sequence_attention(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, causal: bool, chunk: int = CHUNK
) -> Tensor:
    """Σ_j κ(q_i, k_j) v_j / Σ_j κ(q_i, k_j) over all j (FLT Eq. 2), or over j ≤ i (arXiv 2006.16236, Eqs 8 and 9).

    In the causal sums one number per feature is taken off the exponents of all keys of a sequence and head. It knows
    of the future, but it goes to the queries and cancels, so no output depends on it as long as nothing underflows:
    in float32 a term counts as zero if its exponent is 87 below the largest of its feature or query.

    Args:
        kernel: the feature map; for ``causal`` one that :func:`check_causal` accepts.
        query: (batch, heads, n, c).
        key: as ``query``.
        value: (batch, heads, n, head_dim).
        causal: whether a token sees only itself and those before it.
        chunk: see :func:`prefix_sums`.

    Returns:
        (batch, heads, n, head_dim).
    """
    if not causal:
        return kernelised_attention(kernel, query, key, value, None)
    query_features, key_features = kernel(query, key)
    phi_q, phi_k = stable_features(query_features, key_features, None)
    ones = torch.ones_like(value[..., :1])
    sums = prefix_sums(phi_q, phi_k, torch.cat([value, ones], dim=-1), chunk)
    bound = None if kernel.positive else prefix_sums(phi_q.abs(), phi_k.abs(), ones, chunk)
    return normalised(sums[..., :-1], sums[..., -1:], bound)


def prefix_sums(phi_q: Tensor, phi_k: Tensor, value: Tensor, chunk: int = CHUNK) -> Tensor:
    """Σ_{j≤i} (φ_Q,i · φ_K,j) v_j for every i, in O(n (chunk (m + c) + m c)) time.

    Pairs within a chunk are summed one by one; of the chunks before it only Σ_j φ_K,j v_jᵀ is needed. These states
    are kept for all chunks, n m c / chunk numbers, so that all chunks are computed at once.

    Args:
        phi_q: (..., n, m).
        phi_k: as ``phi_q``.
        value: (..., n, c).
        chunk: tokens in a chunk, of which n need not be a multiple. It changes only rounding and speed.

    Returns:
        (..., n, c).
    """
    n = phi_q.shape[-2]
    # Padding stands at the end, where no token sees it.
    padding = (0, 0, 0, -n % chunk)
    q, k, v = (functional.pad(x, padding).unflatten(-2, (-1, chunk)) for x in (phi_q, phi_k, value))
    within = (q @ k.transpose(-1, -2)).tril() @ v
    states = (k.transpose(-1, -2) @ v).cumsum(dim=-3)
    # The state before a chunk comes from a shift, because subtracting the chunk's own part would cancel digits.
    before = functional.pad(states[..., :-1, :, :], (0, 0, 0, 0, 1, 0))
    return (within + q @ before).flatten(-3, -2)[..., :n, :]


def check_causal(kernel: Kernel, n_heads: int, dim: int) -> None:
    """Refuse a kernel whose features of a token depend on other tokens, by trying it on two.

    Averages over the sequence (in optimised positive features, SADERF and the landmarks of LARA) carry the future
    into the features of the past, and no mask on the sums can undo that. Features that depend on the position of
    their token are fine.

    Args:
        kernel: the feature map.
        n_heads: number of heads.
        dim: c, the width of queries and keys.

    Raises:
        ValueError: the features of the first token change with the second.
    """
    generator = torch.Generator().manual_seed(0)
    like = next((t for t in (*kernel.parameters(), *kernel.buffers()) if t.is_floating_point()), torch.empty(0))
    tokens = torch.randn(2, 1, n_heads, 2, dim, generator=generator).to(like)
    changed = tokens.clone()
    changed[..., 1, :] *= -2
    with torch.no_grad():
        seen = [feature.values()[..., 0, :] for feature in kernel(*tokens)]
        seen_changed = [feature.values()[..., 0, :] for feature in kernel(*changed)]
    if not all(torch.allclose(a, b) for a, b in zip(seen, seen_changed, strict=True)):
        raise ValueError(
            "this kernel takes averages over the whole sequence, so that causal attention would see the future;"
            " take elu, relu, or a posrf or trigrf kernel"
        )
