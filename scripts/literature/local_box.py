"""The local RPE of the paper and its powers: products over axes of B-splines (FLT §4.3), and random frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.attention.far.undamped import plane_waves, wave_features

MAX_POWER = 6
"""Splines of a higher order look like Gaussians."""


class LocalBox:
    """g(ξ) = C Π_j [sin(2πv_jξ_j)/(πξ_j)]^{k_j}; f is zero unless |Δ_j| < k_j v_j on every axis.

        f(Δ) = ∫ g(ξ) e^{2πi Δ·ξ} dξ ≈ Σ_k a_k cos(2πξ_k·Δ),   a_k = g(ξ_k)/(r p(ξ_k)),   ξ_k ~ p        (FLT Eq. 2)

    f is a product over axes of k-fold convolutions of the indicator of [−v, v], (2v)^{k−1} M_k(Δ/2v) with M_k the
    cardinal B-spline: for k = 1 the indicator (FLT Eq. 4), for k = 2 a hat, for k ≥ 3 with k − 2 continuous
    derivatives. C makes f(0) = 1. The axes are special: in R³ this f is invariant under translations but not under
    rotations.

    For k ≥ 2 frequencies are drawn from Student's t with k − 1 degrees of freedom on every axis, whose tail falls as
    slowly as that of g (for k = 2 it is Cauchy's), so that g/p is bounded. Its scale √(3/k)/(2πv) is that of a
    Gaussian with the curvature of g at zero. For k = 1 the integral of |g| diverges, and no density has a bounded
    g/p: it is not sampled.

    Args:
        radii: v_j, one for every axis, in any unit of length.
        powers: k_j, one for every axis, 1 to 6.
    """

    def __init__(self, radii: Sequence[float], powers: Sequence[int]) -> None:
        if len(radii) != len(powers) or min(radii) <= 0 or not all(1 <= k <= MAX_POWER for k in powers):
            raise ValueError(f"needs a positive radius and a power of 1 to {MAX_POWER} for every axis")
        self.radii = torch.tensor(radii, dtype=torch.float64)
        self.powers = tuple(powers)
        self.peaks = tuple(float(cardinal_bspline(torch.zeros((), dtype=torch.float64), k)) for k in powers)

    @property
    def scales(self) -> Tensor:
        """Scale of the proposal on every axis, (ℓ,), in inverse units of length."""
        return (3 / self.radii.new_tensor(self.powers)).sqrt() / (2 * math.pi * self.radii)

    def value(self, displacements: Tensor) -> Tensor:
        """The closed form of f: Δ (..., ℓ) → (...)."""
        x = displacements / (2 * self.radii)
        axes = [cardinal_bspline(x[..., j], k) / self.peaks[j] for j, k in enumerate(self.powers)]
        return torch.stack(axes).prod(dim=0)

    def transform(self, xi: Tensor) -> Tensor:
        """The spectrum g: ξ (..., ℓ) → (...)."""
        side = 2 * self.radii
        # torch.sinc(x) = sin(πx)/(πx), with value and slope right at zero.
        lobes = torch.sinc(side * xi)
        axes = [side[j] * lobes[..., j] ** k / self.peaks[j] for j, k in enumerate(self.powers)]
        return torch.stack(axes).prod(dim=0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, ℓ) independent draws from p: z/√(χ²/d) on every axis, with d = k − 1 degrees of freedom."""
        self._refuse_indicator()
        axes = []
        for degrees in (k - 1 for k in self.powers):
            normal = torch.randn(n, 1 + degrees, generator=generator, dtype=torch.float64)
            axes.append(normal[:, :1] / normal[:, 1:].square().mean(dim=1, keepdim=True).sqrt())
        return self.scales * torch.cat(axes, dim=1)

    def log_prob(self, xi: Tensor) -> Tensor:
        """Logarithm of p, normalised over R^ℓ: ξ (..., ℓ) → (...)."""
        self._refuse_indicator()
        squared = (xi / self.scales) ** 2
        axes = [_student_log_density(squared[..., j], k - 1) for j, k in enumerate(self.powers)]
        return (torch.stack(axes, dim=-1) - self.scales.log()).sum(dim=-1)

    def coefficients(self, xi: Tensor) -> Tensor:
        """a_k of drawn frequencies: (r, ℓ) → (r,)."""
        return self.transform(xi) / (len(xi) * self.log_prob(xi).exp())

    def features(self, query: Tensor, key: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
        """φ_Q (n, 2r) and φ_K (m, 2r) of positions (n, ℓ) and (m, ℓ), with φ_Q·φ_K = Σ_k a_k cos(2πξ_k·Δ)."""
        coefficients = self.coefficients(xi)
        phi_q, _ = wave_features(plane_waves(query, xi), coefficients)
        _, phi_k = wave_features(plane_waves(key, xi), coefficients)
        return phi_q, phi_k

    def _refuse_indicator(self) -> None:
        if 1 in self.powers:
            raise ValueError(
                "a local RPE of power 1 (the indicator) cannot be sampled: the integral of |g| diverges, and with it"
                " the variance under any density; take powers of 2 or more"
            )


def _student_log_density(squared: Tensor, degrees: int) -> Tensor:
    """Logarithm of Γ((d+1)/2)/(Γ(d/2) √(πd)) · (1 + x²/d)^{−(d+1)/2}, d the degrees of freedom."""
    half = (degrees + 1) / 2
    norm = math.lgamma(half) - math.lgamma(degrees / 2) - 0.5 * math.log(math.pi * degrees)
    return norm - half * torch.log1p(squared / degrees)


def cardinal_bspline(x: Tensor, order: int) -> Tensor:
    """M_k(x), the k-fold convolution of the indicator of [−½, ½]: polynomials of degree k − 1, zero beyond ±k/2.

    The recurrence of Cox and de Boor (de Boor, A Practical Guide to Splines, 1978, ch. X) adds terms of one sign
    only; a sum of truncated powers would cancel. An indicator is ½ at its ends, which is the value to which its
    Fourier integral converges.

    Args:
        x: any shape.
        order: k, at least 1.
    """
    knots = torch.arange(order + 1, dtype=x.dtype, device=x.device) - order / 2
    from_knots = x[..., None] - knots
    # All signs come from one array, so a rounding error at a knot cannot count a point twice or not at all.
    spline = -from_knots.sign().diff(dim=-1) / 2
    for m in range(2, order + 1):
        rising = from_knots[..., : order + 1 - m] * spline[..., :-1]
        falling = -from_knots[..., m:] * spline[..., 1:]
        spline = (rising + falling) / (m - 1)
    return spline.squeeze(-1)
