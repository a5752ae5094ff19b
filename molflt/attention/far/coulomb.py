"""1/r between charges and 1/r⁶ of dispersion, by the numerical methods of the far field (DESIGN §3, item 8).

The trapezoid rule in log s for 1/r^p = (2/Γ(p/2)) ∫₀^∞ s^(p−1) exp(−r²s²) ds gives a ladder of Gaussians,

    b(r) = Σ_t w_t exp(−r²/2σ_t²),   σ_t = σ·√2^t,   w_t = (ln 2/Γ(p/2)) · (√2 σ_t)^(−p),   t = 0, 1, 2, ...,

which is smooth at r = 0. It equals 1/r to a relative 2e-6 beyond four σ, and Madelung constants are accurate to 2e-5;
1/r⁶ to 1e-3 beyond five. Of the infinitely many rungs, an open structure sums those up to 16 times its diameter; the
wider ones add a constant and a term in r², both in closed form. In a crystal, rungs wider than the cell contribute
only their mean. Of 1/r all means are left out: only neutral sums are physical, and a charged cell is given a uniform
background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from molflt.attention.far.members import TAPER, GaussianBasis, cutoff_factor, spacing_in_widths
from molflt.attention.far.mesh import on_mesh
from molflt.attention.far.pairs import squared_distances
from molflt.attention.far.waves import on_waves
from molflt.attention.far.ways import DIAMETERS, MARGIN, Group, LadderPlan, n_rungs
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import reciprocal_vectors, taper
from molflt.attention.sparse import of_columns, sum_of_entries

COULOMB = 14.3996
"""k_e = e²/(4πε₀), eV Å."""
FINEST = 1.0
"""σ of the finest rung, Å; at shorter distances the near field has to learn the rest of 1/r."""
TOLERANCE = 1e-5
"""ε of lattice and mesh."""


@dataclass(frozen=True)
class Law:
    """b(r) for 1/r^p."""

    power: int

    @property
    def strength(self) -> float:
        """w_t σ_t^p."""
        return math.log(2) / math.gamma(self.power / 2) * 2 ** (-self.power / 2)

    @property
    def at_zero(self) -> float:
        """b(0) of the whole ladder, Å^(−p)."""
        return self.strength / FINEST**self.power / (1 - 2 ** (-self.power / 2))

    def weights(self, widths: Tensor) -> Tensor:
        """w_t for σ_t in Å."""
        return self.strength / widths**self.power

    def wider(self, widest: Tensor, moment: int) -> Tensor:
        """Σ_t w_t σ_t^k over all rungs wider than ``widest``, Å^(k−p), for a moment k below p."""
        step = 2 ** (0.5 * (moment - self.power))
        return self.strength * widest ** (moment - self.power) * step / (1 - step)


INVERSE, INVERSE_SIXTH = Law(1), Law(6)

PLAN = LadderPlan(
    FINEST,
    MARGIN * TAPER * cutoff_factor(TOLERANCE / 4) / (2 * math.pi * FINEST),
    spacing_in_widths(TOLERANCE) * FINEST,
    cutoff_factor(TOLERANCE / 10),
)
"""Plan for batches of a model with charges."""


def potentials(geometry: Geometry, charges: Tensor) -> Tensor:
    """φ_i = k_e Σ_j q_j b(r_ij) over all other atoms and, in a crystal, all images of all atoms.

    Everything is computed in float64. The energy is ½ Σ_i q_i φ_i.

    Args:
        geometry: the batch, whose plan is for charges.
        charges: q, (n_atoms, n_channels) in units of e; the channels do not act on each other.

    Returns:
        (n_atoms, n_channels) V, float64.
    """
    return COULOMB * fields(geometry, [(INVERSE, charges)])[0]


def potentials_of_neighbours(geometry: Geometry, charges: Tensor, cutoff: float) -> Tensor:
    """φ_i as :func:`potentials`, with weights, see :func:`fields_of_neighbours`."""
    return COULOMB * fields_of_neighbours(geometry, INVERSE, charges, cutoff)


def fields(geometry: Geometry, sources: Sequence[tuple[Law, Tensor]]) -> list[Tensor]:
    """Σ_j c_j b(r_ij) over all others and their images, for each of several laws and their sources.

    Args:
        geometry: the batch, whose plan is for charges.
        sources: laws, and c of each, (n_atoms, n_channels).

    Returns:
        (n_atoms, n_channels) Å^(−p) for each, float64.
    """
    layout = geometry.layout.of_charges
    assert layout is not None
    strengths = [values.to(torch.float64) for _, values in sources]
    padded = zip(*(layout.pad(values) for values in strengths), strict=True)
    found: list[list[Tensor]] = [[] for _ in sources]
    for group, positions, parts in zip(layout.groups, layout.pad(geometry.positions), padded, strict=True):
        cell = geometry.cell.index_select(0, group.index)
        periodic = any(geometry.layout.pbc[group.structures[0]])
        basis, widths, widest = _of_group(group)
        apply = _operator(group, positions, cell, basis)
        for (law, _), values, kept in zip(sources, parts, found, strict=True):
            assert group.rungs is not None
            weights = group.rungs * law.weights(widths)
            field = apply(weights, values)
            # Where there is no atom, the source is zero.
            total = values.sum(dim=1, keepdim=True)
            if not periodic:
                kept.append(field + _wider(law, positions, values, total, widest[:, None, None]))
                continue
            volume = reciprocal_vectors(cell)[1].abs()
            if law.power > 3:
                mean = (2 * math.pi) ** 1.5 * law.wider(widest, 3) / volume
            else:
                # A charged crystal has a uniform background.
                mean = -(weights * (2 * math.pi * widths**2) ** 1.5).sum(dim=1) / volume
            kept.append(field + mean[:, None, None] * total)
    return [
        layout.pack(kept) - law.at_zero * values
        for (law, _), values, kept in zip(sources, strengths, found, strict=True)
    ]


def fields_of_neighbours(geometry: Geometry, law: Law, sources: Tensor, cutoff: float) -> Tensor:
    """Σ_j c_j w(r_ij) b(r_ij) over the neighbours alone.

    The weight w falls from 1 at half the cutoff to 0 at the cutoff.

    Args:
        geometry: the batch; its neighbours reach the cutoff.
        law: of b.
        sources: c, (n_atoms, n_channels), float64.
        cutoff: Å.

    Returns:
        (n_atoms, n_channels) Å^(−p), float64.
    """
    entries = geometry.layout.near
    squared = geometry.near_displacements.to(torch.float64).square().sum(dim=1)
    # The norm has no derivative at zero, the distance of every atom from itself.
    distances = squared.clamp(min=1e-24).sqrt()
    widths = _widths(n_rungs(DIAMETERS * cutoff / FINEST), squared.device)
    near = torch.tensordot(law.weights(widths), GaussianBasis(widths, n_atoms=1).on_pairs(squared), dims=1)
    of_pairs = near + law.wider(widths[-1], 0) - law.wider(widths[-1], -2) / 2 * squared
    weights = taper(distances, 0.5 * cutoff, cutoff) * entries.others * of_pairs
    return sum_of_entries(entries.pattern, weights[:, None] * of_columns(entries.pattern, sources))


def _widths(n: int, device: torch.device) -> Tensor:
    """σ_t of the first rungs, (n,) Å, float64."""
    return FINEST * 2 ** (0.5 * torch.arange(n, dtype=torch.float64, device=device))


def _of_group(group: Group) -> tuple[GaussianBasis, Tensor, Tensor]:
    """Return the rungs of a group, their widths, and each structure's widest, Å."""
    assert group.rungs is not None
    widths = _widths(group.rungs.shape[1], group.rungs.device)
    widest = FINEST * 2 ** (0.5 * (group.rungs.sum(dim=1) - 1))
    # The factor n_t is meant for learnt weights; with one atom it is one.
    return GaussianBasis(widths, n_atoms=1), widths, widest


