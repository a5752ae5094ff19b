"""Poisson summation over the reciprocal lattice (DESIGN §3, item 5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from molflt.attention.envelope import taper
from molflt.attention.frequencies.images import pairs_from_structures
from molflt.attention.frequencies.method import FrequencyMethod
from molflt.attention.frequencies.quadrature import TAPER, cutoff_factor
from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianRPE


class LatticeMethod(FrequencyMethod):
    """Σ_n f(Δ + n·A) = (1/V) Σ_{ξ∈Λ*} g(ξ) cos(2πξ·Δ), ξ = 0 included.

    All |ξ| up to the cutoff with a smooth taper, one of ±ξ. Exact under wrapping any atom and under a change of
    the lattice basis, because the set of ξ knows nothing of either. A non-periodic axis gets an artificial cell
    vector orthogonal to the periodic ones, long enough that the images it makes contribute less than ε.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def pair_basis(self, geometry: Geometry, rpe: GaussianRPE) -> Tensor:
        """See :class:`FrequencyMethod`."""
        return pairs_from_structures(geometry, [self.block(geometry, b, rpe) for b in range(geometry.n_structures)])

    def block(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> Tensor:
        """(n, n, n_basis) of structure ``b`` alone.

        A Gaussian of twice the width needs an eighth of the vectors: each group takes only what its narrowest needs.
        """
        waves, weights, counts = self.features(geometry, b, rpe)
        groups = []
        for first in range(0, rpe.n_basis, _GROUP):
            count = max(counts[first : first + _GROUP])
            part = waves[:, :count]
            weighted = part * weights[:count, first : first + _GROUP].transpose(0, 1)[:, None, :]
            groups.append(weighted @ part.transpose(0, 1))
        return torch.cat(groups).permute(1, 2, 0)

    def features(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> tuple[Tensor, Tensor, list[int]]:
        """Plane waves on the atoms of structure ``b``, the longest waves first.

        Returns:
            cos 2πξ_k·r_i and sin 2πξ_k·r_i in turn, (n, 2K); the weight of each for each basis function,
            (2K, n_basis); and how many of the 2K each basis function needs: the rest have weight zero.
        """
        cell = self.full_cell(geometry, b, rpe)
        xi = self.reciprocal_vectors(cell, rpe)
        start, n = geometry.starts[b], geometry.sizes[b]
        phase = 2 * math.pi * geometry.positions[start : start + n] @ xi.transpose(0, 1)
        length = _norm_with_zero(xi)
        xi_cut = self.cutoffs(rpe)
        multiplicity = torch.full_like(length, 2.0)
        multiplicity[0] = 1.0
        window = taper(length[:, None], xi_cut, TAPER * xi_cut)
        weights = (multiplicity / torch.linalg.det(cell).abs())[:, None] * window * rpe.spectra(length)
        counts = 2 * torch.searchsorted(length.detach(), TAPER * xi_cut.detach())
        waves = torch.stack([phase.cos(), phase.sin()], dim=-1).flatten(1)
        return waves.to(geometry.dtype), weights.repeat_interleave(2, dim=0).to(geometry.dtype), counts.tolist()

    def cutoffs(self, rpe: GaussianRPE) -> Tensor:
        """(n_basis,) |ξ| in 1/Å at which each Gaussian's spectrum has ended."""
        return cutoff_factor(self.tolerance) / (2 * math.pi * rpe.widths.to(torch.float64))

    def full_cell(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> Tensor:
        """(3, 3) Å: the cell, with artificial vectors along the axes that do not repeat."""
        pbc = geometry.pbc[b]
        if all(pbc):
            return geometry.cell[b]
        padding = cutoff_factor(self.tolerance) * rpe.widths.to(torch.float64).max()
        start, n = geometry.starts[b], geometry.sizes[b]
        r = geometry.positions[start : start + n]
        periodic = geometry.cell[b][[k for k in range(3) if pbc[k]]]
        rows = [*periodic]
        for direction in _orthogonal_complement(periodic):
            height = r @ direction
            rows.append((height.max() - height.min() + padding) * direction)
        return torch.stack(rows)

    def reciprocal_vectors(self, cell: Tensor, rpe: GaussianRPE) -> Tensor:
        """(K, 3) 1/Å, by length: the zero vector, then one of each pair ±ξ with |ξ| below the last taper's end."""
        longest = TAPER * float(self.cutoffs(rpe).detach().max())
        reach = [math.floor(longest * float(row.norm()) + 1e-9) for row in cell.detach()]
        first = torch.arange(0, reach[0] + 1, device=cell.device)
        others = [torch.arange(-m, m + 1, device=cell.device) for m in reach[1:]]
        n = torch.cartesian_prod(first, *others)
        upper = (n[:, 0] > 0) | ((n[:, 0] == 0) & ((n[:, 1] > 0) | ((n[:, 1] == 0) & (n[:, 2] > 0))))
        n = n[upper].to(cell.dtype)
        reciprocal = torch.linalg.inv(cell).transpose(0, 1)
        lengths = (n @ reciprocal.detach()).norm(dim=1)
        order = torch.argsort(lengths, stable=True)
        inside = order[lengths[order] <= longest]
        return torch.cat([cell.new_zeros((1, 3)), n[inside] @ reciprocal])

    def cost(self, geometry: Geometry, b: int, rpe: GaussianRPE) -> float:
        """Multiply-adds for structure ``b`` in the quadratic contraction order."""
        with torch.no_grad():
            volume = float(torch.linalg.det(self.full_cell(geometry, b, rpe)).abs())
            n_vectors = 2 / 3 * math.pi * (TAPER * self.cutoffs(rpe)) ** 3 * volume + 1
        n = geometry.sizes[b]
        return 2 * n * (n * float(n_vectors.sum()) + _TRIG_COST * float(n_vectors.max()))


def _orthogonal_complement(vectors: Tensor) -> Tensor:
    """Orthonormal rows spanning what the given rows do not."""
    if vectors.shape[0] == 0:
        return torch.eye(3, dtype=vectors.dtype, device=vectors.device)
    if vectors.shape[0] == 2:
        normal = torch.linalg.cross(vectors[0], vectors[1])
        return (normal / normal.norm())[None]
    # One periodic axis: any frame around it serves; start from the Cartesian axis farthest from it.
    axis = vectors[0] / vectors[0].norm()
    helper = torch.eye(3, dtype=axis.dtype, device=axis.device)[int(axis.detach().abs().argmin())]
    first = torch.linalg.cross(axis, helper)
    first = first / first.norm()
    return torch.stack([first, torch.linalg.cross(axis, first)])


def _norm_with_zero(xi: Tensor) -> Tensor:
    """|ξ|, the first row being the zero vector, at which a norm has no gradient."""
    return torch.cat([xi.new_zeros(1), xi[1:].norm(dim=1)])


_GROUP = 4
"""Basis functions contracted at once: fewer, larger products against fewer vectors."""

_TRIG_COST = 40.0
"""Multiply-adds a sine or cosine in double precision is worth; only the choice of method depends on it."""
