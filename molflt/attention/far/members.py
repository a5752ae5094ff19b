"""Radial basis of the RPE function f of the far field (FLT §5.3; DESIGN §2 and §3, item 7).

Every basis function is a damped wave, b(r) = sinc(κr) exp(−r²/2ρ²), sinc x = sin x/x. At κ = 0 it is a Gaussian. With
κ > 0 it is a sampled frequency of the FLT paper, |ξ| = κ/2π, with its direction averaged and its length smeared over
a width of 1/ρ. Because it is damped it has an image sum, a sum over the reciprocal lattice and a mesh.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import gammaincinv
from torch import Tensor, nn

from molflt.attention.config import MARGIN, SpectrumName
from molflt.attention.far.pairs import members_on_pairs
from molflt.attention.places import Kept

DAMPING = 2.5
"""c_ρ: phase of a wave with ε = 1 over its width, rad; κ = c_ρ ε/ρ."""

REFERENCE_DENSITY = 0.05
"""ρ₀ in atoms/Å³, about that of condensed matter. It is fixed, so that weights mean the same for all data sets."""


class GaussianRPE(nn.Module):
    """f(Δ) = Σ_t w_t n_t b_t(|Δ|), its basis b_t Gaussians, damped waves, or half of each.

    The widths ρ_t are held here and shared by all layers and heads; each of those has weights w_t of its own. The
    factor n_t keeps wide basis functions, which sum over many atoms, from dominating. It is one over the number of
    atoms that a basis function counts: c_t = ρ₀(2πρ_t²)^{3/2} others (for a wave ρ₀·8ρ_t²/κ_t if that is less) and
    the atom itself. An isolated structure of N atoms has no more than N − 1 others, so there
    1/n_t = 1 + c_t (N − 1)/(c_t + N − 1); dividing by missing atoms would leave the far field too weak to learn from.

    A wave has κ_t = 2π s_t ε_t, where ε_t is a fixed quantile of χ₃ and s_t = c_ρ/(2πρ_t) is its scale, the standard
    deviation of the proposal: the paper's learnable sampling variance. A wave with a large ε is wide, so that no
    wave needs a finer grid than the narrowest Gaussian would.

    Args:
        n_basis: T, the size of the basis.
        sigma_min: Å, the narrowest Gaussian at the start.
        sigma_max: Å, the widest basis function at the start.
        n_atoms: N of an isolated structure; None where structures are periodic and have no end.
        spectrum: ``gaussians``, ``sampled`` for waves, or ``both``.
        seed: of the order in which the quantiles are assigned to the waves.
    """

    def __init__(
        self,
        n_basis: int,
        sigma_min: float,
        sigma_max: float,
        n_atoms: float | None = None,
        spectrum: SpectrumName = "gaussians",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.n_basis = n_basis
        self.n_atoms = n_atoms
        n_waves = {"gaussians": 0, "sampled": n_basis, "both": n_basis // 2}[spectrum]
        n_gaussians = n_basis - n_waves
        self.n_waves = n_waves
        self._kept: tuple[Any, tuple[Tensor, Tensor, Tensor | None]] | None = None
        # Widths stay within bounds by construction; cost and guard of every numerical method follow from them.
        self.sigma_low = sigma_min / MARGIN
        self.sigma_high = sigma_max * MARGIN
        order = torch.randperm(n_waves, generator=torch.Generator().manual_seed(seed), device="cpu").numpy()
        epsilon = torch.tensor([0.0] * n_gaussians + quantiles(order).tolist())
        self.epsilon: Tensor | None
        self.register_buffer("epsilon", epsilon if n_waves else None)
        # Where the range is short, waves take its upper half at least.
        self._wave_low_at_most = math.sqrt(sigma_min * sigma_max) / MARGIN
        # Initial widths are a geometric sequence, one of the Gaussians and one of the waves.
        place = torch.cat([torch.linspace(0, 1, n) for n in (n_gaussians, n_waves)])
        start = MARGIN * self._low(epsilon)
        start = torch.exp(torch.log(start) + place * torch.log(sigma_max / start))
        low = self._low(epsilon)
        self.raw_widths = nn.Parameter(torch.logit(torch.log(start / low) / torch.log(self.sigma_high / low)))

    def _low(self, epsilon: Tensor) -> Tensor:
        """The lower bound of each width, (n_basis,) Å."""
        alike = self.sigma_low / equal_widths(DAMPING * epsilon, torch.ones_like(epsilon))
        return alike.clamp(max=max(self._wave_low_at_most, self.sigma_low))

    def _constants(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return lower bounds of the widths, ln of their ranges, and κρ; None if all are Gaussians."""
        if torch.compiler.is_compiling():
            return self._made()
        raw, epsilon = self.raw_widths, self.epsilon
        state = (raw.dtype, raw.device, None if epsilon is None else epsilon._version)
        if self._kept is None or self._kept[0] != state:
            # They may be made during a prediction but must also serve training later.
            with torch.inference_mode(False), torch.no_grad():
                self._kept = state, self._made()
        return self._kept[1]

    def _made(self) -> tuple[Tensor, Tensor, Tensor | None]:
        raw, epsilon = self.raw_widths.detach(), self.epsilon
        low = torch.full_like(raw, self.sigma_low) if epsilon is None else self._low(epsilon)
        return low, torch.log(self.sigma_high / low), None if epsilon is None else DAMPING * epsilon

    @property
    def widths(self) -> Tensor:
        """ρ_t, (n_basis,) Å, between a lower bound, for Gaussians ``sigma_low``, and ``sigma_high``."""
        low, span, _ = self._constants()
        return low * torch.exp(span * torch.sigmoid(self.raw_widths))

    def forward(self) -> GaussianBasis:
        """Return the basis at the present widths; computed once per batch."""
        return GaussianBasis(self.widths, self.n_atoms, self._constants()[2], self.n_waves)


