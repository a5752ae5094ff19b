"""A cell for every structure: artificial vectors along the axes that do not repeat."""

from __future__ import annotations

import torch
from torch import Tensor

from molflt.attention.envelope import smooth_max
from molflt.attention.frequencies.quadrature import atoms_of, cutoff_factor
from molflt.attention.geometry import Geometry
from molflt.attention.rpe import GaussianBasis


def padded_cell(geometry: Geometry, b: int, basis: GaussianBasis, tolerance: float) -> Tensor:
    """(3, 3) Å: the periodic vectors of structure ``b``, then orthogonal ones long enough that the images they make
    contribute less than ``tolerance``. A smooth function of the positions.
    """
    pbc = geometry.pbc[b]
    if all(pbc):
        return geometry.cell[b]
    padding = cutoff_factor(tolerance) * basis.widths.to(torch.float64).max()
    positions = atoms_of(geometry, b)
    periodic = geometry.cell[b][[k for k in range(3) if pbc[k]]]
    rows = [*periodic]
    for direction in _orthogonal_complement(periodic):
        height = positions @ direction
        rows.append((smooth_max(height) + smooth_max(-height) + padding) * direction)
    return torch.stack(rows)


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
