"""The mesh's convolution against an FFT, and its splines against SciPy."""

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline

from molflt.attention.far.grid import along_first, along_others, assign, exchange, trigonometric_matrix, wave_numbers

N_GRID, N_WAVES = (7, 8, 9), (3, 3, 4)


def spectrum(even: bool) -> np.ndarray:
    """G(k) = G(−k) on the FFT's wave numbers, zero beyond N_WAVES; ``even``: in every wave number by itself."""
    k = np.stack(np.meshgrid(*[np.fft.fftfreq(n, 1 / n) for n in N_GRID], indexing="ij"), axis=-1)
    skew = np.diag([0.3, 0.2, 0.1])
    if not even:
        skew[0, 1] = skew[1, 0] = 0.1
        skew[0, 2] = skew[2, 0] = -0.07
        skew[1, 2] = skew[2, 1] = 0.05
    inside = np.all(np.abs(k) <= N_WAVES, axis=-1)
    return np.exp(-np.einsum("xyza,ab,xyzb->xyz", k, skew, k)) * inside


def parts(even: bool) -> dict[tuple[int, ...], torch.Tensor]:
    """By what they exchange, on the rows of the trigonometric matrices."""
    whole = torch.from_numpy(spectrum(even))
    rows = [wave_numbers(k, whole.device) for k in N_WAVES]

    def at(sy: int, sz: int) -> torch.Tensor:
        return whole[rows[0]][:, (sy * rows[1]) % N_GRID[1]][:, :, (sz * rows[2]) % N_GRID[2]]

    pp, pm, mp, mm = at(1, 1), at(1, -1), at(-1, 1), at(-1, -1)
    if even:
        return {(): pp}
    return {
        (): (pp + pm + mp + mm) / 4,
        (0, 1): (pp + pm - mp - mm) / 4,
        (0, 2): (pp - pm + mp - mm) / 4,
        (1, 2): (pp - pm - mp + mm) / 4,
    }


def convolved(even: bool, n_points: tuple[int, int, int], values: torch.Tensor) -> torch.Tensor:
    triples = zip(N_GRID, n_points, N_WAVES, strict=True)
    x, y, z = (
        trigonometric_matrix(torch.arange(there), torch.tensor(1 / n, dtype=torch.float64), k)
        for n, there, k in triples
    )
    waves = along_others(along_first(values, x), y, z)
    field = sum((exchange(waves, axes) if axes else waves) * part[..., None] for axes, part in parts(even).items())
    return along_first(along_others(field, y.T, z.T), x.T)


@pytest.mark.parametrize("even", [True, False])
def test_the_convolution_is_that_of_an_fft(even):
    values = torch.randn(*N_GRID, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    waves = np.fft.fftn(values.numpy(), axes=(0, 1, 2)) * spectrum(even)[..., None]
    expected = np.fft.ifftn(waves, axes=(0, 1, 2), norm="forward").real
    np.testing.assert_allclose(convolved(even, N_GRID, values).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_parts_that_exchange_are_needed_in_a_skewed_cell():
    values = torch.randn(*N_GRID, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    waves = np.fft.fftn(values.numpy(), axes=(0, 1, 2)) * spectrum(False)[..., None]
    expected = np.fft.ifftn(waves, axes=(0, 1, 2), norm="forward").real
    assert np.abs(convolved(True, N_GRID, values).numpy() - expected).max() > 0.1


def test_padding_need_not_be_there():
    """Planes that hold nothing change nothing."""
    n_points = (4, 8, 5)
    values = torch.randn(*n_points, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padded = torch.zeros(*N_GRID, 2, dtype=torch.float64)
    padded[:4, :, :5] = values
    whole = convolved(False, N_GRID, padded)
    torch.testing.assert_close(convolved(False, n_points, values), whole[:4, :, :5], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [2, 5, 6])
def test_weights_are_those_of_a_cardinal_spline(order):
    points = torch.tensor([[0.3, -1.7, 4.0], [2.999, 0.0, -0.001]], dtype=torch.float64)
    nodes, weights = assign(points, order)
    spline = BSpline.basis_element(np.arange(order + 1), extrapolate=False)
    expected = np.nan_to_num(spline(points.numpy()[..., None] - nodes.numpy()))
    np.testing.assert_allclose(weights.numpy(), expected, atol=1e-14)
    np.testing.assert_allclose(weights.sum(dim=-1).numpy(), 1.0, atol=1e-14)
