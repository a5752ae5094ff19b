"""The local RPE of the paper and its powers: a product over axes of B-splines (FLT §4.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from molflt.errors import InputError
from molflt.literature.spectra.bochner import student_log_density, student_noise
from molflt.literature.spectra.spectrum import Spectrum, log_parameter

MAX_POWER = 6
"""Splines of a higher order look like Gaussians; use a Gaussian instead."""


class LocalBox(Spectrum):
    """g(ξ) = C Π_j [sin(2πv_jξ_j)/(πξ_j)]^{k_j}; f is zero unless |Δ_j| < k_j v_j on every axis.

    f is a product over axes of k-fold convolutions of the indicator of [−v, v], (2v)^{k−1} M_k(Δ/2v) with M_k the
    cardinal B-spline: for k = 1 the indicator (FLT Eq. 4), for k = 2 a hat, for k ≥ 3 with k − 2 continuous
    derivatives. C makes f(0) = 1, so that learning a radius does not change an amplitude. The axes are special: in R³
    this f is invariant under translations but not under rotations.

    For k ≥ 2 frequencies are drawn from Student's t with k − 1 degrees of freedom on every axis, whose tail falls as
    slowly as that of g (for k = 2 it is Cauchy's), so that g/p is bounded. Its scale √(3/k)/(2πv) is that of a
    Gaussian with the curvature of g at zero. For k = 1 the integral of |g| diverges, and no density has a bounded
    g/p: it is not sampled.

    Args:
        radii: v_j, one for every axis, Å, at the start.
        powers: k_j, one for every axis, 1 to 6.

    Raises:
        InputError: a radius is not positive, a power is out of range, or their numbers differ.
    """

    def __init__(self, radii: Sequence[float], powers: Sequence[int]) -> None:
        super().__init__()
        self.log_radii = log_parameter(radii, "radii")
        if len(radii) != len(powers):
            raise InputError(f"got {len(radii)} radii and {len(powers)} powers; give one of each for every axis")
        if not all(1 <= k <= MAX_POWER for k in powers):
            raise InputError(f"powers must be between 1 and {MAX_POWER}, got {list(powers)}")
        self.dim = len(radii)
        self.powers = tuple(powers)
        self.peaks = tuple(float(cardinal_bspline(torch.zeros((), dtype=torch.float64), k)) for k in powers)

    @property
    def radii(self) -> Tensor:
        """v_j, (ℓ,) Å."""
        return self.log_radii.exp()

    @property
    def scales(self) -> Tensor:
        """(ℓ,) 1/Å, the scale of the proposal on every axis."""
        return (3 / self.radii.new_tensor(self.powers)).sqrt() / (2 * math.pi * self.radii)

    def value(self, displacements: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        x = displacements / (2 * self.radii)
        axes = [cardinal_bspline(x[..., j], k) / self.peaks[j] for j, k in enumerate(self.powers)]
        return torch.stack(axes).prod(dim=0)

    def transform(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        side = 2 * self.radii
        # torch.sinc(x) = sin(πx)/(πx), with value and slope right at zero.
        lobes = torch.sinc(side * xi)
        axes = [side[j] * lobes[..., j] ** k / self.peaks[j] for j, k in enumerate(self.powers)]
        return torch.stack(axes).prod(dim=0)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """See :class:`Spectrum`.

        Raises:
            InputError: a power is 1.
        """
        self._refuse_indicator()
        axes = [student_noise(n, 1, k - 1, generator, self.log_radii) for k in self.powers]
        return self.scales * torch.cat(axes, dim=1)

    def log_prob(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`.

        Raises:
            InputError: a power is 1.
        """
        self._refuse_indicator()
        squared = (xi / self.scales) ** 2
        axes = [student_log_density(squared[..., j], k - 1, 1) for j, k in enumerate(self.powers)]
        return (torch.stack(axes, dim=-1) - self.scales.log()).sum(dim=-1)

    def _refuse_indicator(self) -> None:
        if 1 in self.powers:
            raise InputError(
                "a local RPE of power 1 (the indicator) cannot be sampled: the integral of |g| diverges, and with it"
                " the variance under any density; take powers of 2 or more"
            )


def cardinal_bspline(x: Tensor, order: int) -> Tensor:
    """M_k(x), the k-fold convolution of the indicator of [−½, ½]: polynomials of degree k − 1, zero beyond ±k/2.

    The recurrence of Cox and de Boor (de Boor, A Practical Guide to Splines, 1978, ch. X) adds terms of one sign
    only; a sum of truncated powers would cancel. An indicator is ½ at its ends, which is the value to which its
    Fourier integral converges, and which makes derivatives at a kink the mean of those from either side.

    Args:
        x: any shape.
        order: k, at least 1.

    Returns:
        The shape of ``x``, with derivatives of all orders (zero from order k on).
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
