"""The paper's own estimator of f from r undamped frequencies, and its invariant form.

These are items 1 and 2 of DESIGN §3. An estimator is part of the model: with few samples f̂ differs from f by tens of
per cent, and training adapts the weights to f̂. Models record their method and refuse another one.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from molflt.attention.build import Built, Sizes, build_rpe, with_far_field
from molflt.attention.config import ConcatConfig, Directions, Proposal, Radii, SpectrumKind, UndampedConfig
from molflt.attention.far.field import FarField, FarMethod, of_groups
from molflt.attention.far.members import GaussianBasis, GaussianRPE, quantiles
from molflt.attention.far.pairs import members_on_pairs, squared_norm, sum_over_pairs
from molflt.attention.far.waves import OnWaves
from molflt.attention.far.ways import FarPlan
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import envelope, safe_norm

SCALE_MARGIN = 2.0


class UndampedMethod(FarMethod):
    """f̂(Δ) = Σ_k a_k cos(2πξ_k·Δ), or Σ_k a_k sinc(2π|ξ_k||Δ|) averaged over directions.

    The frequencies are ξ_k = μ_k + s_k ε_k. The ε_k ~ N(0, I) are drawn once and saved with the model, the s_k are
    learnable, the μ_k zero or learnable ("learnable means and variances", FLT appendix A.4 and B.3). In
    a_k = g(ξ_k)/(r p(ξ_k)) p is the mixture of all r proposals (balance heuristic) or each sample's own density (the
    paper; its variance is infinite). The last proposal is a fixed guard, s = 1/(2πσ_low), which bounds g/p for every
    width the RPE can take.

    With averaged directions it is quadratic.

    In a periodic structure f̂, which does not decay, is summed over images under a smooth envelope of radius
    ``periodic_radius``. That keeps every invariance and makes the envelope part of the estimator.

    Args:
        rpe: the RPE function whose spectrum is sampled; it sets the range of the scales.
        n_frequencies: r.
        radii: whether the |ε_k| are drawn from χ₃ or placed at its quantiles (j + ½)/r, spread over the scales.
        proposal: the density p, ``mixture`` or ``own``.
        seed: of the draw.
        means: whether the proposals have learnable means μ_k, which start at zero; for random directions only.
        directions: ``averaged`` is rotation-invariant for every draw, ``random`` only in expectation.
        spectrum: with ``gaussian`` the a_k follow from g, with ``free`` they are the weights of layer and head.
        periodic_radius: Å.
    """

    def __init__(
        self,
        rpe: GaussianRPE,
        n_frequencies: int,
        radii: Radii,
        proposal: Proposal,
        seed: int,
        means: bool = False,
        directions: Directions = "random",
        spectrum: SpectrumKind = "gaussian",
        periodic_radius: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_frequencies = n_frequencies
        self.directions = directions
        self.proposal = proposal
        self.spectrum = spectrum
        self.periodic_radius = periodic_radius
        self.epsilon = nn.Buffer(_draw(n_frequencies, radii, seed).to(torch.get_default_dtype()))

        self.guard = 1 / (2 * math.pi * rpe.sigma_low)
        self.scale_low = 1 / (2 * math.pi * rpe.sigma_high * SCALE_MARGIN)
        self.scale_high = self.guard * SCALE_MARGIN
        start = torch.exp(
            torch.linspace(math.log(1 / (2 * math.pi * rpe.sigma_high)), math.log(self.guard), n_frequencies)
        )[:-1]
        fraction = torch.log(start / self.scale_low) / math.log(self.scale_high / self.scale_low)
        self.raw_scales = nn.Parameter(torch.logit(fraction))
        self.free_means = nn.Parameter(torch.zeros(n_frequencies - 1, 3)) if means else None

    def n_weights(self, n_basis: int) -> int:
        """See :class:`FarMethod`: T, or r when the spectrum is free."""
        return self.n_frequencies if self.spectrum == "free" else n_basis

    @property
    def scales(self) -> Tensor:
        """s_k, (r,) 1/Å, positive and bounded; the last is the fixed guard."""
        learnt = self.scale_low * (self.scale_high / self.scale_low) ** torch.sigmoid(self.raw_scales)
        return torch.cat([learnt, learnt.new_tensor([self.guard])])

    @property
    def means(self) -> Tensor:
        """μ_k, (r, 3) 1/Å; the guard's is zero."""
        zero = self.epsilon.new_zeros((1, 3))
        return zero.expand_as(self.epsilon) if self.free_means is None else torch.cat([self.free_means, zero])

    def frequencies(self) -> Tensor:
        """ξ_k = μ_k + s_k ε_k, (r, 3) 1/Å."""
        return self.means + self.scales[:, None] * self.epsilon

    def coefficients(self, basis: GaussianBasis) -> Tensor:
        """a_k for each basis function, (r, n_weights); the identity when the spectrum is free."""
        if self.spectrum == "free":
            return torch.eye(self.n_frequencies, dtype=self.epsilon.dtype, device=self.epsilon.device)
        xi = self.frequencies()
        density = _gaussian_density(xi, self.means, self.scales)
        proposal = density.mean(dim=1) if self.proposal == "mixture" else density.diagonal()
        return basis.spectra(safe_norm(xi)) / (self.n_frequencies * proposal)[:, None]

    def radial_waves(self, basis: GaussianBasis) -> tuple[Tensor, Tensor]:
        """See :class:`FarMethod`."""
        return self.frequencies().norm(dim=1), self.coefficients(basis)

    def plan(self, basis: GaussianBasis, dense: bool) -> FarPlan:
        """See :class:`FarMethod`."""
        return FarPlan("pairs", 0.0, self.periodic_radius, 0.0, dense)

    def fields(self, geometry: Geometry, basis: GaussianBasis) -> list[FarField]:
        """See :class:`FarMethod`.

        Isolated structures with random directions have features of positions.
        """
        xi, coefficients = self.frequencies(), self.coefficients(basis).to(geometry.dtype).transpose(0, 1)
        n, found = max(self.n_frequencies, self.n_weights(len(basis))), list[FarField]()
        for group, positions, cell in of_groups(geometry):
            estimate = partial(self._estimate, xi, coefficients, group.images is not None, geometry.dtype)
            if group.images is None and self.directions == "random":
                features = plane_waves(positions, xi).to(geometry.dtype)
                found.append(OnWaves(features, coefficients.repeat(1, 2)[None]))
            else:
                found.append(sum_over_pairs(group, positions, cell, estimate, n))
        return found

    def _estimate(self, xi: Tensor, coefficients: Tensor, repeats: bool, dtype: torch.dtype, delta: Tensor) -> Tensor:
        """(n_weights, ...) of displacements, under the envelope where structures repeat."""
        squared = squared_norm(delta, dtype)
        if self.directions == "averaged":
            turns = (2 * math.pi * safe_norm(xi)) ** 2
            one = torch.ones_like(turns)
            waves = members_on_pairs(squared, one, turns, one, len(turns), decay=0.0)
        else:
            waves = torch.cos(2 * math.pi * torch.einsum("kx,x...->k...", xi.to(dtype), delta.to(dtype)))
        found = (coefficients @ waves.flatten(1)).view(-1, *squared.shape)
        return found * envelope(squared.clamp(min=1e-24).sqrt(), self.periodic_radius) if repeats else found


