"""A proposal that is a mixture of learnable Gaussians and a guard, weighed as a whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from molflt.attention.frequencies.images import squared_norm
from molflt.attention.spectra.spectrum import normal_noise


class MixtureProposal(nn.Module):
    """p(ξ) = 1/(J+1) [Σ_j ½ N(ξ; ±c_j, s_j² I) + N(ξ; 0, guard² I)].

    A draw picks a component at random and is weighed by the density of the whole mixture, not by that of its
    component: the balance heuristic (Veach & Guibas 1995, one-sample model). A component that has become narrower
    than the spectrum, or has wandered off, then costs variance and cannot make g/p unbounded.

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
