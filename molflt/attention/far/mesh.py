"""Particle mesh: values are spread on a grid, convolved with f, and read off again (DESIGN §3, item 6).

This carries the FFT for Toeplitz RPE of Luo et al. (arXiv 2106.12566) over to scattered points, with the P3M
assignment of Hockney and Eastwood. The spectrum of f ends so early that products with small matrices of waves
replace the FFT.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from molflt.attention.far.costs import LayerSizes, Work
from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.grid import assign, optimal_influence, trigonometric_matrix, wave_numbers
from molflt.attention.far.images import far_apart, open_frame, padded_cell, periodic_vectors
from molflt.attention.far.members import TAPER, GaussianBasis
from molflt.attention.far.mesh_operator import Axes, Band, MeshOperator, PiecesOperator, channels_at_once
from molflt.attention.far.method import FarOperator, FrequencyMethod
from molflt.attention.geometry import Geometry, subset_of_atoms
from molflt.attention.smooth import taper
from molflt.attention.sparse import SparsePattern
from molflt.errors import InputError

NODES = 6
"""Grid points per axis that an atom is spread over. With more the grid can be coarser, but spreading grows with their
cube; with this number spreading and waves cost about the same."""


@dataclass(frozen=True)
class GridShape:
    """What the work on a grid follows from.

    Attributes:
        n_planes: along each axis, how many planes atoms are spread over.
        n_waves: of every band along each axis.
        n_members: of every band.
        n_parts: of each spectrum, 1 or, with exchange, 4 (see :func:`_spectra`).
    """

    n_planes: list[int]
    n_waves: list[list[int]]
    n_members: list[int]
    n_parts: int

    @property
    def fits(self) -> bool:
        """Whether it would fit into the memory of a usual machine."""
        _, y, z = self.n_planes
        on_the_way = [n for u, v, w in self.n_waves for n in (u * v * w, u * y * z, u * v * z)]
        return max(math.prod(self.n_planes), *on_the_way) <= _MOST_POINTS

    def work(self, n_atoms: int, sizes: LayerSizes) -> Work:
        """Preparation, and what all layers do."""
        channels, repeats = sizes.n_channels, sizes.n_applications
        x, y, z = self.n_planes
        step = channels_at_once(self.n_planes, self.n_waves)
        of_head = max(1, channels // sizes.n_heads)
        heads_at_once = min(sizes.n_heads, max(1, step // of_head))
        passes = repeats * math.ceil(sizes.n_heads / heads_at_once) * math.ceil(of_head / step)
        waves = [math.prod(of_band) for of_band in self.n_waves]
        members = self.n_parts * sum(n * k for n, k in zip(waves, self.n_members, strict=True))
        return Work(
            mesh_bands=len(waves),
            mesh_entries=n_atoms * NODES**3,
            mesh_spectra=members,
            grid_passes=passes,
            grid_bands=passes * len(waves),
            grid_spread=2 * repeats * channels * n_atoms * NODES**3,
            grid_points=repeats * channels * x * y * z,
            grid_first=2 * repeats * channels * x * y * z * sum(u for u, _, _ in self.n_waves),
            grid_others=2 * repeats * channels * sum(u * z * v * (y + w) for u, v, w in self.n_waves),
            grid_values=repeats * channels * self.n_parts * sum(waves),
            grid_filters=repeats * sizes.n_heads * members,
        )


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

    def steps(self, geometry: Geometry, b: int) -> Tensor:
        """(3, 3) Å: from one plane to the next, the periodic vectors first."""
        periodic = periodic_vectors(geometry, b)
        counts = torch.tensor(self.n_periodic, dtype=periodic.dtype, device=periodic.device)
        return torch.cat([periodic / counts[:, None], self.spacing * self.frame])


class MeshMethod(FrequencyMethod):
    """f by a particle mesh, for any boundary conditions, in O(N^{4/3}) at fixed density with a small factor.

    In open directions the grid lies along the principal axes of the structure and has a fixed spacing, so that it
    turns and moves with the structure: where these axes are not equal, rotation changes nothing but rounding. Along
    a lattice the grid divides the lattice vectors, and invariance under wrapping holds to ε. Only planes that hold
    atoms are transformed.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    name = "mesh"

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> MeshOperator | PiecesOperator:
        """See :class:`FrequencyMethod`.

        Raises:
            InputError: the grid would not fit into the memory of a usual machine.
        """
        pieces = far_apart(geometry, b, basis.reach)
        if len(pieces) == 1:
            return self._mesh(geometry, b, basis)
        operators: list[tuple[Tensor, FarOperator]] = []
        for atoms in pieces:
            piece = subset_of_atoms(geometry, b, atoms)
            few = len(atoms) <= _FEW
            operators.append(
                (atoms, ExactMethod().pairs_operator(piece, 0, basis) if few else self._mesh(piece, 0, basis))
            )
        return PiecesOperator(operators)

    def _mesh(self, geometry: Geometry, b: int, basis: GaussianBasis) -> MeshOperator:
        grid = self.grid(geometry, b, basis)
        if not self._shape(grid, geometry, b, basis).fits:
            raise too_large(geometry, b)
        steps = grid.steps(geometry, b)
        points = geometry.atoms_of(b) @ torch.linalg.inv(steps)
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
        place = (x[:, :, None] * n_planes[1] + y[:, None, :])[..., None] * n_planes[2] + z[:, None, None, :]
        weights = weights.to(geometry.dtype)
        product = weights[:, 0, :, None, None] * weights[:, 1, None, :, None] * weights[:, 2, None, None, :]
        starts = torch.arange(geometry.sizes[b] + 1, device=steps.device) * NODES**3
        gather = SparsePattern(starts, place.flatten(), math.prod(n_planes))
        flat = product.flatten()
        return MeshOperator(
            order,
            torch.argsort(order),
            gather,
            flat,
            flat.index_select(0, gather.transposed[1]),
            n_planes,
            [self._band(grid, planes, geometry, b, basis, chosen) for chosen in self._bands(geometry, b, basis)],
        )

    def grid(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Grid:
        """Where the grid of structure ``b`` lies."""
        spacing = self.spacing(basis)
        lengths = periodic_vectors(geometry, b).detach().norm(dim=1).tolist()
        n_periodic = tuple(max(NODES, math.ceil(length / spacing)) for length in lengths)
        frame = open_frame(geometry, b) if len(lengths) < 3 else geometry.positions.new_zeros(0, 3)
        return Grid(frame, n_periodic, spacing)

    def spacing(self, basis: GaussianBasis) -> float:
        """How far apart grid planes may be, Å."""
        return _spacing_in_widths(self.tolerance) * float(basis.equal_widths().min())

    def _bands(self, geometry: Geometry, b: int, basis: GaussianBasis) -> list[Tensor]:
        """Indices of the members that share their waves, band after band.

        In open directions the widest member decides how far apart images have to be, and so how close waves are,
        and the finest how many there are. With a band for every octave, each member has what it needs and not much
        more.
        """
        if all(geometry.pbc[b]):
            return [torch.arange(len(basis), device=basis.widths.device)]
        widths = basis.equal_widths()
        octave = torch.log2(widths / widths.min()).floor()
        return [torch.nonzero(octave == k).squeeze(1) for k in octave.unique()]

    def _band(
        self, grid: Grid, planes: list[Tensor], geometry: Geometry, b: int, basis: GaussianBasis, chosen: Tensor
    ) -> Band:
        members = basis.some(chosen)
        cell = self._cell(grid, geometry, b, members)
        turns = self._turns(grid, cell)
        n_waves = self._n_waves(members, cell, turns)
        x, y, z = (
            trigonometric_matrix(some, turn, k).to(geometry.dtype)
            for some, turn, k in zip(planes, turns, n_waves, strict=True)
        )
        cutoffs = members.cutoffs(self.tolerance)
        spectra = _spectra(cell, turns, n_waves, members, cutoffs, _may_shear(geometry))
        return Band(chosen, (x, y, z), {axes: part.to(geometry.dtype) for axes, part in spectra.items()})

    def _cell(self, grid: Grid, geometry: Geometry, b: int, basis: GaussianBasis) -> Tensor:
        """(3, 3) Å: the period of the waves along each step of the grid."""
        # Several images of an atom are equally near in a padded box, and each adds its share.
        return padded_cell(geometry, b, basis, self.tolerance / 10, grid.frame)

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

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`. It applies the operator to unit vectors, for comparison and not for use."""
        found = []
        for b in structures:
            rows = torch.arange(geometry.sizes[b], device=geometry.positions.device)
            found.append(self._columns(geometry, b, basis, rows))
        return geometry.pad_blocks(found)

    def pair_work(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Work | None:
        """See :class:`FrequencyMethod`: one application to every unit vector and member."""
        n_members = len(basis)
        on_units = LayerSizes(1, n_members, 0, far_dim=geometry.sizes[b] * n_members, rank=1, n_layers=1)
        return self.operator_work(geometry, b, basis, on_units)

    def operator_work(self, geometry: Geometry, b: int, basis: GaussianBasis, sizes: LayerSizes) -> Work | None:
        """See :class:`FrequencyMethod`. There is no operator where the grid would be too large."""
        total, pieces = Work(mesh_calls=1), far_apart(geometry, b, basis.reach)
        for atoms in pieces:
            piece, k = (geometry, b) if len(pieces) == 1 else (subset_of_atoms(geometry, b, atoms), 0)
            if len(pieces) > 1 and len(atoms) <= _FEW:
                n_pairs = len(atoms) ** 2
                mixed = sizes.n_applications * n_pairs * (len(basis) * sizes.n_heads + sizes.n_channels)
                total += ExactMethod().pair_work(piece, 0, basis) + Work(pair_mixed=mixed)
                continue
            shape = self._shape(self.grid(piece, k, basis), piece, k, basis)
            if not shape.fits:
                return None
            total += shape.work(piece.sizes[k], sizes)
        return total

    def _shape(self, grid: Grid, geometry: Geometry, b: int, basis: GaussianBasis) -> GridShape:
        n_waves, n_members, exchanged = [], [], _may_shear(geometry)
        with torch.no_grad():
            for chosen in self._bands(geometry, b, basis):
                members = basis.some(chosen)
                cell = self._cell(grid, geometry, b, members)
                n_waves.append([2 * k + 1 for k in self._n_waves(members, cell, self._turns(grid, cell))])
                n_members.append(len(members))
                exchanged = exchanged or not _is_orthogonal(torch.linalg.inv(cell).transpose(0, 1))
            return GridShape(self.n_planes(grid, geometry, b), n_waves, n_members, 4 if exchanged else 1)

    @staticmethod
    def n_planes(grid: Grid, geometry: Geometry, b: int) -> list[int]:
        """Along each axis, how many planes of the grid atoms are spread over, or a few more."""
        nodes = (geometry.atoms_of(b).detach() @ torch.linalg.inv(grid.steps(geometry, b))).floor().long()
        found = []
        for axis in range(3):
            # An atom alone takes NODES planes; neighbours share theirs.
            apart = nodes[:, axis].unique().diff().clamp(max=NODES)
            found.append(int(apart.sum()) + NODES)
        return [
            min(n, *grid.n_periodic[axis : axis + 1]) if axis < len(grid.n_periodic) else n
            for axis, n in enumerate(found)
        ]

    def _columns(self, geometry: Geometry, b: int, basis: GaussianBasis, senders: Tensor) -> Tensor:
        """(n, len(senders), n_basis): f̂ between every atom and the senders."""
        unit = torch.zeros(geometry.sizes[b], len(senders), dtype=geometry.dtype, device=senders.device)
        unit[senders, torch.arange(len(senders), device=senders.device)] = 1.0
        each = torch.eye(len(basis), dtype=geometry.dtype, device=senders.device)
        values = unit[:, None, :].expand(-1, len(basis), -1)
        return self.operator(geometry, b, basis)(each, values).transpose(1, 2)


def too_large(geometry: Geometry, b: int) -> InputError:
    """What is raised where :meth:`MeshMethod.operator_work` returns None."""
    return InputError(
        f"a structure of {geometry.sizes[b]:,} atoms needs a mesh of more than {_MOST_POINTS:,} points; use "
        "frequencies=auto, or look for atoms that are far from all others"
    )


def _by_place(points: Tensor) -> Tensor:
    """(n,) indices that bring points of one cube of the grid together; points (n, 3) in units of the spacing."""
    cube = torch.div(points - points.amin(dim=0), _CUBE, rounding_mode="floor").long()
    _, y, z = cube.amax(dim=0) + 1
    return torch.argsort((cube[:, 0] * y + cube[:, 1]) * z + cube[:, 2], stable=True)


def _spacing_in_widths(tolerance: float) -> float:
    """The h/σ at which a grid of spacing h represents a Gaussian of width σ to ``tolerance``."""
    return _SPACING_AT_ONE * tolerance**_SPACING_POWER


def _may_shear(geometry: Geometry) -> bool:
    """Whether a derivative with respect to the lattice is wanted. Artificial cell vectors stay orthogonal to it."""
    return torch.is_grad_enabled() and geometry.cell.requires_grad


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