def _draw(n_frequencies: int, radii: Radii, seed: int) -> Tensor:
    """ε_k, (n_frequencies, 3) float64: draws of N(0, I), perhaps with stratified lengths."""
    generator = torch.Generator().manual_seed(seed)
    # Models are built on the meta device too, and quantiles need numbers.
    with generator.device:
        normals = torch.randn(n_frequencies, 3, generator=generator, dtype=torch.float64)
        length = normals.norm(dim=1)
        unit = normals / length[:, None]
        if radii == "stratified":
            length = torch.from_numpy(quantiles(torch.randperm(n_frequencies, generator=generator).numpy()))
        return length[:, None] * unit


def plane_waves(positions: Tensor, xi: Tensor) -> Tensor:
    """Plane waves [cos 2πξ_k·r_i, sin 2πξ_k·r_i] in float64.

    Positions (..., ℓ) Å and frequencies (r, ℓ) 1/Å → (..., 2r).
    """
    phase = 2 * math.pi * positions.to(torch.float64) @ xi.to(torch.float64).transpose(0, 1)
    return torch.cat([phase.cos(), phase.sin()], dim=-1)


def wave_features(waves: Tensor, coefficients: Tensor, softening: float = 0.0) -> tuple[Tensor, Tensor]:
    """Features √(|a_k| + δ) [cos 2πξ_k·x, sin 2πξ_k·x] of queries and keys.

    Only the key side has the factor sign(a_k) (FLT Theorem 4.1).

    Args:
        waves: (..., 2r) from :func:`plane_waves`.
        coefficients: a, (..., r), of any sign; leading axes broadcast with those of the waves.
        softening: δ. The derivative of a root is unbounded where a coefficient changes sign. In a product of both
            sides this cancels; where each side passes through a function of its own, a small δ is needed.

    Returns:
        Two tensors (..., 2r) in the dtype of the coefficients.
    """
    a = torch.cat([coefficients, coefficients], dim=-1)
    query = waves.to(a.dtype) * (a.abs() + softening).clamp(min=torch.finfo(a.dtype).tiny).sqrt()
    return query, query * a.sign()


def _gaussian_density(xi: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """N(ξ_k; μ_l, s_l² I) in three dimensions, (r, 3) each and scales (r,) → (r, r)."""
    variance = scales**2
    return (2 * math.pi * variance) ** -1.5 * torch.exp(-(xi[:, None] - means).square().sum(dim=-1) / (2 * variance))


def build_undamped(config: UndampedConfig, sizes: Sizes) -> Built:
    """Build the attention of DESIGN §3 with the paper's estimator as its far field."""
    rpe = build_rpe(config)
    more = {"directions": config.directions, "spectrum": config.spectrum, "periodic_radius": config.periodic_radius}
    return with_far_field(config, sizes, rpe, build_method(config, rpe, sizes.seed, **more))


def build_method(config: UndampedConfig | ConcatConfig, rpe: GaussianRPE, seed: int, **more: Any) -> UndampedMethod:
    """Build the estimator, by default with random directions and a_k that follow from g, as published."""
    return UndampedMethod(rpe, config.n_frequencies, config.radii, config.proposal, seed, config.means, **more)
