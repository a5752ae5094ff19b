"""RA: randomised attention, an unbiased estimate of softmax attention.

Softmax attention is an expectation over ω of linear attention with one feature (Zheng et al. 2022, arXiv 2204.04667,
§3),

    out_n = E_{p_n} [Σ_m ξ(k_m, ω) v_m / Σ_m ξ(k_m, ω)],   ξ(x, ω) = exp(ω·x − |x|²/2),
    p_n = Σ_m π_nm N(q_n + k_m, I),   π_nm = exp(q_n·k_m)/Σ_m' exp(q_n·k_m')                       (Eqs 5 to 7)

and RA draws S values of ω for every query. With positions, where near is positive and far may be of either sign
(DESIGN §3),

    out_n = Σ_m (near_nm + far_nm) exp(q_n·k_m) v_m / Σ_m near_nm exp(q_n·k_m)

is the same expectation with π_nm ∝ near_nm exp(q_n·k_m), near + far before ξ(k_m, ω) in the numerator, and near in
the denominator: p_n(ω) cancels the denominator, and the rest integrates to exp(q_n·k_m) term by term.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.build import Built, Sizes, build_rpe
from molflt.attention.config import RandomisedConfig, RandomisedRpeConfig, Sampling
from molflt.attention.far.field import ExactMethod
from molflt.attention.geometry import Geometry
from molflt.attention.kernelised import ContentAttention
from molflt.attention.layer import RPE_WEIGHT_STD, BoundedProjection
from molflt.attention.mechanism import (
    AttentionLayer,
    FourierContext,
    FourierPositions,
    SharedPositions,
    split_heads,
)
from molflt.attention.near import LocalRPE


def randomised_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    near: Tensor,
    far: Tensor | None,
    n_samples: int,
    sampling: Sampling,
    draw: bool,
) -> Tensor:
    """RA with S samples for every query, in O(S n²).

    Args:
        query: (batch, heads, n, c), scaled so that the softmax kernel is exp(q·k).
        key: as ``query``.
        value: (batch, heads, n, head_dim).
        near: (batch, 1 or heads, n, n), not negative, and zero between tokens that do not see each other. The output
            of a token whose row is zero has no meaning.
        far: as ``near``, but of either sign; None for zero.
        n_samples: S.
        sampling: "exact" draws from the mixture p_n and is unbiased; "biased" draws from one Gaussian around its
            mean (Eq. 31).
        draw: whether there is noise. Without it the exact estimate is its expectation, which is dense attention, and
            the biased one has ω at the mean of its Gaussian.

    Returns:
        (batch, heads, n, head_dim).
    """
    seen = near > 0
    log_near = torch.where(seen, torch.where(seen, near, 1.0).log(), -torch.inf)
    # The output of a token that sees no other is not used, but it must not give NaN, not even in a gradient.
    log_near = log_near.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0)
    logits = query @ key.transpose(-1, -2)
    if sampling == "exact" and not draw:
        return _weighted(logits[..., None, :], value, log_near, far)[..., 0, :]
    shares = torch.softmax(logits + log_near, dim=-1)
    if sampling == "exact":
        index = _chosen(shares.detach(), n_samples).flatten(-2)[..., None].expand(-1, -1, -1, key.shape[-1])
        picked = key.gather(-2, index).unflatten(-2, (-1, n_samples))
    else:
        picked = (shares @ key)[..., None, :].expand(*key.shape[:-1], n_samples if draw else 1, key.shape[-1])
    omega = query[..., None, :] + picked
    if draw:
        omega = omega + torch.randn_like(omega)
    log_xi = _per_sample(omega, key.transpose(-1, -2)) - 0.5 * (key * key).sum(dim=-1)[:, :, None, None, :]
    return _weighted(log_xi, value, log_near, far).mean(dim=-2)


def _weighted(log_weight: Tensor, value: Tensor, log_near: Tensor, far: Tensor | None) -> Tensor:
    """Σ_m (near + far) e^w v / Σ_m near e^w.

    The log_weight is (batch, heads, n, S, m), the result (batch, heads, n, S, head_dim).
    """
    near = log_weight + log_near[..., None, :]
    if far is None:
        return _per_sample(torch.softmax(near, dim=-1), value)
    largest = near.detach().amax(dim=-1, keepdim=True)
    weights = torch.exp(near - largest)
    denominator = weights.sum(dim=-1, keepdim=True)
    weights = weights + far[..., None, :] * torch.exp(log_weight - largest)
    return _per_sample(weights, value) / denominator


def _per_sample(x: Tensor, matrix: Tensor) -> Tensor:
    """(batch, heads, n, S, a) times (batch, heads, a, b) as one product.

    Broadcasting would copy the matrix.
    """
    return (x.flatten(2, 3) @ matrix).unflatten(2, x.shape[2:4])


def _chosen(shares: Tensor, n_samples: int) -> Tensor:
    """Draw S indices by their probabilities: (batch, heads, n, m) → (batch, heads, n, S)."""
    sums = shares.cumsum(dim=-1)
    total = sums[..., -1:]
    # The draw stays below the total even after rounding, so that no entry of probability zero at the end is drawn.
    drawn = torch.rand(*shares.shape[:-1], n_samples, dtype=shares.dtype, device=shares.device) * total
    drawn = torch.minimum(drawn, total * (1 - torch.finfo(shares.dtype).eps))
    return torch.searchsorted(sums, drawn, right=True)


class RandomisedAttention(ContentAttention):
    """One layer without positions: softmax attention estimated by :func:`randomised_attention`."""

    def __init__(self, dim: int, n_heads: int, n_samples: int, sampling: Sampling, dropout: float) -> None:
        super().__init__(dim, n_heads, dropout)
        self.n_samples = n_samples
        self.sampling = sampling

    def attend(self, query: Tensor, key: Tensor, value: Tensor, geometry: Geometry) -> Tensor:
        """See :class:`ContentAttention`."""
        near = geometry.pair_mask[:, None].to(query.dtype)
        return randomised_attention(query, key, value, near, None, self.n_samples, self.sampling, self.training)


Masks = tuple[Tensor, Tensor | None]
"""(n_heads, n_structures, n_max, n_max) each: exp(b_h)·env, images added, and f̂_h; None without a far field."""


class MaskedRandomisedAttention(AttentionLayer[FourierContext, Masks]):
    """One layer with the positional mask of DESIGN §3.

    Its near part is exp(b_h)·env on neighbours, its far part f̂. The local RPE has ``n_rbf`` radial functions, f̂
    ``n_weights`` basis functions; see :func:`randomised_attention`.
    """

    def __init__(
        self, dim: int, n_heads: int, n_rbf: int, n_weights: int, n_samples: int, sampling: Sampling, dropout: float
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.n_samples = n_samples
        self.sampling = sampling
        self.query_key = BoundedProjection(dim, n_heads)
        self.value = nn.Linear(dim, dim)
        self.local_rpe = LocalRPE(n_rbf, n_heads)
        self.rpe_weights = nn.Parameter(RPE_WEIGHT_STD * torch.randn(n_weights, n_heads))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, dim)

    def prepare(self, geometry: Geometry, context: FourierContext) -> Masks:
        """See :class:`AttentionLayer`."""
        near, layout, found = self.local_rpe(geometry, context.neighbourhood), geometry.layout.far, []
        for far in context.fields:
            matrix = far.matrix(self.rpe_weights)
            gap = near.shape[-1] - matrix.shape[-1]
            found.append(functional.pad(matrix, (0, gap, 0, gap)))
        if not found or layout is None:
            return near, None
        order = torch.cat([group.index for group in layout.groups]).argsort()
        return near, torch.cat(found, dim=1).index_select(1, order)

    def forward(self, x: Tensor, geometry: Geometry, prepared: Masks) -> Tensor:
        """See :class:`AttentionLayer`."""
        near, far = prepared
        value = self.dropout(split_heads(self.value(x), self.n_heads))
        q, k, v = (geometry.pad(t).permute(2, 0, 1, 3) for t in (*self.query_key(x), value))
        out = randomised_attention(q, k, v, near, far, self.n_samples, self.sampling, self.training)
        return self.output(geometry.pack(out.permute(1, 2, 0, 3).flatten(2)))


def build_randomised(config: RandomisedConfig, sizes: Sizes) -> Built:
    """Build RA without positions."""
    return SharedPositions(), [
        RandomisedAttention(sizes.dim, sizes.n_heads, config.n_samples, config.sampling, sizes.dropout)
        for _ in range(sizes.n_layers)
    ]


def build_randomised_rpe(config: RandomisedRpeConfig, sizes: Sizes) -> Built:
    """Build RA with the local RPE and f̂ as its positional mask, on pairs."""
    rpe = build_rpe(config, config.spectrum, sizes.seed)
    method = ExactMethod(config.frequencies, config.tolerance)
    positions = FourierPositions(rpe, method, moments=False, dense=True)
    return positions, [
        MaskedRandomisedAttention(
            sizes.dim,
            sizes.n_heads,
            sizes.n_rbf,
            positions.n_weights,
            config.n_samples,
            config.sampling,
            sizes.dropout,
        )
        for _ in range(sizes.n_layers)
    ]
