"""LARA: linear randomised attention (Zheng et al. 2022, arXiv 2204.04667, §4 and appendix G.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from molflt.attention.kernels.kernel import Features, Kernel
from molflt.attention.kernels.landmarks import Segments, SoftClusters


class LaraKernel(Kernel):
    """Features with one ω_c from each of C proposals that follow the queries and keys of the structure.

        ω_c ~ q_c = N(q̃_c + k̃_c, I)                                                      proposals, Eq. 34
        b_c(ω) = q_c(ω)/Σ_c' q_c'(ω),   r_nc = softmax_c(q_n·q̃_c)
        α_nc = b_c(ω_c) [1 + r_nc − Σ_c' b_c'(ω_c) r_nc']                                 weights, Eq. 27
        φ_Q(q_n)_c = α_nc N(ω_c; 0, I)/q_c(ω_c) ξ(q_n, ω_c),   φ_K(k)_c = ξ(k, ω_c),   ξ(x, ω) = exp(ω·x − |x|²/2)

    As functions of ω the weights sum to one, so φ_Q·φ_K is the multiple importance sampling estimate of
    ∫ N(ω; 0, I) ξ(q, ω) ξ(k, ω) dω = exp(q·k) (Veach and Guibas 1995): unbiased for whatever landmarks q̃, k̃. Its
    normalised sum is Eq. 10.

    The correction r_nc − Σ b r favours proposals near the query. As in the optimal weights of Eq. 27 the density
    stands before it, here relative to the sum of all densities, so that α is never negative and α N/q_c stays
    bounded. The decoupled form of Eq. 38, b_c + r_nc − 1/C, has neither property: its α N/q_c is unbounded and of
    both signs, and its normalised sum is off by ten times its own size as soon as ω carries noise.

    While training, ω is drawn anew in every call; in evaluation it is the mean of its proposal: nothing is random.

    Args:
        landmarks: how queries and keys are averaged.
    """

    def __init__(self, landmarks: SoftClusters | Segments) -> None:
        super().__init__()
        self.landmarks = landmarks
        self.n_features = landmarks.n_landmarks

    def forward(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> tuple[Features, Features]:
        """See :class:`Kernel`."""
        average = self.landmarks(query, mask)
        centre = average @ query
        mean = centre + average @ key
        omega = mean + torch.randn_like(mean) if self.training else mean
        # log q_c'(ω_c) without the constant that all share, (..., c, c').
        log_density = -0.5 * (omega[..., :, None, :] - mean[..., None, :, :]).square().sum(dim=-1)
        balance = torch.softmax(log_density, dim=-1)
        similarity = torch.softmax(query @ centre.transpose(-1, -2), dim=-1)
        correction = similarity - similarity @ balance.transpose(-1, -2)
        alpha = balance.diagonal(dim1=-2, dim2=-1)[..., None, :] * (1 + correction)
        # log N(ω; 0, I) − log q_c(ω).
        log_ratio = (0.5 * mean * mean - omega * mean).sum(dim=-1)[..., None, :]
        return Features(_log_xi(query, omega) + log_ratio, alpha), Features(_log_xi(key, omega))


def _log_xi(x: Tensor, omega: Tensor) -> Tensor:
    """ω_c·x − |x|²/2: (batch, heads, n, c) and (batch, heads, C, c) → (batch, heads, n, C)."""
    return x @ omega.transpose(-1, -2) - 0.5 * (x * x).sum(dim=-1, keepdim=True)
