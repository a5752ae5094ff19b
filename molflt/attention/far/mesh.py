"""Particle mesh: values are spread on a grid, convolved with f, and read off again (DESIGN §3, item 6).

This carries the FFT for Toeplitz RPE of Luo et al. (arXiv 2106.12566) over to scattered points, with the P3M
assignment of Hockney and Eastwood. The spectrum of f ends so early that products with small matrices of waves
replace the FFT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from molflt.attention.far.grid import assign, optimal_influence, trigonometric_matrix, wave_numbers
from molflt.attention.far.images import far_apart, open_frame, padded_cell
from molflt.attention.far.members import TAPER, GaussianBasis
from molflt.attention.far.mesh_operator import Axes, Band, MeshOperator, PiecesOperator, StructureOperator
from molflt.attention.far.pairs import OnPairs, squared_distances
from molflt.attention.geometry import Structure
from molflt.attention.smooth import taper
from molflt.attention.sparse import SparsePattern
from molflt.errors import InputError

NODES = 6
"""Grid points per axis that an atom is spread over. With more the grid can be coarser, but spreading grows with their
cube; with this number spreading and waves cost about the same."""


@dataclass(frozen=True)
class Grid:
    """Where the grid of a structure lies. It is chosen and not differentiated.

    Attributes:
        frame: (n_open, 3) orthonormal rows, the directions in which the structure does not repeat.
        n_periodic: grid planes along each periodic vector.
        spacing: Å between planes in the other directions.
    """

    frame: Tensor
    n_periodic: tuple[int, ...]
    spacing: float

    def steps(self, structure: Structure) -> Tensor:
        """(3, 3) Å: from one plane to the next, the periodic vectors first."""
        periodic = structure.periodic_vectors
        counts = torch.tensor(self.n_periodic, dtype=periodic.dtype, device=periodic.device)
        return torch.cat([periodic / counts[:, None], self.spacing * self.frame])


class Mesh:
    """f by a particle mesh, for any boundary conditions, in O(N^{4/3}) at fixed density with a small factor.

    In open directions the grid lies along the principal axes of the structure and has a fixed spacing, so that it
    turns and moves with the structure: where these axes are not equal, rotation changes nothing but rounding. Along
    a lattice the grid divides the lattice vectors, and invariance under wrapping holds to ε. Only planes that hold
    atoms are transformed.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    def operator(self, structure: Structure, basis: GaussianBasis) -> MeshOperator | PiecesOperator:
        """f̂ of one structure.

        Raises:
            InputError: the grid would not fit into the memory of a usual machine.
        """
        pieces = far_apart(structure, basis.reach)
        if len(pieces) == 1:
            return self._mesh(structure, basis)
        operators: list[tuple[Tensor, StructureOperator]] = []
        for atoms in pieces:
            piece = structure.some(atoms)
            few = len(atoms) <= _FEW
            operators.append((atoms, _on_pairs(piece, basis) if few else self._mesh(piece, basis)))
        return PiecesOperator(operators)

    def _mesh(self, structure: Structure, basis: GaussianBasis) -> MeshOperator:
        grid = self.grid(structure, basis)
        steps = grid.steps(structure)
        points = structure.positions @ torch.linalg.inv(steps)
        order = _by_place(points.detach())
        nodes, weights = assign(points[order], NODES)
        planes, columns = [], []
        for axis in range(3):
            node = nodes[:, axis]
            if axis < len(grid.n_periodic):
                node = node % grid.n_periodic[axis]
            some, column = torch.unique(node, return_inverse=True)
            planes.append(some)
            columns.append(column)
        # A cell of a million atoms has 216 million entries.
        x, y, z = (column.to(torch.int32) for column in columns)
        n_planes = (len(planes[0]), len(planes[1]), len(planes[2]))
        bands = [self._band(grid, planes, structure, basis, chosen) for chosen in self._bands(structure, basis)]
        place = (x[:, :, None] * n_planes[1] + y[:, None, :])[..., None] * n_planes[2] + z[:, None, None, :]
        weights = weights.to(structure.dtype)
        product = weights[:, 0, :, None, None] * weights[:, 1, None, :, None] * weights[:, 2, None, None, :]
        starts = torch.arange(len(structure) + 1, device=steps.device) * NODES**3
        gather = SparsePattern(starts, place.flatten(), math.prod(n_planes))
        flat = product.flatten()
        return MeshOperator(
            order,
            torch.argsort(order),
            gather,
            flat,
            flat.index_select(0, gather.transposed[1]),
            n_planes,
            bands,
        )

    def grid(self, structure: Structure, basis: GaussianBasis) -> Grid:
        """Where the grid of a structure lies."""
        spacing = self.spacing(basis)
        lengths = structure.periodic_vectors.detach().norm(dim=1).tolist()
        n_periodic = tuple(max(NODES, math.ceil(length / spacing)) for length in lengths)
        frame = open_frame(structure) if len(lengths) < 3 else structure.positions.new_zeros(0, 3)
        return Grid(frame, n_periodic, spacing)

    def spacing(self, basis: GaussianBasis) -> float:
        """How far apart grid planes may be, Å."""
        return _spacing_in_widths(self.tolerance) * float(basis.equal_widths().min())

    def _bands(self, structure: Structure, basis: GaussianBasis) -> list[Tensor]:
        """Indices of the members that share their waves, band after band.

        In open directions the widest member decides how far apart images have to be, and so how close waves are,
        and the finest how many there are. With a band for every octave, each member has what it needs and not much
        more.
        """
        if all(structure.pbc):
            return [torch.arange(len(basis), device=basis.widths.device)]
        widths = basis.equal_widths()
        octave = torch.log2(widths / widths.min()).floor()
        return [torch.nonzero(octave == k).squeeze(1) for k in octave.unique()]

    def _band(
        self, grid: Grid, planes: list[Tensor], structure: Structure, basis: GaussianBasis, chosen: Tensor
    ) -> Band:
        members = basis.some(chosen)
        cell = self._cell(grid, structure, members)
        turns = self._turns(grid, cell)
        n_waves = self._n_waves(members, cell, turns)
        (u, v, w), (nx, ny, nz) = (2 * k + 1 for k in n_waves), map(len, planes)
        if max(nx * ny * nz, u * ny * nz, u * v * nz, u * v * w) > _MOST_POINTS:
            raise too_large(structure)
        x, y, z = (
            trigonometric_matrix(some, turn, k).to(structure.dtype)
            for some, turn, k in zip(planes, turns, n_waves, strict=True)
        )
        cutoffs = members.cutoffs(self.tolerance)
        spectra = _spectra(cell, turns, n_waves, members, cutoffs, _may_shear(structure))
        return Band(chosen, (x, y, z), {axes: part.to(structure.dtype) for axes, part in spectra.items()})

    def _cell(self, grid: Grid, structure: Structure, basis: GaussianBasis) -> Tensor:
        """(3, 3) Å: the period of the waves along each step of the grid."""
        # Several images of an atom are equally near in a padded box, and each adds its share.
        return padded_cell(structure, basis, self.tolerance / 10, grid.frame)

    @staticmethod
    def _turns(grid: Grid, cell: Tensor) -> list[Tensor]:
        """Along each axis, by how much the first wave turns from one plane to the next."""
        periodic = [torch.tensor(1 / n, dtype=cell.dtype, device=cell.device) for n in grid.n_periodic]
        return periodic + [grid.spacing / row.norm() for row in cell[len(periodic) :]]

    def _n_waves(self, basis: GaussianBasis, cell: Tensor, turns: list[Tensor]) -> list[int]:
        """K along each axis: the waves up to the end of all transforms, or what the grid can hold."""
        longest = TAPER * basis.band_limit(self.tolerance)
        reach = longest * cell.detach().norm(dim=1)
        most = [math.ceil(1 / (2 * float(turn.detach()))) - 1 for turn in turns]
        return [min(int(r), m) for r, m in zip(reach.tolist(), most, strict=True)]

    @staticmethod
    def n_planes(grid: Grid, structure: Structure) -> list[int]:
        """Along each axis, how many planes of the grid atoms are spread over, or a few more."""
        nodes = (structure.positions.detach() @ torch.linalg.inv(grid.steps(structure))).floor().long()
        found = []
        for axis in range(3):
            # An atom alone takes NODES planes; neighbours share theirs.
            apart = nodes[:, axis].unique().diff().clamp(max=NODES)
            found.append(int(apart.sum()) + NODES)
        return [
            min(n, *grid.n_periodic[axis : axis + 1]) if axis < len(grid.n_periodic) else n
            for axis, n in enumerate(found)
        ]