class GaussianBasis:
    """The functions n_t sinc(κ_t r) exp(−r²/2ρ_t²) for all t, in real and reciprocal space.

    Attributes:
        widths: ρ_t, (n_basis,) Å.
        n_atoms: see :class:`GaussianRPE`.
        turned: κ_tρ_t, (n_basis,), which no width changes; None where all are zero.
        n_waves: number of basis functions at the end that may be waves.
        amplitudes: n_t, (n_basis,): the amplitude of f that a weight of one gives.
    """

    def __init__(
        self, widths: Tensor, n_atoms: float | None = None, turned: Tensor | None = None, n_waves: int | None = None
    ) -> None:
        self.widths = widths
        self.n_atoms = n_atoms
        self.turned = turned
        cube: float | Tensor = (2 * math.pi) ** 1.5
        if turned is not None:
            # For waves 8ρ²/κ, if that is less.
            cube = (8 / turned.clamp(min=1e-12)).clamp(max=cube)
        others = REFERENCE_DENSITY * cube * widths**3
        if n_atoms is not None:
            others = others * (n_atoms - 1) / (others + (n_atoms - 1))
        self.amplitudes = 1 / (1 + others)
        self.n_waves = (0 if turned is None else len(widths)) if n_waves is None else n_waves

    @Kept
    def kappa(self) -> Tensor | None:
        """κ_t, (n_basis,) rad/Å; None where all are zero."""
        return None if self.turned is None else self.turned / self.widths

    def __len__(self) -> int:
        return int(self.widths.shape[0])

    def some(self, chosen: Tensor) -> GaussianBasis:
        """Return the basis functions of the given indices."""
        return GaussianBasis(self.widths[chosen], self.n_atoms, None if self.turned is None else self.turned[chosen])

    @Kept
    def widest(self) -> float:
        """The largest ρ_t as a number, Å."""
        return float(self.widths.detach().max())

    def double(self) -> GaussianBasis:
        """Return the same basis in float64 on the CPU."""
        turned = None if self.turned is None else self.turned.double().cpu()
        return GaussianBasis(self.widths.double().cpu(), self.n_atoms, turned, self.n_waves)

    def on_pairs(self, squared_distances: Tensor) -> Tensor:
        """n_t sinc(κ_t r) exp(−r²/2ρ_t²), the basis first: r² (...) Å² → (n_basis, ...)."""
        turns = None if self.turned is None else self.turned**2
        return members_on_pairs(squared_distances, self.amplitudes, self.widths**-2, turns, self.n_waves)

    def spectra(self, xi: Tensor, members_first: bool = False) -> Tensor:
        """Fourier transforms at |ξ|, (...) 1/Å → (..., n_basis) Å³, nowhere negative.

        With k = 2π|ξ| it is n (2πρ²)^{3/2} exp(−ρ²(k − κ)²/2) (1 − e^{−2ρ²kκ})/(2ρ²kκ).

        Args:
            xi: |ξ|, 1/Å.
            members_first: whether ``xi`` is (..., 1, n) and the result (..., n_basis, n).
        """
        volume, widths, turned = (2 * math.pi) ** 1.5 * (self.amplitudes * self.widths**3), self.widths, self.turned
        if members_first:
            volume, widths = volume[:, None], widths[:, None]
            turned = None if turned is None else turned[:, None]
        else:
            xi = xi[..., None]
        x = (2 * math.pi * widths) * xi
        if turned is None:
            return volume * torch.exp(-0.5 * x * x)
        return volume * torch.exp(-0.5 * (x - turned) ** 2) * _mean_decay((2 * turned) * x)

    @property
    def reach(self) -> float:
        """Distance beyond which every basis function is below 1e-14 and no image is summed, Å."""
        return self.widest * math.sqrt(2 * math.log(1e14))

    def cutoffs(self, tolerance: float) -> Tensor:
        """Cutoff |ξ| of each transform to ``tolerance``, (n_basis,) 1/Å, float64: (κ + c/ρ)/2π.

        It has no gradient: its effect is below the tolerance, and so is the derivative with respect to a width.
        """
        # Truncation errors add up over the images of a small cell.
        widths, end = self.widths.detach().to(torch.float64), cutoff_factor(tolerance / 4)
        turned = end if self.turned is None else self.turned.to(torch.float64) + end
        return turned / (2 * math.pi * widths)

    def equal_widths(self) -> Tensor:
        """Widths of Gaussians that need the same grid as the basis, (n_basis,) Å; no gradient."""
        widths = self.widths.detach()
        return widths if self.turned is None else equal_widths(self.turned / widths, widths)


