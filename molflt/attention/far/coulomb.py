"""1/r between charges, by the numerical methods of the far field (DESIGN §3, item 8).

The trapezoid rule in log s for 1/r = (2/√π) ∫₀^∞ exp(−r²s²) ds gives a ladder of Gaussians,

    b(r) = Σ_t w_t exp(−r²/2σ_t²),   σ_t = σ·√2^t,   w_t = (2/√π) · ln √2 · 1/(√2 σ_t),   t = 0, 1, 2, ...,

which is smooth at r = 0, and equals 1/r to a relative 2e-6 beyond four σ; Madelung constants are accurate to 2e-5. Of
the infinitely many rungs, an open structure sums those up to 16 times its diameter; the wider ones add a constant and
a term in r², both in closed form. In a crystal, rungs wider than the cell contribute only their mean, and the mean is
left out: only neutral sums are physical, and a charged cell is given a uniform background.
"""

from __future__ import annotations

import math

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


WEIGHT = math.log(2) / math.sqrt(2 * math.pi)
"""w_t σ_t."""
AT_ZERO = WEIGHT / FINEST / (1 - math.sqrt(0.5))
"""b(0) of the whole ladder, 1/Å."""


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
    layout, charges = geometry.layout.of_charges, charges.to(torch.float64)
    assert layout is not None
    found = []
    for group, positions, q in zip(layout.groups, layout.pad(geometry.positions), layout.pad(charges), strict=True):
        cell = geometry.cell.index_select(0, group.index)
        basis, widths, weights, widest = _of_group(group)
        # Where there is no atom, the charge is zero.
        total = q.sum(dim=1, keepdim=True)
        if group.way == "pairs":
            squared = squared_distances(positions, torch.float64)
            field = torch.einsum("st,tsij->sij", weights, basis.on_pairs(squared)) @ q
        elif group.way == "waves":
            (waves,) = on_waves([(group, positions, cell)], basis, TOLERANCE, PLAN.longest, 0.0)
            coefficients = (weights[:, None] @ waves.coefficients).squeeze(1)
            field = waves.features @ (coefficients[..., None] * (waves.features.transpose(1, 2) @ q))
        else:
            mesh = on_mesh(group.pieces, positions, cell, basis, TOLERANCE, torch.float64)
            field = mesh(weights.transpose(0, 1), q[:, :, None])[:, :, 0]
        if any(geometry.layout.pbc[group.structures[0]]):
            # A charged crystal has a uniform background.
            mean = (weights * (2 * math.pi * widths**2) ** 1.5).sum(dim=1) / reciprocal_vectors(cell)[1].abs()
            found.append(field - mean[:, None, None] * total)
        else:
            found.append(field + _wider(positions, q, total, widest[:, None, None]))
    return COULOMB * (layout.pack(found) - AT_ZERO * charges)


def potentials_of_neighbours(geometry: Geometry, charges: Tensor, cutoff: float) -> Tensor:
    """φ_i = k_e Σ_j q_j w(r_ij) b(r_ij) over the neighbours alone.

    The weight w falls from 1 at half the cutoff to 0 at the cutoff.

    Args:
        geometry: the batch; its neighbours reach the cutoff.
        charges: q, (n_atoms, n_channels) e, float64.
        cutoff: Å.

    Returns:
        (n_atoms, n_channels) V, float64.
    """
    entries = geometry.layout.near
    squared = geometry.near_displacements.to(torch.float64).square().sum(dim=1)
    # The norm has no derivative at zero, the distance of every atom from itself.
    distances = squared.clamp(min=1e-24).sqrt()
    widths = _widths(n_rungs(DIAMETERS * cutoff / FINEST), squared.device)
    constant, quadratic = _remainder(widths[-1])
    near = torch.tensordot(WEIGHT / widths, GaussianBasis(widths, n_atoms=1).on_pairs(squared), dims=1)
    of_pairs = near + constant - quadratic * squared
    weights = COULOMB * taper(distances, 0.5 * cutoff, cutoff) * entries.others * of_pairs
    return sum_of_entries(entries.pattern, weights[:, None] * of_columns(entries.pattern, charges))


def _widths(n: int, device: torch.device) -> Tensor:
    """σ_t of the first rungs, (n,) Å, float64."""
    return FINEST * 2 ** (0.5 * torch.arange(n, dtype=torch.float64, device=device))


def _of_group(group: Group) -> tuple[GaussianBasis, Tensor, Tensor, Tensor]:
    """Return the rungs of a group, their widths and weights, and each structure's widest.

    Widths are (n_rungs,) Å; weights and the widest, Å, are per structure.
    """
    assert group.rungs is not None
    widths = _widths(group.rungs.shape[1], group.rungs.device)
    widest = FINEST * 2 ** (0.5 * (group.rungs.sum(dim=1) - 1))
    # The factor n_t is meant for learnt weights; with one atom it is one.
    return GaussianBasis(widths, n_atoms=1), widths, group.rungs * (WEIGHT / widths), widest


def _remainder(widest: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_t w_t, 1/Å, and Σ_t w_t/2σ_t², 1/Å³, over all rungs wider than ``widest``.

    Such rungs are w_t (1 − r²/2σ_t²); the next term is (r/σ)⁴/8 w_t, about 1e-7 of the first.
    """
    step = math.sqrt(0.5)
    first = WEIGHT / widest
    return first * step / (1 - step), first / (2 * widest**2) * step**3 / (1 - step**3)


def _wider(positions: Tensor, charges: Tensor, total: Tensor, widest: Tensor) -> Tensor:
    """Σ_j q_j Σ_t w_t (1 − r_ij²/2σ_t²) over rungs wider than ``widest``, (n, n_channels) 1/Å."""
    constant, quadratic = _remainder(widest)
    squared = positions.square().sum(dim=-1, keepdim=True)
    distances = squared * total + (squared * charges).sum(dim=-2, keepdim=True)
    distances = distances - 2 * positions @ (positions.transpose(-2, -1) @ charges)
    return constant * total - quadratic * distances
