"""LARA, linear randomised attention (Zheng et al. 2022, arXiv 2204.04667, §4, appendix G.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from molflt.attention.kernels import Features, Kernel
from molflt.attention.kernels.random_features import log_xi


class Landmarks(nn.Module):
    """Weights of the averages over tokens that make the landmarks.

    (batch, heads, n, c) → (batch, heads, C, n) or (C, n).
    """

    n_landmarks: int


class SoftClusters(Landmarks):
    """Landmarks for unordered atoms: averages over a soft partition that each head learns.

    Each head has C clusters. Atom i belongs to cluster c with weight softmax_c(e_c·q_i/|q_i|), and a landmark is the
    average over its cluster. A permutation of the atoms permutes the weights and leaves every average unchanged, and
    an n-fold supercell has the averages of its cell. LARA only needs landmarks that do not depend on the noise of ω:
    its weights sum to one for any proposals.
    """

    def __init__(self, n_heads: int, n_landmarks: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_landmarks = n_landmarks
        start = torch.randn(n_heads, n_landmarks, dim, generator=generator, dtype=torch.float64)
        self.centres = nn.Parameter(_SHARPNESS * start.to(torch.get_default_dtype()))

    def forward(self, query: Tensor, mask: Tensor | None) -> Tensor:
        """Return the weights of the averages, (batch, heads, C, n).

        Every row sums to one over the tokens that exist.

        Args:
            query: (batch, heads, n, c).
            mask: (batch, 1, n, 1) bool, which tokens exist; None for all.
        """
        shares = torch.softmax(self.centres @ functional.normalize(query, dim=-1).transpose(-1, -2), dim=-2)
        if mask is not None:
            shares = shares * mask.transpose(-1, -2)
        return shares / shares.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)


_SHARPNESS = 3.0
"""Initial standard deviation of e, large enough that clusters differ from the first step on."""


class LaraKernel(Kernel):
    """Features with one ω_c from each of C proposals that follow a structure's queries and keys.

        ω_c ~ q_c = N(q̃_c + k̃_c, I)                                                      proposals, Eq. 34
        b_c(ω) = q_c(ω)/Σ_c' q_c'(ω),   r_nc = softmax_c(q_n·q̃_c)
        α_nc = b_c(ω_c) [1 + r_nc − Σ_c' b_c'(ω_c) r_nc']                                 weights, Eq. 27
        φ_Q(q_n)_c = α_nc N(ω_c; 0, I)/q_c(ω_c) ξ(q_n, ω_c),   φ_K(k)_c = ξ(k, ω_c),   ξ(x, ω) = exp(ω·x − |x|²/2)

    As functions of ω the weights sum to one, so φ_Q·φ_K is the multiple importance sampling estimate of
    ∫ N(ω; 0, I) ξ(q, ω) ξ(k, ω) dω = exp(q·k) (Veach and Guibas 1995): unbiased for any landmarks q̃, k̃. Its
    normalised sum is Eq. 10.

    The correction r_nc − Σ b r favours proposals near the query. As in the optimal weights of Eq. 27 the density
    stands before it, here relative to the sum of all densities, so that α is never negative and α N/q_c stays
    bounded. The decoupled form of Eq. 38, b_c + r_nc − 1/C, has neither property: its α N/q_c is unbounded and of
    both signs, and its normalised sum is off by ten times its own size as soon as ω carries noise.

    In training ω is drawn anew in every call. In evaluation it is the mean of its proposal, and nothing is random.
    """

    def __init__(self, landmarks: Landmarks) -> None:
        super().__init__()
        self.landmarks = landmarks
        self.n_features = landmarks.n_landmarks

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        average = self.landmarks(query, mask)
        centre = average @ query
        mean = centre + average @ key
        omega = mean + torch.randn_like(mean) if self.training else mean
        # log q_c'(ω_c) without the common constant, (..., c, c').
        log_density = -0.5 * (omega[..., :, None, :] - mean[..., None, :, :]).square().sum(dim=-1)
        balance = torch.softmax(log_density, dim=-1)
        similarity = torch.softmax(query @ centre.transpose(-1, -2), dim=-1)
        correction = similarity - similarity @ balance.transpose(-1, -2)
        alpha = balance.diagonal(dim1=-2, dim2=-1)[..., None, :] * (1 + correction)
        # log N(ω; 0, I) − log q_c(ω).
        log_ratio = (0.5 * mean * mean - omega * mean).sum(dim=-1)[..., None, :]
        return Features(log_xi(query, omega) + log_ratio, alpha), Features(log_xi(key, omega))
