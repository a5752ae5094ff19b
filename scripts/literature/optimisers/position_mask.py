"""The Fourier RPE as a mask over positions in R^d, of any d (FLT §4.1 and §5.3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class PositionMask(nn.Module):
    """f_h(Δ) = w_h0 + Σ_t w_ht exp(−|Δ|²/2σ_t²), from the waves ξ = ε/(2πσ_t) with ε ~ N(0, I).

    p is the spectrum of each Gaussian itself, so that a_k = w_ht/r_t is bounded in every dimension: with one common
    proposal g/p varies by e^d. The widths, which are the sampling variances, and the weights are learned, and
    neither knows d. The directions ε belong to a d, and are drawn anew for each. Lengths are those of |Δ|, which the
    caller measures in a unit that fits the points.

    Args:
        n_heads: number of heads.
        n_widths: T.
        n_frequencies: r_t, waves for each width.
    """

    def __init__(self, n_heads: int, n_widths: int = 4, n_frequencies: int = 16) -> None:
        super().__init__()
        self.n_frequencies = n_frequencies
        self.log_widths = nn.Parameter(torch.linspace(math.log(0.2), math.log(1.6), n_widths))
        self.weights = nn.Parameter(torch.zeros(n_heads, n_widths))
        self.constant = nn.Parameter(torch.ones(n_heads))

    def draw(self, dim: int, generator: torch.Generator) -> Tensor:
        """ε, (T r_t, d)."""
        return torch.randn(len(self.log_widths) * self.n_frequencies, dim, generator=generator)

    def forward(self, positions: Tensor, epsilon: Tensor) -> Tensor:
        """The estimate on all pairs: positions (batch, n, d) and ε from :meth:`draw` → (batch, heads, n, n).

        Of a population so small, pairs are the cheaper order.
        """
        scales = torch.exp(-self.log_widths).repeat_interleave(self.n_frequencies)
        phase = (positions @ epsilon.transpose(0, 1)) * scales
        waves = torch.cat([phase.cos(), phase.sin()], dim=-1)[:, None]
        each = self.weights.repeat_interleave(self.n_frequencies, dim=1).repeat(1, 2) / self.n_frequencies
        return (waves * each[:, None]) @ waves.transpose(-1, -2) + self.constant[:, None, None]
