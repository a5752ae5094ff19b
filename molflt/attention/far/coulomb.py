"""1/r between charges, by the numerical methods of the far field (DESIGN §3, item 8).

By the trapezoid rule in log s for 1/r = (2/√π) ∫₀^∞ exp(−r²s²) ds it is a ladder of Gaussians,

    b(r) = Σ_t w_t exp(−r²/2σ_t²),   σ_t = σ·√2^t,   w_t = (2/√π) · ln √2 · 1/(√2 σ_t),   t = 0, 1, 2, ...,

which is smooth at r = 0, and 1/r to 2e-6 of itself beyond four σ; Madelung constants come out to 2e-5. Of the
infinitely many rungs, an open structure sums those up to 16 times its diameter; what the wider ones add is a constant
and a term in r², which are taken in closed form. In a crystal, rungs wider than the cell have nothing but their mean,
and the mean is left out: only neutral sums are physical, and a charged cell is one with a uniform background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from molflt.attention.far.choice import MESH_FROM, AutomaticMethod, choose_contraction
from molflt.attention.far.costs import LayerSizes, costs
from molflt.attention.far.exact import squared_distances
from molflt.attention.far.members import GaussianBasis
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import taper
from molflt.errors import InputError

COULOMB = 14.3996
"""k_e = e²/(4πε₀), eV Å."""
FINEST = 1.0
"""σ, Å: the width of the finest rung, below which the near field has to learn what 1/r would be."""
TOLERANCE = 1e-5
"""ε of lattice and mesh."""


WEIGHT = math.log(2) / math.sqrt(2 * math.pi)
"""w_t σ_t."""
AT_ZERO = WEIGHT / FINEST / (1 - math.sqrt(0.5))
"""b(0) of the whole ladder, 1/Å."""


class CoulombMethods(AutomaticMethod):
    """How the ladder may be summed: on pairs or a mesh in the open, on the lattice or a mesh in a crystal."""

    def candidates(self, geometry: Geometry, b: int) -> Sequence[FrequencyMethod]:
        """See :class:`FrequencyMethod`. A sum over images would have to reach many cells."""
        found = super().candidates(geometry, b)
        return [method for method in found if not (method is self.exact and geometry.is_periodic(b))]


def potentials(geometry: Geometry, charges: Tensor, method: FrequencyMethod | None = None) -> Tensor:
    """φ_i = k_e Σ_j q_j b(r_ij) over all other atoms and, in a crystal, all images of all atoms.

    Everything is computed in float64, small open structures together, on pairs. The energy is ½ Σ_i q_i φ_i.

    Args:
        geometry: the batch.
        charges: q, (n_atoms, n_channels) in units of e; the channels do not act on each other.
        method: the only one to use; None: the one that should take the least time for each structure.

    Returns:
        (n_atoms, n_channels) V, float64.

    Raises:
        InputError: a structure repeats along one or two axes only.
    """
    geometry, charges = replace(geometry, dtype=torch.float64), charges.to(torch.float64)
    found: dict[int, Tensor] = {}
    # Structures summed together have the same rungs, so that none depends on what else is in the batch.
    small: dict[int, list[int]] = {}
    for b, q in enumerate(charges.split(geometry.sizes)):
        if method is None and not geometry.is_periodic(b) and geometry.sizes[b] <= MESH_FROM:
            small.setdefault(len(ladder(geometry, b)), []).append(b)
        else:
            found[b] = _of_structure(geometry, b, q, CoulombMethods(TOLERANCE) if method is None else method)
    padded = geometry.pad(charges) if small else charges
    for structures in small.values():
        fields = _on_padded_pairs(geometry, structures, padded[structures])
        found |= {b: field[: geometry.sizes[b]] for b, field in zip(structures, fields, strict=True)}
    return COULOMB * torch.cat([found[b] for b in range(geometry.n_structures)])


def potentials_of_neighbours(geometry: Geometry, charges: Tensor, cutoff: float) -> Tensor:
    """φ_i = k_e Σ_j q_j w(r_ij) b(r_ij) over the neighbours alone, w from 1 at half the cutoff to 0 at the cutoff.

    Args:
        geometry: the batch; its neighbours reach the cutoff.
        charges: q, (n_atoms, n_channels) e, float64.
        cutoff: Å.

    Returns:
        (n_atoms, n_channels) V, float64.
    """
    receiver, sender = geometry.edge_index
    distances = geometry.edge_distances.to(torch.float64)
    widths = _rungs(_WIDER_THAN * cutoff, distances.device)
    squared = distances.square()
    constant, quadratic = _remainder(float(widths[-1]))
    of_pairs = _sum_of_rungs(widths, squared) + constant - quadratic * squared
    weights = COULOMB * taper(distances, 0.5 * cutoff, cutoff) * of_pairs
    return torch.zeros_like(charges).index_add(0, receiver, weights[:, None] * charges[sender])


def _on_padded_pairs(geometry: Geometry, structures: list[int], charges: Tensor) -> Tensor:
    """Σ_j q_j b(r_ij) of open structures with the same rungs, (n_structures, n_max, n_channels) 1/Å."""
    n = max(geometry.sizes[b] for b in structures)
    positions, charges = geometry.padded_positions[structures][:, :n], charges[:, :n]
    widths = ladder(geometry, structures[0])
    ladders = _sum_of_rungs(widths, squared_distances(positions, positions, torch.float64))
    # Where there is no atom, the charge is zero.
    wider = _wider(positions, charges, charges.sum(dim=1, keepdim=True), float(widths[-1]))
    return ladders @ charges + wider - AT_ZERO * charges


def _of_structure(geometry: Geometry, b: int, charges: Tensor, method: FrequencyMethod) -> Tensor:
    """Σ_j q_j b(r_ij) of one structure, (n, n_channels) 1/Å."""
    n_periodic = sum(geometry.pbc[b])
    if n_periodic in (1, 2):
        raise InputError(
            f"a structure that is periodic along {n_periodic} of three axes, and a model with charges, whose 1/r "
            "has no sum there; make it periodic along all three, with vacuum where it does not repeat"
        )
    widths = ladder(geometry, b)
    # The guard of n_t is for weights that are learnt: with one atom it is not there.
    basis = GaussianBasis(widths, n_atoms=1)
    sizes = LayerSizes(1, 1, 0, far_dim=charges.shape[1], rank=1, n_layers=1)
    # An energy alone and one with its gradient are summed alike, or they would differ by the methods' tolerance.
    rates = costs().of(torch.get_num_threads(), False)
    chosen = choose_contraction(method, "auto", sizes, geometry, b, 0, basis, rates)
    assert chosen.method is not None
    operator = chosen.method.operator(geometry, b, basis) if chosen.order == "linear" else None
    if operator is None:
        operator = chosen.method.pairs_operator(geometry, b, basis)
    weights = WEIGHT / widths
    field = operator(weights[:, None], charges[:, None, :])[:, 0]
    total = charges.sum(dim=0)
    if n_periodic == 3:
        mean = (weights * (2 * math.pi * widths**2) ** 1.5).sum() / torch.linalg.det(geometry.cell[b]).abs()
        return field - mean * total - AT_ZERO * charges
    return field + _wider(geometry.atoms_of(b), charges, total, float(widths[-1])) - AT_ZERO * charges


def ladder(geometry: Geometry, b: int) -> Tensor:
    """The widths of the rungs that are summed for structure ``b``, (n_rungs,) Å, float64."""
    r = geometry.atoms_of(b).detach()
    if geometry.is_periodic(b):
        widest = _NOTHING_BUT_MEAN * _longest_wave(geometry.cell[b].detach())
    else:
        widest = _WIDER_THAN * float((r.amax(dim=0) - r.amin(dim=0)).norm())
    return _rungs(widest, r.device)


def _rungs(widest: float, device: torch.device) -> Tensor:
    """The widths of the rungs up to ``widest``, (n_rungs,) Å, float64."""
    n = 1 + math.ceil(2 * math.log2(max(widest / FINEST, 2.0)))
    return FINEST * 2 ** (0.5 * torch.arange(n, dtype=torch.float64, device=device))


def _sum_of_rungs(widths: Tensor, squared: Tensor) -> Tensor:
    """Σ_t w_t exp(−r²/2σ_t²) of squared distances (...) Å² over the rungs given, (...) 1/Å."""
    return torch.tensordot(WEIGHT / widths, GaussianBasis(widths, n_atoms=1).on_pairs(squared), dims=1)


def _remainder(widest: float) -> tuple[float, float]:
    """Σ_t w_t, 1/Å, and Σ_t w_t/2σ_t², 1/Å³, over all rungs wider than ``widest``: they are w_t (1 − r²/2σ_t²).

    The next term is (r/σ)⁴/8 w_t, some 1e-7 of the first.
    """
    step = math.sqrt(0.5)
    first = WEIGHT / widest
    return first * step / (1 - step), first / (2 * widest**2) * step**3 / (1 - step**3)


def _wider(positions: Tensor, charges: Tensor, total: Tensor, widest: float) -> Tensor:
    """Σ_j q_j Σ_t w_t (1 − r_ij²/2σ_t²) over all rungs wider than ``widest``, (n, n_channels) 1/Å."""
    constant, quadratic = _remainder(widest)
    squared = positions.square().sum(dim=-1, keepdim=True)
    distances = squared * total + (squared * charges).sum(dim=-2, keepdim=True)
    distances = distances - 2 * positions @ (positions.transpose(-2, -1) @ charges)
    return constant * total - quadratic * distances


def _longest_wave(cell: Tensor) -> float:
    """1/|ξ| of the shortest vector of the reciprocal lattice of ``cell`` (3, 3) Å."""
    few = torch.arange(-3, 4, dtype=cell.dtype, device=cell.device)
    xi = torch.cartesian_prod(few, few, few) @ torch.linalg.inv(cell).transpose(0, 1)
    length = xi.norm(dim=1)
    return 1 / float(length[length > 0].min())


_WIDER_THAN = 16
"""Diameters of an open structure up to which rungs are summed."""
_NOTHING_BUT_MEAN = 1.4
"""exp(−2π²x²) is 1e-17: what the longest wave of a lattice has left of a Gaussian x times as wide."""
