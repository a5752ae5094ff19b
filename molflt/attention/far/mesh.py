"""Particle mesh: values spread on a grid, convolved with f and read off (DESIGN §3, item 6).

This carries the FFT for Toeplitz RPE of Luo et al. (arXiv 2106.12566) over to scattered points, with the P3M
assignment of Hockney and Eastwood. The spectrum of f ends so early that products with small matrices of waves
replace the FFT. It serves any boundary conditions in O(N^{4/3}) at fixed density with a small factor.

In open directions the grid lies along the principal axes of the structure and has a fixed spacing, so that it turns
and moves with the structure: where these axes are not equal, rotation changes nothing but rounding. Along a lattice
it divides the lattice vectors, and invariance under wrapping holds to ε. Only planes that hold atoms are transformed.
The placement is decided in ``grid.py``; here the device computes what depends on positions and widths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.interpolate import BSpline, PPoly
from torch import Tensor

from molflt.attention.far.grid import NODES, OnGrid
from molflt.attention.far.members import TAPER, GaussianBasis
from molflt.attention.far.mesh_operator import Axes, Band, MeshOperator, OnMesh
from molflt.attention.far.waves import padded
from molflt.attention.places import select_rows
from molflt.attention.smooth import reciprocal_vectors, sinc_of_square, taper
from molflt.attention.sparse import SparsePattern


def on_mesh(
    pieces: Sequence[OnGrid],
    positions: Tensor,
    cell: Tensor,
    basis: GaussianBasis,
    tolerance: float,
    dtype: torch.dtype,
) -> OnMesh:
    """Return f̂ of one structure on a mesh.

    Args:
        pieces: of the structure, on their grids.
        positions: (1, n, 3) Å, float64.
        cell: (1, 3, 3) Å, float64.
        basis: of f.
        tolerance: ε, relative to Σ_t |w_t n_t|.
        dtype: of quantities computed from positions.
    """
    operators = []
    for piece in pieces:
        some = select_rows(positions[0], piece.atoms)
        if len(pieces) > 1:
            some = some - some.mean(dim=0)
        operators.append(_mesh(piece, some, cell, basis, tolerance, dtype))
    return OnMesh([piece.atoms for piece in pieces], operators)


def _mesh(
    on_grid: OnGrid, positions: Tensor, cell: Tensor, basis: GaussianBasis, tolerance: float, dtype: torch.dtype
) -> MeshOperator:
    grid, n_planes, repeats = on_grid.grid, on_grid.n_planes, on_grid.grid.n_periodic > 0
    # The grid is not differentiated, but it follows a lattice.
    divided = cell[0] * on_grid.turns[:, None]
    steps = divided if repeats.all() else divided + grid.spacing * on_grid.directions
    points = positions @ reciprocal_vectors(steps)[0].mT
    first = points.detach().floor()
    assigned: Tensor = _Splines.apply(points - first, 0)
    node = torch.remainder(first[..., None] - on_grid.nodes, on_grid.periods).clamp(max=len(on_grid.table) // 3 - 1)
    # A cell of a million atoms has 216 million entries.
    x, y, z = on_grid.table.take((node + on_grid.starts).to(torch.int64)).unbind(dim=1)
    place = x[:, :, None, None] + y[:, None, :, None] + z[:, None, None, :]
    wx, wy, wz = assigned.to(dtype).unbind(dim=1)
    weights = (wx[:, :, None, None] * wy[:, None, :, None] * wz[:, None, None, :]).flatten()
    starts = NODES**3 * torch.arange(len(positions) + 1, device=positions.device)
    gather = SparsePattern(starts, place.flatten(), math.prod(n_planes))
    return MeshOperator(
        gather,
        weights,
        weights.index_select(0, gather.transposed[1]),
        n_planes,
        list(_bands(on_grid, positions, cell, basis, tolerance, dtype)),
    )


def _bands(
    on_grid: OnGrid, positions: Tensor, cell: Tensor, basis: GaussianBasis, tolerance: float, dtype: torch.dtype
) -> Iterator[Band]:
    octaves, turns = on_grid.octaves, on_grid.turns
    cells = cell
    if not (on_grid.grid.n_periodic > 0).all():
        cells = padded(positions[None], None, on_grid.directions[None], cell, on_grid.paddings)
        open_turns = on_grid.grid.spacing / cells.square().sum(dim=2).sqrt()
        turns = torch.where(turns > 0, turns, open_turns)
    columns = turns.expand(len(octaves), 3).t().flatten()
    of_waves = on_grid.waves @ columns
    turned = of_waves[:, None] * on_grid.planes
    # Whole turns are removed before the multiplication by 2π to keep the last digits.
    angle = 2 * math.pi * (turned - turned.detach().round())
    pairs = torch.stack([angle.cos(), angle.sin()], dim=1).to(dtype)
    reciprocal, volume = reciprocal_vectors(cells)
    gram = reciprocal @ reciprocal.transpose(1, 2)
    window = _optimal_influence(of_waves) * on_grid.multiplicity
    squares = on_grid.waves.square() @ gram.diagonal(dim1=1, dim2=2).t().flatten()
    per_volume = 1 / volume.abs()
    # All octaves of one axis, then those of the next.
    sizes = [octave.n_waves[axis] + 1 for axis in range(3) for octave in octaves]
    split = [t.split(sizes) for t in (pairs, window, squares, on_grid.waves.sum(dim=1))]
    of_axes = [[part[b :: len(octaves)] for part in split] for b in range(len(octaves))]
    n_members = sum(0 if octave.chosen is None else len(octave.chosen) for octave in octaves)
    oblique = not on_grid.is_orthogonal or (torch.is_grad_enabled() and cell.requires_grad)
    for b, (octave, (matrices, windows, squared, numbers)) in enumerate(zip(octaves, of_axes, strict=True)):
        x, y, z = (m.flatten(0, 1)[:, :n] for m, n in zip(matrices, on_grid.n_planes, strict=True))
        lengths = _on_axes(squared, torch.add)[None]
        if oblique:
            lengths = _oblique(lengths, numbers, gram[b])
        chosen, members = octave.chosen, basis
        if chosen is not None:
            if n_members > len(basis):
                # A layout may be for several models, and charges need not have all rungs.
                chosen = chosen[chosen < len(basis)]
            members = basis.some(chosen)
        cutoffs = members.cutoffs(tolerance)[:, None].clamp(max=octave.longest / TAPER)
        length = lengths.flatten().clamp(min=1e-30).sqrt()
        shares = (_on_axes(windows, torch.mul) * per_volume[b]).expand(lengths.shape).flatten()
        ended = taper(length, cutoffs, TAPER * cutoffs) * shares
        found = (ended * members.spectra(length[None], members_first=True)).to(dtype).unflatten(1, lengths.shape)
        yield Band(chosen, (x, y, z), _parts(found) if oblique else {(): found[:, 0]})


def _on_axes(parts: Sequence[Tensor], combine: Any) -> Tensor:
    """(n_x,), (n_y,), (n_z,) → (n_x, n_y, n_z)."""
    x, y, z = parts
    found: Tensor = combine(combine(x[:, None, None], y[:, None]), z)
    return found


def _oblique(squared: Tensor, numbers: Sequence[Tensor], gram: Tensor) -> Tensor:
    """|ξ|² for k, and with the signs of k_z, of k_y and of both flipped, (4, *waves)."""
    x, y, z = (k.view([-1 if axis == a else 1 for a in range(3)]) for axis, k in enumerate(numbers))
    xy, xz, yz = 2 * gram[0, 1] * x * y, 2 * gram[0, 2] * x * z, 2 * gram[1, 2] * y * z
    return squared + torch.stack([xy + xz + yz, xy - xz - yz, xz - xy - yz, yz - xy - xz])


def _parts(spectra: Tensor) -> dict[Axes, Tensor]:
    """Split spectra (n_members, 4, *waves) by the axes that exchange cosines and sines.

    The four are those of :func:`_oblique`.
    """
    pp, pm, mp, mm = (spectra / 4).unbind(dim=1)
    return {
        (): pp + pm + mp + mm,
        (0, 1): pp + pm - mp - mm,
        (0, 2): pp - pm + mp - mm,
        (1, 2): pp - pm - mp + mm,
    }


def _optimal_influence(turns: Tensor) -> Tensor:
    """W²/(Σ_m W(k + m)²)² of one axis, W = sinc^NODES.

    The filter that undoes the assignment at both ends with the least error, for an interaction without sharp
    features (Hockney and Eastwood, §8-3-3).

    Args:
        turns: k, turns of the wave from one grid point to the next, at most a half.
    """
    aliases = torch.arange(-3, 4, dtype=turns.dtype, device=turns.device)
    assigned = sinc_of_square((math.pi * (turns[..., None] + aliases)) ** 2).pow(2 * NODES)
    return assigned[..., 3] / assigned.sum(dim=-1) ** 2


class _Splines(torch.autograd.Function):
    """Cardinal B-splines: weights of the NODES grid points at or below points.

    A point lies x in [0, 1) of the way to the next grid point. A spline of degree NODES − 1 has NODES − 2 continuous
    derivatives, and so have values read off the grid. All nodes lie on one side of the point. This shift by half a
    support is the same for every atom, so it drops out of differences of positions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, degree: int) -> Tensor:
        """(n, 3) → (n, 3, NODES), the derivative of that degree."""
        ctx.save_for_backward(x)
        ctx.degree = degree
        powers = _polynomials(degree, x.dtype, x.device)
        found = powers[0].expand(*x.shape, NODES)
        for coefficients in powers[1:]:
            found = torch.addcmul(coefficients, found, x[..., None])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return (grads[0] * _Splines.apply(x, ctx.degree + 1)).sum(dim=-1), None


@cache
def _polynomials(degree: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Coefficients of the pieces of a spline's derivative, (at least one, NODES).

    The highest power comes first.
    """
    spline = PPoly.from_spline(BSpline.basis_element(np.arange(NODES + 1.0))).derivative(degree)
    with torch.inference_mode(False):
        # As many pieces as its degree precede its support.
        return torch.from_numpy(spline.c[:, NODES - 1 : 2 * NODES - 1].copy()).to(device, dtype)