def equal_widths(kappa: Tensor, widths: Tensor) -> Tensor:
    """The widths of the Gaussians that need the same grid as given waves, Å.

    The error of splines of order six for a wave grows with the sixth power of its wave number along each axis. The
    mean of that power over the spectrum of a basis function is −∂⁶b/∂x⁶ at zero: 15/σ⁶ for a Gaussian and
    κ⁶/7 + 3κ⁴/ρ² + 15κ²/ρ⁴ + 15/ρ⁶ for a wave.

    Args:
        kappa: κ, rad/Å.
        widths: ρ, Å, of the same shape.
    """
    turned = (kappa * widths) ** 2
    return widths * (1 + turned * (1 + turned * (1 / 5 + turned / 105))) ** (-1 / 6)


def _mean_decay(x: Tensor) -> Tensor:
    """(1 − e^{−x})/x, the mean of e^{−y} for y from 0 to x; smooth at 0."""
    safe = x.clamp(min=1e-30)
    decay = torch.expm1(-safe) / -safe
    if torch.compiler.is_compiling():
        # Compilers for CPUs replace expm1 by exp(x) − 1, which rounds to zero near zero.
        return torch.where(x < 1e-3, 1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5))), decay)
    return decay


def quantiles(order: np.ndarray) -> np.ndarray:
    """The quantiles of χ₃, the length of a vector from N(0, I), at (j + ½)/n for j in a given order of all n."""
    # The square of such a length is twice a gamma variable of shape 3/2; scipy.stats takes long to import.
    return np.asarray(np.sqrt(2 * gammaincinv(1.5, (order + 0.5) / max(len(order), 1))))


def spacing_in_widths(tolerance: float) -> float:
    """Return the h/σ at which spacing h represents a Gaussian of width σ to ``tolerance``."""
    return _SPACING_AT_ONE * tolerance**_SPACING_POWER


_SPACING_AT_ONE, _SPACING_POWER = 1.62, 0.135
"""h/σ = 0.64 at ε = 1e-3, 0.47 at 1e-4, 0.34 at 1e-5: measured with a margin. Tests compare with the image sum."""


def cutoff_factor(tolerance: float) -> float:
    """Return c with exp(−c²/2) = tolerance/10, where a Gaussian or its transform is cut off.

    The factor of ten is there because the error is the integral of the tail and not its first value.
    """
    return math.sqrt(2 * math.log(10 / tolerance))


TAPER = 1.08
"""The spectrum is complete up to ξ_c and tapered to zero at TAPER·ξ_c, so that nodes enter with zero weight."""
