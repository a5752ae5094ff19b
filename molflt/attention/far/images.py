"""Structures whose axes do not all repeat: artificial cell vectors, a frame that turns with them, distant pieces."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from molflt.attention.far.members import GaussianBasis, cutoff_factor
from molflt.attention.geometry import Structure
from molflt.attention.smooth import smooth_max


def squared_norm(displacements: Tensor) -> Tensor:
    """|Δ|², without the square root, whose derivative is infinite at zero."""
    return (displacements * displacements).sum(dim=-1)


def safe_norm(displacements: Tensor) -> Tensor:
    """|Δ| with a derivative of zero instead of NaN at Δ = 0."""
    squared = squared_norm(displacements)
    nonzero = squared > 0
    return torch.where(nonzero, torch.where(nonzero, squared, torch.ones_like(squared)).sqrt(), 0.0)


def padded_cell(structure: Structure, basis: GaussianBasis, tolerance: float, frame: Tensor) -> Tensor:
    """(3, 3) Å: the periodic vectors of a structure, then orthogonal ones for the other axes.

    These are so long that the images they make contribute less than ``tolerance``, and their lengths are smooth
    functions of the positions.

    Args:
        structure: one.
        basis: the members of f.
        tolerance: ε.
        frame: orthonormal rows, the directions of the other axes.
    """
    periodic = structure.periodic_vectors
    if len(periodic) == 3:
        return structure.cell
    # What the padding changes is below the tolerance, and so is its derivative with respect to a width.
    padding = cutoff_factor(tolerance) * basis.widest
    positions = structure.positions
    rows = [*periodic]
    for direction in frame:
        height = (positions @ direction)[:, None]
        rows.append((smooth_max(height) + smooth_max(-height) + padding) * direction)
    return torch.stack(rows)


def far_apart(structure: Structure, distance: float) -> list[Tensor]:
    """Indices of the atoms of each piece of a structure; different pieces are farther apart than ``distance`` Å.

    Structures with a periodic axis are one piece.
    """
    positions = structure.positions.detach()
    everything = torch.arange(len(positions), device=positions.device)
    if structure.is_periodic or float((positions.amax(dim=0) - positions.amin(dim=0)).max()) <= distance:
        return [everything]
    tiles, tile = np.unique((positions.cpu().numpy() // distance).astype(np.int64), axis=0, return_inverse=True)
    # Tiles that touch, also at a corner, are in one piece.
    touching = cKDTree(tiles).query_pairs(1.5, p=np.inf, output_type="ndarray")
    # With indices of 64 bits SciPy 1.11 prints an error and finds no piece at all.
    touching = touching.astype(np.int32)
    graph = coo_array((np.ones(len(touching)), touching.T), shape=(len(tiles), len(tiles)))
    n_pieces, piece = connected_components(graph, directed=False)
    piece_of_atom = torch.from_numpy(piece[tile.ravel()]).to(positions.device)
    return [everything[piece_of_atom == k] for k in range(n_pieces)]


def open_frame(structure: Structure) -> Tensor:
    """Orthonormal rows along which a structure does not repeat, and which turn with it (DESIGN §3, item 6).

    For a slab it is the normal; else the principal axes of Σ (r − r̄)(r − r̄)ᵀ, longest first, across the periodic axis
    where there is one. They point where the third moment is positive. Where two axes are equally long, or a structure
    is its own mirror image, the frame is one of several. It is a choice, as a number of grid points is, and has no
    gradient, except that the normal of a slab follows its cell.
    """
    periodic = structure.periodic_vectors
    if len(periodic) == 2:
        normal = torch.linalg.cross(periodic[0], periodic[1])
        return (normal / normal.norm())[None]
    centred = structure.positions.detach()
    if len(periodic) == 1:
        axis = periodic[0].detach() / periodic[0].detach().norm()
        centred = centred - (centred @ axis)[:, None] * axis
        # The axis itself comes last, far from the others.
        tensor = centred.transpose(0, 1) @ centred
        _, axes = torch.linalg.eigh(tensor - (1 + tensor.trace()) * torch.outer(axis, axis))
        rows = axes.transpose(0, 1)[1:].flip(0)
    else:
        _, axes = torch.linalg.eigh(centred.transpose(0, 1) @ centred)
        rows = axes.transpose(0, 1).flip(0)
    sense = (centred @ rows.transpose(0, 1)).pow(3).sum(dim=0)
    return torch.where(sense < 0, -1.0, 1.0)[:, None] * rows
