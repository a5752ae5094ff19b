"""The Gaussian RPE function f and its spectrum g (FLT §5.3; DESIGN §2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.smooth import gaussian

REFERENCE_DENSITY = 0.05
"""ρ₀ in atoms/Å³, about that of condensed matter. It is fixed, so that weights mean the same for all data sets."""


class GaussianRPE(nn.Module):
    """f(Δ) = Σ_t w_t n_t exp(−|Δ|²/2σ_t²), g(ξ) = Σ_t w_t n_t (2πσ_t²)^{3/2} exp(−2π²σ_t²|ξ|²).

    The widths σ_t are held here and shared by all layers and heads; each of those has weights w_t of its own. The
    factor n_t keeps wide Gaussians, which sum over many atoms, from swamping the rest. It is one over the number of
    atoms that a Gaussian counts: c_t = ρ₀(2πσ_t²)^{3/2} others and the atom itself. An isolated structure of N atoms
    has no more than N − 1 others, so there 1/n_t = 1 + c_t (N − 1)/(c_t + N − 1); dividing by atoms that are not
    there would leave the far field too weak to learn from.

    Args:
        n_basis: T, the number of Gaussians.
        sigma_min: Å, the narrowest width at the start.
        sigma_max: Å, the widest width at the start.
        n_atoms: N of an isolated structure; None where structures are periodic and have no end.
    """

    MARGIN = 1.25

    def __init__(self, n_basis: int, sigma_min: float, sigma_max: float, n_atoms: float | None = None) -> None:
        super().__init__()
        self.n_basis = n_basis
        self.n_atoms = n_atoms
        # Widths stay within these bounds by construction; cost and guard of every numerical method follow from them.
        self.sigma_low = sigma_min / self.MARGIN
        self.sigma_high = sigma_max * self.MARGIN
        start = torch.exp(torch.linspace(math.log(sigma_min), math.log(sigma_max), n_basis))
        fraction = torch.log(start / self.sigma_low) / math.log(self.sigma_high / self.sigma_low)
        self.raw_widths = nn.Parameter(torch.logit(fraction))

    @property
    def widths(self) -> Tensor:
        """σ_t, (n_basis,) Å, between ``sigma_low`` and ``sigma_high``."""
        return self.sigma_low * (self.sigma_high / self.sigma_low) ** torch.sigmoid(self.raw_widths)

    def forward(self) -> GaussianBasis:
        """The basis functions at the present widths, computed once per batch."""
        return GaussianBasis(self.widths, self.n_atoms)


class GaussianBasis:
    """The functions n_t exp(−|Δ|²/2σ_t²) for all t, in real space and in reciprocal space.

    Attributes:
        widths: σ_t, (n_basis,) Å.
        n_atoms: see :class:`GaussianRPE`.
        amplitudes: n_t, (n_basis,): the amplitude of f that a weight of one gives.
        narrowest, widest: the smallest and the largest σ_t as numbers, Å.
    """

    def __init__(self, widths: Tensor, n_atoms: float | None = None) -> None:
        self.widths = widths
        self.n_atoms = n_atoms
        others = REFERENCE_DENSITY * (2 * math.pi * widths**2) ** 1.5
        if n_atoms is not None:
            others = others * (n_atoms - 1) / (others + (n_atoms - 1))
        self.amplitudes = 1 / (1 + others)
        self.narrowest, self.widest = (float(x) for x in torch.aminmax(widths.detach()))

    def __len__(self) -> int:
        return int(self.widths.shape[0])

    def some(self, chosen: Tensor) -> GaussianBasis:
        """The basis functions of the given indices."""
        return GaussianBasis(self.widths[chosen], self.n_atoms)

    def values(self, squared_distances: Tensor) -> Tensor:
        """n_t exp(−d²/2σ_t²): (...) Å² → (..., n_basis)."""
        return self.amplitudes * gaussian(squared_distances[..., None] / (2 * self.widths**2))

    def spectra(self, xi: Tensor) -> Tensor:
        """The Fourier transform of each of them at |ξ| (...) 1/Å → (..., n_basis) Å³."""
        variance = self.widths**2
        volume = self.amplitudes * (2 * math.pi * variance) ** 1.5
        return volume * torch.exp(-2 * math.pi**2 * variance * xi[..., None] ** 2)


def cutoff_factor(tolerance: float) -> float:
    """The c with exp(−c²/2) = tolerance/10, beyond which a Gaussian or its transform is left out.

    The factor of ten is there because what is left out is the integral of the tail and not its first value.
    """
    return math.sqrt(2 * math.log(10 / tolerance))


TAPER = 1.08
"""The spectrum is whole up to ξ_c and tapered to zero at TAPER·ξ_c, so that nodes enter with a weight of zero."""
