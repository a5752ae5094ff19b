"""Gaussian mixtures with means, whose RPE functions oscillate (FLT §4.3), and a proposal that is such a mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from molflt.attention.smooth import squared_norm
from molflt.errors import InputError
from molflt.literature.spectra.spectrum import Spectrum, check_dimension, log_parameter, normal_noise


class GaussianMixture(Spectrum):
    """f(Δ) = Σ_t w_t exp(−|Δ|²/2σ_t²) cos(2πμ_t·Δ).

        g(ξ) = Σ_t w_t (2πσ_t²)^{ℓ/2} ½ [exp(−2π²σ_t²|ξ − μ_t|²) + exp(−2π²σ_t²|ξ + μ_t|²)]

    The paper's mixture with its Gaussians taken at both signs of μ_t, so that f is real, and with w_t the amplitude
    of f instead of that of g. The proposal has one Gaussian for each of the spectrum, with a centre and a scale of
    its own (FLT §A.4 asks for a p that follows g), and a guard of variance max_t 1/(2πσ_t)² + max_t |μ_t|². With it

        |g|/p ≤ (T + 1) e^{1/2} Σ_t |w_t| (2πσ_t guard)^ℓ

    whatever the proposal learns: the constant c of FLT Theorem A.3 stays finite.

    Args:
        weights: w_t, of any sign, at the start.
        widths: σ_t, Å, at the start.
        means: μ_t, T rows of ℓ numbers, 1/Å, at the start.

    Raises:
        InputError: a width is not positive, or the lists do not fit each other.
    """

    def __init__(self, weights: Sequence[float], widths: Sequence[float], means: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.log_widths = log_parameter(widths, "widths")
        if not len(weights) == len(widths) == len(means) or len({len(row) for row in means}) != 1:
            raise InputError(
                f"got {len(weights)} weights, {len(widths)} widths and {len(means)} means;"
                " give one of each for every Gaussian, all means with the same number of components"
            )
        self.dim = len(means[0])
        check_dimension(self.dim)
        self.weights = nn.Parameter(torch.tensor([float(w) for w in weights]))
        self.means = nn.Parameter(torch.tensor([[float(x) for x in row] for row in means]))
        self.proposal = MixtureProposal(self.means, -self.log_widths - math.log(2 * math.pi))

    @property
    def widths(self) -> Tensor:
        """σ_t, (T,) Å."""
        return self.log_widths.exp()

    @property
    def guard(self) -> Tensor:
        """() 1/Å: standard deviation of the proposal that bounds g/p for every width and mean."""
        return (torch.amax((2 * math.pi * self.widths) ** -2) + torch.amax(squared_norm(self.means))).sqrt()

    def value(self, displacements: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        envelope = torch.exp(-squared_norm(displacements)[..., None] / (2 * self.widths**2))
        phase = 2 * math.pi * displacements @ self.means.to(displacements.dtype).transpose(0, 1)
        return (self.weights * envelope * phase.cos()).sum(dim=-1)

    def transform(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        variance = self.widths**2
        lobes = sum(
            torch.exp(-2 * math.pi**2 * variance * squared_norm(xi[..., None, :] - mean))
            for mean in (self.means, -self.means)
        )
        return (self.weights * (2 * math.pi * variance) ** (self.dim / 2) * lobes / 2).sum(dim=-1)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """See :class:`Spectrum`."""
        return self.proposal.sample(n, self.guard, generator)

    def log_prob(self, xi: Tensor) -> Tensor:
        """See :class:`Spectrum`."""
        found: Tensor = self.proposal.log_prob(xi, self.guard)
        return found


class MixtureProposal(nn.Module):
    """p(ξ) = 1/(J+1) [Σ_j ½ N(ξ; ±c_j, s_j² I) + N(ξ; 0, guard² I)].

    A draw picks a component at random, and is weighted by the density of the whole mixture and not of its component:
    the balance heuristic (Veach & Guibas 1995, one-sample model). A component that has become narrower than the
    spectrum or has moved away then costs variance, but cannot make g/p unbounded.

    Args:
        centres: c, (J, ℓ) 1/Å, at the start.
        log_scales: log s, (J,), s in 1/Å, at the start.
    """

    def __init__(self, centres: Tensor, log_scales: Tensor) -> None:
        super().__init__()
        self.centres = nn.Parameter(centres.detach().clone())
        self.log_scales = nn.Parameter(log_scales.detach().clone())

    @property
    def scales(self) -> Tensor:
        """s, (J,) 1/Å."""
        return self.log_scales.exp()

    def sample(self, n: int, guard: Tensor, generator: torch.Generator) -> Tensor:
        """(n, ℓ) 1/Å, independent.

        Args:
            n: number of draws.
            guard: () 1/Å, the standard deviation of the guard.
            generator: of component, sign and noise.
        """
        centres, scales = self._components(guard)
        component = torch.randint(len(scales), (n,), generator=generator, device=generator.device)
        sign = 2 * torch.randint(2, (n, 1), generator=generator, device=generator.device) - 1
        noise = normal_noise((n, centres.shape[1]), generator, centres)
        component = component.to(centres.device)
        return sign.to(centres) * centres[component] + scales[component, None] * noise

    def log_prob(self, xi: Tensor, guard: Tensor) -> Tensor:
        """Logarithm of p: (..., ℓ) 1/Å → (...)."""
        centres, scales = self._components(guard)
        both = torch.stack([squared_norm(xi[..., None, :] - c) for c in (centres, -centres)])
        log_normal = -both / (2 * scales**2) - centres.shape[1] * torch.log(math.sqrt(2 * math.pi) * scales)
        return torch.logsumexp(log_normal, dim=(0, -1)) - math.log(2 * len(scales))

    def _components(self, guard: Tensor) -> tuple[Tensor, Tensor]:
        """Centres and scales with the guard as the last."""
        centres = torch.cat([self.centres, torch.zeros_like(self.centres[:1])])
        return centres, torch.cat([self.scales, guard[None]])
