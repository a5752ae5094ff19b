"""Particle mesh: values spread on a grid, convolved with f by FFT, and read off again (DESIGN §3, item 6).

The FFT for Toeplitz RPE of Luo et al. (arXiv 2106.12566) carried over to scattered points, with the P3M assignment of
Hockney and Eastwood as torch-pme implements it and a filter of our own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torchpme.lib import MeshInterpolator

from molflt.attention.fast_length import fast_length
from molflt.attention.frequencies.exact import ExactMethod
from molflt.attention.frequencies.images import pad_blocks
from molflt.attention.frequencies.method import EXP_COST, FrequencyMethod
from molflt.attention.frequencies.padded_cell import padded_cell
from molflt.attention.geometry import Geometry
from molflt.attention.partition import subset_of_atoms
from molflt.attention.rpe import GaussianBasis

NODES = 5
"""Grid points per axis that an atom is spread over: the most torch-pme has, and the cheapest for every ε in use."""


@dataclass
class MeshOperator:
    """f̂ of one structure on its grid. A FarOperator.

    Attributes:
        positions: (n, 3) Å, float64.
        cell: (3, 3) Å, float64, periodic along all vectors.
        n_grid: grid points along each vector.
        spectra: (n_weights, *n_grid with the last axis halved): Fourier transform of every basis function over the
            volume and the square of the assignment function's.
    """

    positions: Tensor
    cell: Tensor
    n_grid: tuple[int, int, int]
    spectra: Tensor

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarOperator`; computed in float64, a bounded number of channels at a time."""
        n, n_heads, n_channels = values.shape
        filters = torch.einsum("txyz,th->hxyz", self.spectra, weights.to(torch.float64))
        flat = values.to(torch.float64).reshape(n, -1)
        step = max(1, _MESH_VALUES_AT_ONCE // math.prod(self.n_grid))
        found = []
        for first in range(0, n_heads * n_channels, step):
            last = min(first + step, n_heads * n_channels)
            heads = torch.arange(first, last, device=values.device) // n_channels
            part = (flat[:, first:last], filters[heads])
            if torch.is_grad_enabled():
                found.append(checkpoint(self._convolve, *part, use_reentrant=False))
            else:
                found.append(self._convolve(*part))
        return torch.cat(found, dim=1).view(n, n_heads, n_channels).to(values.dtype)

    def _convolve(self, values: Tensor, filters: Tensor) -> Tensor:
        """(n, c) values, (c, ...) filters → (n, c)."""
        interpolator = MeshInterpolator(
            self.cell, torch.tensor(self.n_grid, device=self.cell.device), interpolation_nodes=NODES, method="P3M"
        )
        interpolator.compute_weights(self.positions)
        waves = torch.fft.rfftn(interpolator.points_to_mesh(values), dim=(1, 2, 3), norm="backward")
        field = torch.fft.irfftn(waves * filters, s=self.n_grid, dim=(1, 2, 3), norm="forward")
        found: Tensor = interpolator.mesh_to_points(field)
        return found


class MeshMethod(FrequencyMethod):
    """f by a particle mesh, for any boundary conditions; O(N log N) at fixed density.

    Rotation and wrapping hold to ε, not exactly: the grid does not turn with the structure. The grid is a function
    of cell and widths, and in open directions of the extent, with steps; energies jump by less than ε there.

    Args:
        tolerance: ε, relative to Σ_t |w_t n_t|.
    """

    name = "mesh"

    def __init__(self, tolerance: float) -> None:
        super().__init__()
        self.tolerance = tolerance

    def operator(self, geometry: Geometry, b: int, basis: GaussianBasis) -> MeshOperator:
        """See :class:`FrequencyMethod`."""
        start, n = geometry.starts[b], geometry.sizes[b]
        cell = padded_cell(geometry, b, basis, self.tolerance)
        n_grid = self.n_grid(cell, basis)
        return MeshOperator(geometry.positions[start : start + n], cell, n_grid, _spectra(cell, n_grid, basis))

    def n_grid(self, cell: Tensor, basis: GaussianBasis) -> tuple[int, int, int]:
        """Grid points along each cell vector, products of small primes."""
        spacing = basis.narrowest * spacing_in_widths(self.tolerance)
        # Between lattice planes, not along vectors: in a skewed cell the planes are closer.
        heights = 1 / torch.linalg.inv(cell.detach()).norm(dim=0)
        x, y, z = (fast_length(max(NODES, math.ceil(float(h) / spacing))) for h in heights)
        return x, y, z

    def blocks(self, geometry: Geometry, structures: Sequence[int], basis: GaussianBasis) -> Tensor:
        """See :class:`FrequencyMethod`: the operator on unit vectors, for comparison rather than for use."""
        found = []
        for b in structures:
            rows = torch.arange(geometry.sizes[b], device=geometry.positions.device)
            found.append(self._columns(geometry, b, basis, rows))
        return pad_blocks(geometry, found)

    def pair_cost(self, geometry: Geometry, b: int, basis: GaussianBasis) -> float:
        """See :class:`FrequencyMethod`."""
        return self.operator_cost(geometry, b, basis, geometry.sizes[b] * len(basis), 1)

    def operator_cost(
        self, geometry: Geometry, b: int, basis: GaussianBasis, n_channels: int, n_applications: int
    ) -> float:
        """See :class:`FrequencyMethod`."""
        with torch.no_grad():
            n_mesh = math.prod(self.n_grid(padded_cell(geometry, b, basis, self.tolerance), basis))
        fft = 2 * 2.5 * n_mesh * math.log2(n_mesh)
        spread = 2 * geometry.sizes[b] * NODES**3
        return n_mesh * len(basis) * EXP_COST + n_channels * n_applications * (fft + _SCATTER_COST * spread)

    def achieved_error(self, geometry: Geometry, b: int, basis: GaussianBasis, n_sample: int = 100) -> float:
        """Largest deviation from the exact sum on the pairs of a sample of atoms, relative to the amplitudes."""
        n = geometry.sizes[b]
        chosen = torch.linspace(0, n - 1, min(n, n_sample)).round().long().to(geometry.positions.device)
        sample = subset_of_atoms(geometry, b, chosen)
        with torch.no_grad():
            found = self._columns(geometry, b, basis, chosen)[chosen]
            expected = ExactMethod().pair_basis(sample, basis)[0]
            return float(((found - expected).abs() / basis.amplitudes).max())

    def _columns(self, geometry: Geometry, b: int, basis: GaussianBasis, senders: Tensor) -> Tensor:
        """(n, len(senders), n_basis): f̂ between every atom and some."""
        unit = torch.zeros(geometry.sizes[b], len(senders), dtype=geometry.dtype, device=senders.device)
        unit[senders, torch.arange(len(senders), device=senders.device)] = 1.0
        each = torch.eye(len(basis), dtype=geometry.dtype, device=senders.device)
        values = unit[:, None, :].expand(-1, len(basis), -1)
        return self.operator(geometry, b, basis)(each, values).transpose(1, 2)


def spacing_in_widths(tolerance: float) -> float:
    """h/σ at which a Gaussian of width σ is represented to ``tolerance``: its error falls as (h/σ)^NODES."""
    return _SPACING_AT_ONE * tolerance ** (1 / NODES)


def _spectra(cell: Tensor, n_grid: tuple[int, int, int], basis: GaussianBasis) -> Tensor:
    """See :class:`MeshOperator`."""
    options = {"dtype": torch.float64, "device": cell.device}
    index = [torch.fft.fftfreq(n, 1 / n, **options) for n in n_grid[:2]]
    index.append(torch.fft.rfftfreq(n_grid[2], 1 / n_grid[2], **options))
    integers = torch.stack(torch.meshgrid(*index, indexing="ij"), dim=-1)
    xi = integers @ torch.linalg.inv(cell).transpose(0, 1)
    squared = (xi * xi).sum(dim=-1)
    # B-splines of degree NODES − 1: a power of the sinc along every axis, aliases of the grid included.
    assigned = [_assignment(i, n) for i, n in zip(index, n_grid, strict=True)]
    window = assigned[0][:, None, None] * assigned[1][None, :, None] * assigned[2][None, None, :]
    volume = torch.linalg.det(cell).abs()
    nonzero = squared > 0
    length = torch.where(nonzero, torch.where(nonzero, squared, 1.0).sqrt(), 0.0)
    return basis.spectra(length).movedim(-1, 0).to(torch.float64) * window / volume


def _assignment(index: Tensor, n: int) -> Tensor:
    """Optimal influence of one axis: W²/(Σ_m W(k + m n)²)², W = sinc^NODES (Hockney and Eastwood, §8-3-3)."""
    aliases = torch.arange(-3, 4, dtype=index.dtype, device=index.device) * n
    total = torch.sinc((index[:, None] + aliases) / n).pow(2 * NODES).sum(dim=1)
    return torch.sinc(index / n).pow(2 * NODES) / total**2


_SPACING_AT_ONE = 2.1
"""h/σ at which the error would be one, extrapolated: 0.53 at ε = 1e-3, 0.33 at 1e-4. A margin is in it:
bench_mesh.py and the tests measure what is achieved."""

_MESH_VALUES_AT_ONCE = 1 << 22
"""Grid points times channels held at once: 32 MiB in float64, some of it twice; bounds memory, not the result."""

_SCATTER_COST = 4.0
"""How much dearer a multiply-add is that gathers or scatters than one in a matrix product."""