def _on_pairs(piece: Structure, basis: GaussianBasis) -> StructureOperator:
    """f̂ of a few atoms."""
    squared = squared_distances(piece.positions, piece.dtype)
    far = OnPairs([basis.on_pairs(squared)[:, None]])
    return lambda weights, values: far(weights, values[None])[0]


def too_large(structure: Structure) -> InputError:
    """What is raised where a grid would not fit into the memory of a usual machine."""
    return InputError(
        f"a structure of {len(structure):,} atoms needs a mesh of more than {_MOST_POINTS:,} points; "
        "look for atoms that are far from all others"
    )


def _by_place(points: Tensor) -> Tensor:
    """(n,) indices that bring points of one cube of the grid together; points (n, 3) in units of the spacing."""
    cube = torch.div(points - points.amin(dim=0), _CUBE, rounding_mode="floor").long()
    _, y, z = cube.amax(dim=0) + 1
    return torch.argsort((cube[:, 0] * y + cube[:, 1]) * z + cube[:, 2], stable=True)


def _spacing_in_widths(tolerance: float) -> float:
    """The h/σ at which a grid of spacing h represents a Gaussian of width σ to ``tolerance``."""
    return _SPACING_AT_ONE * tolerance**_SPACING_POWER


def _may_shear(structure: Structure) -> bool:
    """Whether a derivative with respect to the lattice is wanted. Artificial cell vectors stay orthogonal to it."""
    return torch.is_grad_enabled() and structure.cell.requires_grad


