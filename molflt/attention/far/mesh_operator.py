"""Operator of the particle mesh in every layer: spread values, convolve them, read them off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from molflt.attention.places import place_rows, select_rows
from molflt.attention.sparse import SparsePattern, weighted_sum

Axes = tuple[int, int] | tuple[()]
"""The axes along which a part of a spectrum exchanges cosines and sines."""


@dataclass
class Band:
    """Part of the basis of f on waves of its own.

    The waves are cos(2πkτj) and sin(2πkτj) for k = 0 ... K at the planes j.

    Attributes:
        chosen: (n_members,) their indices; None: all.
        matrices: from grid planes to waves along each vector, (2K + 2, n_planes), cosine and sine of each k in turn.
        spectra: transforms of the basis functions on the wave numbers, (n_members, K_x + 1, K_y + 1, K_z + 1), by
            the axes along which they exchange.
    """

    chosen: Tensor | None
    matrices: tuple[Tensor, Tensor, Tensor]
    spectra: dict[Axes, Tensor]

    def filters(self, weights: Tensor) -> list[tuple[Axes, Tensor]]:
        """Return the filters of all heads by the axes along which they exchange.

        (n_weights, heads) → (K_x + 1, 1, K_y + 1, 1, K_z + 1, 1, heads, 1), where 1 stands for 2 along these axes.
        """
        few = weights if self.chosen is None else weights.index_select(0, self.chosen)
        found: list[tuple[Axes, Tensor]] = []
        for axes, spectra in self.spectra.items():
            mixed = spectra.flatten(1).transpose(0, 1) @ few
            x, y, z = spectra.shape[1:]
            found.append((axes, _signed(mixed.view(x, 1, y, 1, z, 1, -1, 1), axes)))
        return found


def _signed(filters: Tensor, axes: Axes) -> Tensor:
    """Apply the signs of an exchange of cosines and sines.

    cos·cos becomes −sin·sin and cos·sin becomes sin·cos, and back. By cos(a + b) = cos a cos b − sin a sin b, this is
    the effect on waves of the part of a spectrum that is odd in two wave numbers.
    """
    if not axes:
        return filters
    signs = 1 - 2 * torch.eye(2, dtype=filters.dtype, device=filters.device)
    return filters * signs.view([2 if dim in exchanged(axes) else 1 for dim in range(8)])


def exchanged(axes: Axes) -> list[int]:
    """Dimensions of cosine and sine of some axes in (K_x + 1, 2, K_y + 1, 2, K_z + 1, 2, ...)."""
    return [2 * axis + 1 for axis in axes]


@dataclass
class MeshOperator:
    """f̂ of atoms on a grid.

    All bands share the spreading on the grid and the reading off.

    Attributes:
        gather: which grid points every atom reads; transposed, which atoms every grid point receives.
        weights: (n · NODES³,) weights of the entries of ``gather``.
        weights_transposed: the same in the order of the transposed pattern.
        n_planes: along each vector, the number of planes of the grid that atoms are spread over.
        bands: the basis of f.
    """

    gather: SparsePattern
    weights: Tensor
    weights_transposed: Tensor
    n_planes: tuple[int, int, int]
    bands: list[Band]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """Σ_j f̂_h(Δ_ij) v_jh.

        Weights (n_weights, n_heads), values (n, n_heads, c) → (n, n_heads, c). A bounded number of channels is
        carried at a time.
        """
        _, n_heads, n_channels = values.shape
        step = channels_at_once(self.n_planes, [[len(m) for m in band.matrices] for band in self.bands])
        heads_at_once = min(n_heads, max(1, step // n_channels))
        found = []
        for part, weight in zip(values.split(heads_at_once, dim=1), weights.split(heads_at_once, dim=1), strict=True):
            filters = [band.filters(weight) for band in self.bands]
            found.append(_joined([self._convolve(v, filters) for v in part.split(step, dim=2)], dim=2))
        return _joined(found, dim=1)

    def _convolve(self, values: Tensor, filters: list[list[tuple[Axes, Tensor]]]) -> Tensor:
        """(n, heads, channels), filters of every band → (n, heads, channels)."""
        scatter, _ = self.gather.transposed
        spread = weighted_sum(scatter, self.weights_transposed[None], values.flatten(1)[None])[0]
        # The grid is read once, for the waves of all bands along its first axis, and written once.
        first = _joined([band.matrices[0] for band in self.bands], dim=0)
        rows = [len(band.matrices[0]) for band in self.bands]
        along = _along_first(spread.view(*self.n_planes, -1), first).split(rows)
        fields = []
        for band, part, of_band in zip(self.bands, along, filters, strict=True):
            _, y, z = band.matrices
            waves = _along_others(part, y, z)
            fields.append(_along_others(_filtered(waves, of_band, values.shape[1:]), y.t(), z.t()))
        grid = _along_first(_joined(fields, dim=0), first.t()).flatten(0, 2)
        return weighted_sum(self.gather, self.weights[None], grid[None])[0].unflatten(-1, values.shape[1:])


def _filtered(waves: Tensor, filters: list[tuple[Axes, Tensor]], values: Sequence[int]) -> Tensor:
    """Waves (2K_x + 2, 2K_y + 2, 2K_z + 2, heads · channels) times the spectra."""
    x, y, z, _ = waves.shape
    pairs = waves.view(x // 2, 2, y // 2, 2, z // 2, 2, *values)
    field: Tensor | None = None
    for axes, spectrum in filters:
        part = (pairs.flip(exchanged(axes)) if axes else pairs) * spectrum
        field = part if field is None else field + part
    assert field is not None
    return field.view(waves.shape)


def _along_first(values: Tensor, matrix: Tensor) -> Tensor:
    """Apply a matrix along the first axis of a grid: (x, y, z, c), (x', x) → (x', y, z, c)."""
    return (matrix @ values.flatten(1)).unflatten(1, values.shape[1:])


def _along_others(values: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """Apply matrices along the other axes: (x, y, z, c), (y', y), (z', z) → (x, y', z', c)."""
    x, _, z, c = values.shape
    values = second @ values.flatten(2)
    return (third @ values.reshape(-1, z, c)).view(x, len(second), len(third), c)


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def channels_at_once(n_planes: Sequence[int], waves: Sequence[Sequence[int]]) -> int:
    """Return the channels carried at a time on a grid, given the waves of every band."""
    _, y, z = n_planes
    largest = max(math.prod(n_planes), sum(w[0] for w in waves) * y * z, *map(math.prod, waves))
    least = max(1, min(_CHANNELS_AT_LEAST, _MESH_VALUES_AT_MOST // largest))
    return min(max(_MESH_VALUES_AT_ONCE // largest, least), _CHANNELS_AT_MOST)


@dataclass
class OnMesh:
    """f̂ of one structure; a :class:`~molflt.attention.far.field.FarField`.

    Attributes:
        atoms: of each piece, (n,) indices.
        operators: of each piece.
    """

    atoms: list[Tensor]
    operators: list[MeshOperator]

    def __call__(self, weights: Tensor, values: Tensor) -> Tensor:
        """See :class:`FarField`."""
        found = [
            operator(weights, select_rows(values[0], some))
            for some, operator in zip(self.atoms, self.operators, strict=True)
        ]
        return place_rows(_joined(found, dim=0), _joined(self.atoms, dim=0), values.shape[1])[None]

    def matrix(self, weights: Tensor) -> Tensor:
        """See :class:`FarField`.

        The operator is applied to unit vectors, which serves comparisons only.
        """
        n = sum(map(len, self.atoms))
        unit = torch.eye(n, dtype=weights.dtype, device=weights.device)[:, None].expand(-1, weights.shape[1], -1)
        return self(weights, unit[None]).permute(2, 0, 1, 3)


_MESH_VALUES_AT_ONCE, _CHANNELS_AT_LEAST, _CHANNELS_AT_MOST = 1 << 22, 16, 128
"""Grid points times channels that are held at once, and bounds of the number of channels. Larger blocks than 32 MiB
come from the operating system page by page, which takes longer than the arithmetic on them; fewer channels waste
fetched cache lines; more do not fit into the cache."""

_MESH_VALUES_AT_MOST = 1 << 27
"""512 MiB in float32, four or five times over: few channels are the lesser evil on a grid for a million atoms."""