def _operator(
    group: Group, positions: Tensor, cell: Tensor, basis: GaussianBasis
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the sum over a group's atoms as a function of weights (n_structures, n_rungs) and sources."""
    if group.way == "pairs":
        rungs = basis.on_pairs(squared_distances(positions, torch.float64))
        return lambda weights, values: torch.einsum("st,tsij->sij", weights, rungs) @ values
    if group.way == "waves":
        (waves,) = on_waves([(group, positions, cell)], basis, TOLERANCE, PLAN.longest, 0.0)

        def on_all(weights: Tensor, values: Tensor) -> Tensor:
            coefficients = (weights[:, None] @ waves.coefficients).squeeze(1)
            return waves.features @ (coefficients[..., None] * (waves.features.transpose(1, 2) @ values))

        return on_all
    mesh = on_mesh(group.pieces, positions, cell, basis, TOLERANCE, torch.float64)
    return lambda weights, values: mesh(weights.transpose(0, 1), values[:, :, None])[:, :, 0]


def _wider(law: Law, positions: Tensor, sources: Tensor, total: Tensor, widest: Tensor) -> Tensor:
    """Σ_j c_j Σ_t w_t (1 − r_ij²/2σ_t²) over rungs wider than ``widest``, (n, n_channels) Å^(−p).

    The next term is (r/σ)⁴/8 w_t, about 1e-7 of the first.
    """
    squared = positions.square().sum(dim=-1, keepdim=True)
    distances = squared * total + (squared * sources).sum(dim=-2, keepdim=True)
    distances = distances - 2 * positions @ (positions.transpose(-2, -1) @ sources)
    return law.wider(widest, 0) * total - law.wider(widest, -2) / 2 * distances
