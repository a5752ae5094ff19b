"""Periodic images: direct sums over them, and artificial cell vectors for axes that do not repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from molflt.attention.far.members import GaussianBasis, cutoff_factor
from molflt.attention.geometry import Geometry
from molflt.attention.smooth import smooth_max

_PAIRS_PER_CHUNK = 400_000
"""Pairs times images that are held at once. It bounds memory and changes no result."""

_PAIRS_KEPT = 100_000
"""Up to so many pairs times images a backward pass keeps what the forward pass computed."""


def wrapped_pair_displacements(geometry: Geometry, b: int) -> Tensor:
    """(n, n, 3) Å, float64: r_i − r_j of structure ``b``, folded by lattice vectors of its periodic axes.

    The fold is by whole lattice vectors: it centres a sum over all images and does not change it.
    """
    start, n = geometry.starts[b], geometry.sizes[b]
    r = geometry.positions[start : start + n]
    delta = r[:, None, :] - r[None, :, :]
    if not geometry.is_periodic(b):
        return delta
    lattice = periodic_vectors(geometry, b)
    fractional = delta.detach() @ torch.linalg.pinv(lattice.detach())
    return delta - torch.round(fractional) @ lattice


def periodic_vectors(geometry: Geometry, b: int) -> Tensor:
    """(n_periodic, 3) Å: the lattice vectors along which structure ``b`` repeats."""
    rows = [k for k in range(3) if geometry.pbc[b][k]]
    return geometry.cell[b][rows]


def image_shifts(lattice: Tensor, radius: float) -> Tensor:
    """(n_images, 3) Å: all lattice translations no longer than ``radius``, zero among them.

    Args:
        lattice: (n_periodic, 3) Å.
        radius: Å.
    """
    basis = lattice.detach()
    # |n_k| ≤ radius · |row k of the dual basis|: the planes n_k = const are 1/|dual| apart.
    dual = torch.linalg.pinv(basis).transpose(0, 1)
    reach = [math.floor(radius * float(v.norm()) + 1e-9) for v in dual]
    grid = torch.cartesian_prod(*[torch.arange(-m, m + 1, device=basis.device) for m in reach])
    integers = grid.reshape(-1, len(reach)).to(basis.dtype)
    keep = (integers @ basis).norm(dim=1) <= radius
    return integers[keep] @ lattice


def expected_images(geometry: Geometry, b: int, radius: float) -> float:
    """How many lattice translations a ball of ``radius`` Å holds, judged by volume; at least one."""
    if not geometry.is_periodic(b):
        return 1.0
    ball = (1.0, 2 * radius, math.pi * radius**2, 4 / 3 * math.pi * radius**3)[sum(geometry.pbc[b])]
    return max(1.0, ball / geometry.measures[b])


def _chunks(delta: Tensor, shifts: Tensor) -> Iterator[Tensor]:
    step = max(1, _PAIRS_PER_CHUNK // max(1, delta.shape[0] * delta.shape[1]))
    yield from shifts.split(step)


def sum_over_images(geometry: Geometry, b: int, radius: float, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Σ_n F(Δ_ij + n·A) over all images within ``radius``, or F(Δ_ij) alone where nothing repeats.

    Args:
        geometry: the batch.
        b: which structure.
        radius: Å. Every image with |Δ_ij + n·A| ≤ radius is included; beyond it F must be negligible or zero.
        function: maps displacements (..., 3) Å in the geometry's dtype to (..., c).

    Returns:
        (n, n, c).
    """
    delta = wrapped_pair_displacements(geometry, b)
    if not geometry.is_periodic(b):
        return function(delta.to(geometry.dtype))
    lattice = periodic_vectors(geometry, b)
    # Across the lattice no image is nearer than another, however far apart the atoms are there.
    along = delta.detach() @ (torch.linalg.pinv(lattice.detach()) @ lattice.detach())
    shifts = image_shifts(lattice, radius + float(along.norm(dim=-1).max()))
    n = delta.shape[0]

    def term(delta: Tensor, part: Tensor) -> Tensor:
        displacements = delta[:, :, None, :] + part
        # The images reach further than the ball that is asked for.
        pair_i, pair_j, image = torch.nonzero(squared_norm(displacements.detach()) <= radius**2, as_tuple=True)
        values = function(displacements[pair_i, pair_j, image].to(geometry.dtype))
        flat = values.new_zeros((n * n, values.shape[1])).index_add(0, pair_i * n + pair_j, values)
        return flat.view(n, n, values.shape[1])

    # The intermediates of a long sum would fill the memory, so a backward pass computes them again.
    recompute = torch.is_grad_enabled() and n * n * len(shifts) > _PAIRS_KEPT
    total: Tensor | None = None
    for part in _chunks(delta, shifts):
        value = checkpoint(term, delta, part, use_reentrant=False) if recompute else term(delta, part)
        total = value if total is None else total + value
    assert total is not None
    return total