def _is_orthogonal(vectors: Tensor) -> bool:
    gram = vectors @ vectors.transpose(0, 1)
    return torch.allclose(gram, torch.diag(gram.diagonal()), rtol=0.0, atol=1e-12 * float(gram.detach().max()))


def _spectra(
    cell: Tensor, turns: list[Tensor], n_waves: list[int], basis: GaussianBasis, cutoffs: Tensor, may_shear: bool
) -> dict[Axes, Tensor]:
    """Fourier transforms of the members over the volume, with the assignment undone, (n_members, *waves).

    They are given by the axes along which they exchange cosines and sines: no axes for the part that is even in every
    wave number, which is all there is if the cell's vectors are orthogonal, and the three pairs of axes for the rest.
    """
    options: dict[str, Any] = {"dtype": torch.float64, "device": cell.device}
    index = [torch.arange(k + 1, **options) for k in n_waves]
    reciprocal = torch.linalg.inv(cell).transpose(0, 1)
    gram = reciprocal @ reciprocal.transpose(0, 1)
    assigned = [optimal_influence(i * turn, NODES) for i, turn in zip(index, turns, strict=True)]
    window = assigned[0][:, None, None] * assigned[1][None, :, None] * assigned[2][None, None, :]
    volume = torch.linalg.det(cell).abs()

    def spectrum(sign_y: float, sign_z: float) -> Tensor:
        k = torch.stack(torch.meshgrid(index[0], sign_y * index[1], sign_z * index[2], indexing="ij"), dim=-1)
        squared = ((k @ gram) * k).sum(dim=-1)
        nonzero = squared > 0
        length = torch.where(nonzero, torch.where(nonzero, squared, 1.0).sqrt(), 0.0)
        ended = taper(length[..., None], cutoffs, TAPER * cutoffs)
        return (ended * basis.spectra(length)).movedim(-1, 0).to(torch.float64) * window / volume

    if _is_orthogonal(reciprocal) and not may_shear:
        parts: dict[Axes, Tensor] = {(): spectrum(1, 1)}
    else:
        pp, pm, mp, mm = spectrum(1, 1), spectrum(1, -1), spectrum(-1, 1), spectrum(-1, -1)
        parts = {
            (): (pp + pm + mp + mm) / 4,
            (0, 1): (pp + pm - mp - mm) / 4,
            (0, 2): (pp - pm + mp - mm) / 4,
            (1, 2): (pp - pm - mp + mm) / 4,
        }
    rows = [wave_numbers(k, cell.device) for k in n_waves]
    return {axes: part[:, rows[0]][:, :, rows[1]][:, :, :, rows[2]] for axes, part in parts.items()}


_SPACING_AT_ONE, _SPACING_POWER = 1.62, 0.135
"""h/σ = 0.64 at ε = 1e-3, 0.47 at 1e-4, 0.34 at 1e-5: measured with a margin. Tests compare with the image sum."""

_MOST_POINTS = 1 << 26
"""Grid points or waves of the largest mesh."""

_FEW = 50
"""Atoms of a piece that is summed over pairs instead of on a mesh."""

_CUBE = 4
"""The edge of the cubes by which atoms are ordered, in grid spacings."""
