"""RPE of FLT on sequences and grids (arXiv 2302.01925, §4.1, §4.3, appendix B.1).

The unit of length. Frequencies are drawn from the standard Gaussian, in which a wave has a period of about one unit.
With tokens one unit apart, as the paper writes, six frequencies of ten lie beyond ½, the shortest wave a sequence can
hold, and are indistinguishable from slower ones; a function that reaches over many tokens has almost all of g where
almost no frequency falls. So positions are divided by a number of tokens. With the default of 16 no frequency comes
near ½ per token; the fastest of 32 have periods of about 7 tokens, the slowest one of several hundred, like the
paper's sequences of 512; and a Gaussian of width 1 in g is one of 16/2π = 2.5 tokens in f. For a grid take a quarter
of its side: in the plane few frequencies are small in both components.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.far.undamped import plane_waves, wave_features

UNIT = 16.0
"""Tokens per unit of length."""


class FourierRpe(nn.Module):
    """f(Δ) for every head, estimated by Σ_k a_k cos(2πξ_k·Δ) with a_k = g(ξ_k)/(r p(ξ_k)) (Theorem 4.1).

    The cosine is the real part of the paper's waves, and f that of the transform of g. The frequencies stay as drawn.
    In the paper all layers share one RPE: give the same module to each.

    Args:
        n_heads: number of heads.
        n_terms: T, the terms of g.
        n_frequencies: r.
        generator: of the frequencies and of the start of the parameters.
        dim: ℓ, 1 for sequences and 2 for grids.
        unit: tokens per unit of length; the parameters of a spectrum are in that unit and its inverse.
    """

    def __init__(
        self,
        n_heads: int,
        n_terms: int,
        n_frequencies: int,
        generator: torch.Generator,
        dim: int = 1,
        unit: float = UNIT,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.unit = unit
        self.width = 2 * n_frequencies
        self.xi: Tensor
        drawn = torch.randn(n_frequencies, dim, generator=generator, dtype=torch.float64)
        self.register_buffer("xi", drawn.to(torch.get_default_dtype()))
        self.weights = _start(0.1, (n_heads, n_terms), generator)
        self.add_parameters(n_heads, n_terms, generator)

    def add_parameters(self, n_heads: int, n_terms: int, generator: torch.Generator) -> None:
        """The parameters of g besides the weights w, at their start."""
        raise NotImplementedError

    def transform(self, xi: Tensor) -> Tensor:
        """The spectrum g: ξ (r, ℓ) in inverse units → (heads, r)."""
        raise NotImplementedError

    def coefficients(self) -> Tensor:
        """a_k of the drawn frequencies, (heads, r), p the standard Gaussian."""
        wide = self.xi.to(torch.float64)
        log_p = -0.5 * wide.square().sum(dim=-1) - self.dim / 2 * math.log(2 * math.pi)
        return self.transform(self.xi) / (len(wide) * log_p.exp()).to(self.xi.dtype)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """N₁ and N₂ᵀ of Algorithm 1, (heads, n, 2r) each: N₁·N₂ is the estimate.

        Args:
            positions: (n, ℓ) in tokens.
        """
        waves = plane_waves(positions.to(torch.float64) / self.unit, self.xi)
        coefficients = self.coefficients()[:, None, :]
        return wave_features(waves, coefficients, torch.finfo(coefficients.dtype).eps)


class GaussianMixtureRpe(FourierRpe):
    """g(ξ) = Σ_t w_t exp(−|ξ − μ_t|²/2σ_t²), f(Δ) = Σ_t w_t (2πσ_t²)^{ℓ/2} exp(−2π²σ_t²|Δ|²) cos(2πμ_t·Δ).

    The variance of the estimate is finite while σ_t² < 2 for all t, and |g|/p is bounded while σ_t < 1.
    Arguments as for :class:`FourierRpe`.
    """

    def add_parameters(self, n_heads: int, n_terms: int, generator: torch.Generator) -> None:
        """See :class:`FourierRpe`."""
        self.means = _start(0.5, (n_heads, n_terms, self.dim), generator)
        # With the default unit f starts from 2.5 to 25 tokens wide.
        self.log_widths = nn.Parameter(_geometric(0.1, 1.0, n_terms).repeat(n_heads, 1))

    def transform(self, xi: Tensor) -> Tensor:
        """See :class:`FourierRpe`."""
        squared = (xi[:, None, :] - self.means[:, None]).square().sum(dim=-1)
        return (self.weights[:, None] * torch.exp(-0.5 * squared * torch.exp(-2 * self.log_widths)[:, None])).sum(-1)


class LocalRpe(FourierRpe):
    """g(ξ) = Σ_t w_t Π_a sin(2πv_ta ξ_a)/(πξ_a), f(Δ) = Σ_t w_t Π_a 1[|Δ_a| ≤ v_ta] (appendix B.1, Eqs 20 and 21).

    |g| falls like 1/|ξ|, so its integral and the mean of |a_k| diverge: Theorem 4.1 does not cover this g. What a
    model sees is Σ_k a_k cos(2πξ_k·Δ) of the r frequencies it has, which need not be near f. Arguments as for
    :class:`FourierRpe`.
    """

    def add_parameters(self, n_heads: int, n_terms: int, generator: torch.Generator) -> None:
        """See :class:`FourierRpe`."""
        # With the default unit the radii start from 2 to 32 tokens.
        self.log_radii = nn.Parameter(_geometric(0.125, 2.0, n_terms)[:, None].repeat(n_heads, 1, self.dim))

    def transform(self, xi: Tensor) -> Tensor:
        """See :class:`FourierRpe`."""
        side = 2 * self.log_radii.exp()[:, None]
        # torch.sinc(x) = sin(πx)/(πx), with value and slope right at zero.
        return (self.weights[:, None] * (side * torch.sinc(side * xi[:, None, :])).prod(dim=-1)).sum(dim=-1)


def _start(scale: float, shape: tuple[int, ...], generator: torch.Generator) -> nn.Parameter:
    """Random and not zero: at a_k = 0 the sign of a_k, and with it the derivative, is zero."""
    drawn = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return nn.Parameter(drawn.to(torch.get_default_dtype()))


def _geometric(first: float, last: float, count: int) -> Tensor:
    """Logarithms of a geometric sequence from ``first`` to ``last``, (count,)."""
    return torch.linspace(math.log(first), math.log(last), count)