def squared_norm(displacements: Tensor) -> Tensor:
    """|Δ|², without the square root, whose derivative is infinite at zero."""
    return (displacements * displacements).sum(dim=-1)


def safe_norm(displacements: Tensor) -> Tensor:
    """|Δ| with a derivative of zero instead of NaN at Δ = 0."""
    squared = squared_norm(displacements)
    nonzero = squared > 0
    return torch.where(nonzero, torch.where(nonzero, squared, torch.ones_like(squared)).sqrt(), 0.0)


def padded_cell(
    geometry: Geometry, b: int, basis: GaussianBasis, tolerance: float, frame: Tensor | None = None
) -> Tensor:
    """(3, 3) Å: the periodic vectors of structure ``b``, then orthogonal ones for the other axes.

    These are so long that the images they make contribute less than ``tolerance``, and their lengths are smooth
    functions of the positions.

    Args:
        geometry: the batch.
        b: which structure.
        basis: the members of f.
        tolerance: ε.
        frame: orthonormal rows, the directions of the other axes; None: :func:`open_frame`.
    """
    periodic = periodic_vectors(geometry, b)
    if len(periodic) == 3:
        return geometry.cell[b]
    # What the padding changes is below the tolerance, and so is its derivative with respect to a width.
    padding = cutoff_factor(tolerance) * basis.widest
    positions = geometry.atoms_of(b)
    rows = [*periodic]
    for direction in open_frame(geometry, b) if frame is None else frame:
        height = positions @ direction
        rows.append((smooth_max(height) + smooth_max(-height) + padding) * direction)
    return torch.stack(rows)


def padded_cells(geometry: Geometry, structures: Sequence[int], basis: GaussianBasis, tolerance: float) -> Tensor:
    """(len(structures), 3, 3) Å: :func:`padded_cell` of each of them."""
    if all(all(geometry.pbc[b]) for b in structures):
        return geometry.cell[list(structures)]
    return torch.stack([padded_cell(geometry, b, basis, tolerance) for b in structures])


def far_apart(geometry: Geometry, b: int, distance: float) -> list[Tensor]:
    """Indices of the atoms of each piece of structure ``b``; different pieces are farther apart than ``distance`` Å.

    Structures with a periodic axis are one piece.
    """
    positions = geometry.atoms_of(b).detach()
    everything = torch.arange(len(positions), device=positions.device)
    if geometry.is_periodic(b) or float((positions.amax(dim=0) - positions.amin(dim=0)).max()) <= distance:
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


def open_frame(geometry: Geometry, b: int) -> Tensor:
    """Orthonormal rows along which structure ``b`` does not repeat, and which turn with it (DESIGN §3, item 6).

    For a slab it is the normal; else the principal axes of Σ (r − r̄)(r − r̄)ᵀ, longest first, across the periodic axis
    where there is one. They point where the third moment is positive. Where two axes are equally long, or a structure
    is its own mirror image, the frame is one of several. It is a choice, as a number of grid points is, and has no
    gradient, except that the normal of a slab follows its cell.
    """
    periodic = periodic_vectors(geometry, b)
    if len(periodic) == 2:
        normal = torch.linalg.cross(periodic[0], periodic[1])
        return (normal / normal.norm())[None]
    centred = geometry.atoms_of(b).detach()
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
