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

from molflt.attention.far.exact import ExactMethod
from molflt.attention.far.grid import (
    along_axes,
    assign,
    exchange,
    optimal_influence,
    trigonometric_matrix,
    wave_numbers,
)
from molflt.attention.far.images import padded_cell
from molflt.attention.far.members import GaussianBasis, cutoff_factor
from molflt.attention.far.method import EXP_COST, FrequencyMethod
from molflt.attention.geometry import Geometry, select_rows, subset_of_atoms
from molflt.attention.sparse import SparsePattern, weighted_sum

NODES = 6
"""Grid points per axis that an atom is spread over. With more the grid can be coarser, but spreading grows with their
cube; with this number spreading and waves cost about the same."""

Axes = tuple[int, int] | tuple[()]
"""The axes along which a part of a spectrum exchanges cosines and sines."""


@dataclass
class MeshOperator:
    """f̂ of one structure on its grid; a :class:`FarOperator`.

    Attributes:
        order: (n,) indices of the atoms in order of place. Neighbours in space read the same grid points, which are
            then still in the processor's cache.
        place: (n,) the position of every atom in that order.
        gather: which grid points every atom reads; transposed, which atoms every grid point receives.
        weights: (n · NODES³,) weights of the entries of ``gather``.
        weights_transposed: the same in the order of the transposed pattern.
        n_points: how many grid points are not padding, along each vector.
        matrices: from grid points to waves along each vector, (2K + 1, n_points).
        spectra: transforms of the basis functions on the waves, (n_weights, *waves), by the axes along which they
            exchange (see :func:`_spectra`).
    """

    order: Tensor
    place: Tensor
    gather: SparsePattern
    weights: Tensor
    weights_transposed: Tensor
    n_points: tuple[int, int, int]
    matrices: tuple[Tensor, Tensor, Tensor]
    spectra: dict[Axes, Tensor]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarOperator`. A bounded number of channels is carried at a time."""
        _, n_heads, n_channels = values.shape
        step = _MESH_VALUES_AT_ONCE // max(math.prod(self.n_points), math.prod(map(len, self.matrices)))
        step = min(max(step, _CHANNELS_AT_LEAST), _CHANNELS_AT_MOST)
        values = select_rows(values, self.order)
        heads_at_once = min(n_heads, max(1, step // n_channels))
        found = []
        for part, weight in zip(values.split(heads_at_once, dim=1), weights.split(heads_at_once, dim=1), strict=True):
            filters = {axes: torch.einsum("txyz,th->xyzh", spectra, weight) for axes, spectra in self.spectra.items()}
            found.append(torch.cat([self._convolve(v, filters) for v in part.split(step, dim=2)], dim=2))
        return select_rows(torch.cat(found, dim=1), self.place)

    def _convolve(self, values: Tensor, filters: dict[Axes, Tensor]) -> Tensor:
        """(n, heads, channels), (*waves, heads) → (n, heads, channels)."""
        scatter, _ = self.gather.transposed
        grid = weighted_sum(scatter, self.weights_transposed[None], values.flatten(1)[None])[0]
        waves = along_axes(grid.view(*self.n_points, -1), self.matrices).unflatten(-1, values.shape[1:])
        field = waves * filters[()][..., None]
        for axes, spectrum in filters.items():
            if axes:
                field = field + exchange(waves, axes) * spectrum[..., None]
        x, y, z = self.matrices
        grid = along_axes(field.flatten(-2), (x.t(), y.t(), z.t())).flatten(0, 2)
        return weighted_sum(self.gather, self.weights[None], grid[None])[0].unflatten(-1, values.shape[1:])


@dataclass
class BandedOperator:
    """The sum of several meshes, each for some of the basis functions; a :class:`FarOperator`.

    Attributes:
        bands: the meshes, each with the indices of its basis functions.
    """

    bands: list[tuple[MeshOperator, Tensor]]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarOperator`."""
        total = torch.zeros_like(values)
        for operator, chosen in self.bands:
            total = total + operator(weights[chosen], values)
        return total


class MeshMethod(FrequencyMethod):
    """f by a particle mesh, for any boundary conditions, in O(N^{4/3}) at fixed density with a small factor.

    Invariance under rotation and wrapping holds to ε and not exactly, because the grid does not turn with the
    structure. The number of grid points follows from cell and widths, in open directions also from the extent; where
    it steps, energies jump by less than ε.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    name = "mesh"

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> BandedOperator:
        """See :class:`FrequencyMethod`."""
        bands = self._bands(geometry, b, basis)
        return BandedOperator([(self._mesh(geometry, b, basis.some(chosen)), chosen) for chosen in bands])

    def _bands(self, geometry: Geometry, b: int, basis: GaussianBasis) -> list[Tensor]:
        """Indices of the basis functions that share a mesh, mesh after mesh.

        In open directions the widest Gaussian decides how much padding there is and the narrowest how fine the mesh
        is. With a mesh for every octave, each Gaussian has what it needs and not much more.
        """
        if all(geometry.pbc[b]):
            return [torch.arange(len(basis), device=basis.widths.device)]
        octave = torch.log2(basis.widths.detach() / basis.narrowest).floor()
        return [torch.nonzero(octave == k).squeeze(1) for k in octave.unique()]

    def _mesh(self, geometry: Geometry, b: int, basis: GaussianBasis) -> MeshOperator:
        start, n = geometry.starts[b], geometry.sizes[b]
        cell = self._cell(geometry, b, basis)
        n_grid = self.n_grid(cell, basis)
        turns = geometry.positions[start : start + n] @ torch.linalg.inv(cell)
        points = turns * torch.tensor(n_grid, device=cell.device)
        order = _by_place(points.detach())
        nodes, weights = assign(points[order], NODES)
        columns = []
        n_points = list(n_grid)
        for axis in range(3):
            if geometry.pbc[b][axis]:
                columns.append(nodes[:, axis] % n_grid[axis])
            else:
                columns.append(nodes[:, axis] - nodes[:, axis].min())
                n_points[axis] = int(columns[-1].max()) + 1
        x, y, z = columns
        place = (x[:, :, None] * n_points[1] + y[:, None, :])[..., None] * n_points[2] + z[:, None, None, :]
        weights = weights.to(geometry.dtype)
        product = weights[:, 0, :, None, None] * weights[:, 1, None, :, None] * weights[:, 2, None, None, :]
        starts = torch.arange(n + 1, device=cell.device) * NODES**3
        gather = SparsePattern(starts, place.flatten(), math.prod(n_points))
        flat = product.flatten()
        n_waves = [self.n_waves(m) for m in n_grid]
        x, y, z = (
            trigonometric_matrix(m, there, k, flat) for m, there, k in zip(n_grid, n_points, n_waves, strict=True)
        )
        spectra = _spectra(cell, n_grid, n_waves, basis)
        return MeshOperator(
            order,
            torch.argsort(order),
            gather,
            flat,
            flat.index_select(0, gather.transposed[1]),
            (n_points[0], n_points[1], n_points[2]),
            (x, y, z),
            {axes: part.to(geometry.dtype) for axes, part in spectra.items()},
        )

    def _cell(self, geometry: Geometry, b: int, basis: GaussianBasis) -> Tensor:
        """(3, 3) Å."""
        # Several images of an atom are equally near in a padded box, and each adds its share.
        return padded_cell(geometry, b, basis, self.tolerance / 10)

    def n_grid(self, cell: Tensor, basis: GaussianBasis) -> tuple[int, int, int]:
        """How many grid points there are along each cell vector."""
        spacing = basis.narrowest * spacing_in_widths(self.tolerance)
        x, y, z = (max(NODES, math.ceil(float(v.norm()) / spacing)) for v in cell.detach())
        return x, y, z

    def n_waves(self, n_grid: int) -> int:
        """K for a period of ``n_grid`` points: the waves that the narrowest Gaussian contains."""
        # It depends on the points alone, so that it stays when a grid is kept while its cell changes.
        longest = cutoff_factor(self.tolerance / 4) / (2 * math.pi) * spacing_in_widths(self.tolerance)
        return min(math.ceil(longest * n_grid), (n_grid - 1) // 2)

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`. It applies the operator to unit vectors, for comparison and not for use."""
        found = []
        for b in structures:
            rows = torch.arange(geometry.sizes[b], device=geometry.positions.device)
            found.append(self._columns(geometry, b, basis, rows))
        return geometry.pad_blocks(found)

    def pair_cost(self, geometry: Geometry, b: int, basis: GaussianBasis) -> float:
        """See :class:`FrequencyMethod`."""
        return self.operator_cost(geometry, b, basis, geometry.sizes[b] * len(basis), 1)

    def operator_cost(
        self, geometry: Geometry, b: int, basis: GaussianBasis, n_channels: int, n_applications: int
    ) -> float:
        """See :class:`FrequencyMethod`."""
        cost = 0.0
        for chosen in self._bands(geometry, b, basis):
            band = basis.some(chosen)
            with torch.no_grad():
                cell = self._cell(geometry, b, band)
            n_grid = self.n_grid(cell, band)
            waves = [2 * self.n_waves(m) + 1 for m in n_grid]
            points = [
                m if periodic else self._occupied(geometry, b, cell[axis], m)
                for axis, (m, periodic) in enumerate(zip(n_grid, geometry.pbc[b], strict=True))
            ]
            x, y, z = points
            transform = x * y * z * waves[0] + waves[0] * y * z * waves[1] + waves[0] * waves[1] * z * waves[2]
            spread = 2 * geometry.sizes[b] * NODES**3
            n_waves = math.prod(waves)
            once = n_waves * len(band) * EXP_COST + _PLAN_COST * spread
            each = 2 * _TRANSFORM_COST * transform + _SCATTER_COST * spread + _FILTER_COST * n_waves
            cost += once + n_applications * (n_channels * each)
        return cost

    @staticmethod
    def _occupied(geometry: Geometry, b: int, axis: Tensor, n_grid: int) -> int:
        """An upper bound of the grid points that the atoms reach along an open axis."""
        start = geometry.starts[b]
        positions = geometry.positions[start : start + geometry.sizes[b]].detach()
        length = float(axis.detach().norm())
        low, high = torch.aminmax(positions @ axis.detach() / length)
        return math.ceil(float(high - low) / length * n_grid) + NODES

    def achieved_error(self, geometry: Geometry, b: int, basis: GaussianBasis, n_sample: int = 100) -> float:
        """The largest deviation from the exact sum on the pairs of some atoms, relative to the amplitudes."""
        n = geometry.sizes[b]
        chosen = torch.linspace(0, n - 1, min(n, n_sample)).round().long().to(geometry.positions.device)
        sample = subset_of_atoms(geometry, b, chosen)
        with torch.no_grad():
            found = self._columns(geometry, b, basis, chosen)[chosen]
            expected = ExactMethod().pair_basis(sample, basis)[0]
            return float(((found - expected).abs() / basis.amplitudes).max())

    def _columns(self, geometry: Geometry, b: int, basis: GaussianBasis, senders: Tensor) -> Tensor:
        """(n, len(senders), n_basis): f̂ between every atom and the senders."""
        unit = torch.zeros(geometry.sizes[b], len(senders), dtype=geometry.dtype, device=senders.device)
        unit[senders, torch.arange(len(senders), device=senders.device)] = 1.0
        each = torch.eye(len(basis), dtype=geometry.dtype, device=senders.device)
        values = unit[:, None, :].expand(-1, len(basis), -1)
        return self.operator(geometry, b, basis)(each, values).transpose(1, 2)


def _by_place(points: Tensor) -> Tensor:
    """(n,) indices that bring points of one cube of the grid together; points (n, 3) in units of the spacing."""
    cube = torch.div(points - points.amin(dim=0), _CUBE, rounding_mode="floor").long()
    _, y, z = cube.amax(dim=0) + 1
    return torch.argsort((cube[:, 0] * y + cube[:, 1]) * z + cube[:, 2], stable=True)


def spacing_in_widths(tolerance: float) -> float:
    """The h/σ at which a grid of spacing h represents a Gaussian of width σ to ``tolerance``."""
    return _SPACING_AT_ONE * tolerance**_SPACING_POWER


def _spectra(
    cell: Tensor, n_grid: tuple[int, int, int], n_waves: list[int], basis: GaussianBasis
) -> dict[Axes, Tensor]:
    """Fourier transforms of the basis functions over the volume, with the assignment undone, (n_weights, *waves).

    They are given by the axes along which they exchange cosines and sines: no axes for the part that is even in every
    wave number, which is all there is if the cell's vectors are orthogonal, and the three pairs of axes for the rest.
    """
    options: dict[str, Any] = {"dtype": torch.float64, "device": cell.device}
    index = [torch.arange(k + 1, **options) for k in n_waves]
    reciprocal = torch.linalg.inv(cell).transpose(0, 1)
    gram = reciprocal @ reciprocal.transpose(0, 1)
    assigned = [optimal_influence(i, n, NODES) for i, n in zip(index, n_grid, strict=True)]
    window = assigned[0][:, None, None] * assigned[1][None, :, None] * assigned[2][None, None, :]
    volume = torch.linalg.det(cell).abs()

    def spectrum(sign_y: float, sign_z: float) -> Tensor:
        k = torch.stack(torch.meshgrid(index[0], sign_y * index[1], sign_z * index[2], indexing="ij"), dim=-1)
        squared = ((k @ gram) * k).sum(dim=-1)
        nonzero = squared > 0
        length = torch.where(nonzero, torch.where(nonzero, squared, 1.0).sqrt(), 0.0)
        return basis.spectra(length).movedim(-1, 0).to(torch.float64) * window / volume

    orthogonal = torch.allclose(gram, torch.diag(gram.diagonal()), rtol=0.0, atol=1e-12 * float(gram.detach().max()))
    if orthogonal and not cell.requires_grad:
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


_SPACING_AT_ONE, _SPACING_POWER = 1.52, 0.135
"""h/σ = 0.60 at ε = 1e-3, 0.44 at 1e-4, 0.32 at 1e-5: measured with a margin. Tests compare with the image sum."""

_MESH_VALUES_AT_ONCE, _CHANNELS_AT_LEAST, _CHANNELS_AT_MOST = 1 << 27, 16, 128
"""Grid points times channels that are held at once, several times over, and bounds of the number of channels. Fewer
channels waste what is fetched with a point, more do not stay in the cache."""

_CUBE = 4
"""The edge of the cubes by which atoms are ordered, in grid spacings."""

_TRANSFORM_COST, _SCATTER_COST, _FILTER_COST, _PLAN_COST = 4.0, 4.0, 60.0, 300.0
"""Costs, measured on CPUs in multiply-adds of a large matrix product: of one in products with small matrices, of one
that gathers or scatters, of what is done to every wave, and of making and sorting an entry of the assignment."""
