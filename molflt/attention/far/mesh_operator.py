"""What the particle mesh does in every layer: spread values on a grid, convolve them band by band, read them off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from molflt.attention.far.grid import along_first, along_others, exchange
from molflt.attention.places import select_rows
from molflt.attention.sparse import SparsePattern, weighted_sum

StructureOperator = Callable[[Tensor, Tensor], Tensor]
"""Σ_j f̂_h(Δ_ij) v_jh of one structure: weights (n_weights, n_heads), values (n, n_heads, c) → (n, n_heads, c)."""

Axes = tuple[int, int] | tuple[()]
"""The axes along which a part of a spectrum exchanges cosines and sines."""


@dataclass
class Band:
    """Some members of f on their own waves.

    Attributes:
        chosen: (n_members,) their indices.
        matrices: from grid planes to waves along each vector, (2K + 1, n_planes).
        spectra: transforms of the members on the waves, (n_members, *waves), by the axes along which they exchange
            (see ``mesh.py``).
    """

    chosen: Tensor
    matrices: tuple[Tensor, Tensor, Tensor]
    spectra: dict[Axes, Tensor]

    def filters(self, weights: Tensor) -> dict[Axes, Tensor]:
        """(n_weights, heads) → (*waves, heads) by the axes along which they exchange."""
        few = weights[self.chosen]
        return {axes: torch.einsum("txyz,th->xyzh", spectra, few) for axes, spectra in self.spectra.items()}


@dataclass
class MeshOperator:
    """f̂ of one structure on its grid; a :class:`StructureOperator`.

    All bands share the spreading on the grid and the reading off.

    Attributes:
        order: (n,) indices of the atoms in order of place. Neighbours in space read the same grid points, which are
            then still in the processor's cache.
        place: (n,) the position of every atom in that order.
        gather: which grid points every atom reads; transposed, which atoms every grid point receives.
        weights: (n · NODES³,) weights of the entries of ``gather``.
        weights_transposed: the same in the order of the transposed pattern.
        n_planes: along each vector, how many planes of the grid an atom is spread over.
        bands: the members of f.
    """

    order: Tensor
    place: Tensor
    gather: SparsePattern
    weights: Tensor
    weights_transposed: Tensor
    n_planes: tuple[int, int, int]
    bands: list[Band]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`StructureOperator`. A bounded number of channels is carried at a time."""
        _, n_heads, n_channels = values.shape
        step = channels_at_once(self.n_planes, [[len(m) for m in band.matrices] for band in self.bands])
        values = select_rows(values, self.order)
        heads_at_once = min(n_heads, max(1, step // n_channels))
        found = []
        for part, weight in zip(values.split(heads_at_once, dim=1), weights.split(heads_at_once, dim=1), strict=True):
            filters = [band.filters(weight) for band in self.bands]
            found.append(torch.cat([self._convolve(v, filters) for v in part.split(step, dim=2)], dim=2))
        return select_rows(torch.cat(found, dim=1), self.place)

    def _convolve(self, values: Tensor, filters: list[dict[Axes, Tensor]]) -> Tensor:
        """(n, heads, channels), (*waves, heads) of every band → (n, heads, channels)."""
        scatter, _ = self.gather.transposed
        spread = weighted_sum(scatter, self.weights_transposed[None], values.flatten(1)[None])[0]
        # The grid is read once, for the waves of all bands along its first axis, and written once.
        first = torch.cat([band.matrices[0] for band in self.bands])
        rows = [len(band.matrices[0]) for band in self.bands]
        along = along_first(spread.view(*self.n_planes, -1), first).split(rows)
        fields = []
        for band, part, of_band in zip(self.bands, along, filters, strict=True):
            _, y, z = band.matrices
            waves = along_others(part, y, z).unflatten(-1, values.shape[1:])
            field = waves * of_band[()][..., None]
            for axes, spectrum in of_band.items():
                if axes:
                    field = field + exchange(waves, axes) * spectrum[..., None]
            fields.append(along_others(field.flatten(-2), y.t(), z.t()))
        grid = along_first(torch.cat(fields), first.t()).flatten(0, 2)
        return weighted_sum(self.gather, self.weights[None], grid[None])[0].unflatten(-1, values.shape[1:])


def channels_at_once(n_planes: Sequence[int], waves: Sequence[Sequence[int]]) -> int:
    """How many channels are carried at a time on a grid of some planes with the waves of every band."""
    _, y, z = n_planes
    largest = max(math.prod(n_planes), sum(w[0] for w in waves) * y * z, *map(math.prod, waves))
    least = max(1, min(_CHANNELS_AT_LEAST, _MESH_VALUES_AT_MOST // largest))
    return min(max(_MESH_VALUES_AT_ONCE // largest, least), _CHANNELS_AT_MOST)


@dataclass
class PiecesOperator:
    """Pieces of a structure that are too far apart to feel each other; a :class:`StructureOperator`.

    Attributes:
        pieces: indices of the atoms of each piece, and its operator: a mesh, or one on the pairs of a few atoms.
    """

    pieces: list[tuple[Tensor, StructureOperator]]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`StructureOperator`."""
        found = [operator(weights, values[atoms]) for atoms, operator in self.pieces]
        return torch.zeros_like(values).index_copy(
            0, torch.cat([atoms for atoms, _ in self.pieces]), torch.cat(found)
        )


@dataclass
class OnMesh:
    """f̂ of a group of structures, one after another; a :class:`~molflt.attention.far.field.FarField`.

    Attributes:
        sizes: atoms of each structure.
        operators: of each structure.
    """

    sizes: tuple[int, ...]
    operators: list[StructureOperator]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarField`."""
        found = []
        for one, size, operator in zip(values, self.sizes, self.operators, strict=True):
            gap = (0, 0, 0, 0, 0, len(one) - size)
            found.append(functional.pad(operator(weights, one[:size]), gap) if any(gap) else operator(weights, one))
        return torch.stack(found)

    def matrix(self, weights: Tensor) -> Tensor:
        """See :class:`FarField`. It applies the operator to unit vectors, for comparison and not for use."""
        n, n_heads = max(self.sizes), weights.shape[1]
        found = weights.new_zeros((n_heads, len(self.sizes), n, n))
        for k, (size, operator) in enumerate(zip(self.sizes, self.operators, strict=True)):
            unit = torch.eye(size, dtype=weights.dtype, device=weights.device)[:, None].expand(-1, n_heads, -1)
            found[:, k, :size, :size] = operator(weights, unit).permute(1, 0, 2)
        return found


_MESH_VALUES_AT_ONCE, _CHANNELS_AT_LEAST, _CHANNELS_AT_MOST = 1 << 22, 16, 128
"""Grid points times channels that are held at once, and bounds of the number of channels. Larger blocks than 32 MiB
come from the operating system page by page, which takes longer than the arithmetic on them; fewer channels waste what
is fetched with a point; more do not stay in the cache."""

_MESH_VALUES_AT_MOST = 1 << 27
"""512 MiB in float32, four or five times over: few channels are the lesser evil on a grid for a million atoms."""
