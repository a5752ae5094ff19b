"""The mesh's convolution against an FFT, and its splines against SciPy."""

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline

from molflt.attention.far.grid import NODES
from molflt.attention.far.mesh import _parts, _Splines
from molflt.attention.far.mesh_operator import Band, _along_first, _along_others, _filtered

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


def filters(even: bool) -> list:
    """By what they exchange, on the wave numbers."""
    whole = torch.from_numpy(spectrum(even))
    k = [torch.arange(n + 1) for n in N_WAVES]

    def at(sy: int, sz: int) -> torch.Tensor:
        found = whole[k[0]][:, (sy * k[1]) % N_GRID[1]][:, :, (sz * k[2]) % N_GRID[2]]
        for axis, n in enumerate(k):
            found = found * torch.where(n > 0, 2, 1).view([-1 if a == axis else 1 for a in range(3)])
        return found

    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    spectra = {(): at(1, 1)[None]} if even else _parts(torch.stack([at(*s) for s in signs])[None])
    return Band(None, (), spectra).filters(torch.ones(1, 1, dtype=torch.float64))


def matrix(n: int, n_points: int, n_waves: int) -> torch.Tensor:
    angle = 2 * np.pi / n * torch.outer(torch.arange(n_waves + 1), torch.arange(n_points)).double()
    return torch.stack([angle.cos(), angle.sin()], dim=1).flatten(0, 1)


def convolved(even: bool, n_points: tuple[int, int, int], values: torch.Tensor) -> torch.Tensor:
    x, y, z = (matrix(*of_axis) for of_axis in zip(N_GRID, n_points, N_WAVES, strict=True))
    waves = _along_others(_along_first(values, x), y, z)
    field = _filtered(waves, filters(even), (1, values.shape[-1]))
    return _along_first(_along_others(field, y.T, z.T), x.T)


@pytest.mark.parametrize("even", [True, False])
def test_the_convolution_is_that_of_an_fft(even):
    values = torch.randn(*N_GRID, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    waves = np.fft.fftn(values.numpy(), axes=(0, 1, 2)) * spectrum(even)[..., None]
    expected = np.fft.ifftn(waves, axes=(0, 1, 2), norm="forward").real
    np.testing.assert_allclose(convolved(even, N_GRID, values).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_padding_need_not_be_there():
    n_points = (4, 8, 5)
    values = torch.randn(*n_points, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padded = torch.zeros(*N_GRID, 2, dtype=torch.float64)
    padded[:4, :, :5] = values
    whole = convolved(False, N_GRID, padded)
    torch.testing.assert_close(convolved(False, n_points, values), whole[:4, :, :5], rtol=1e-12, atol=1e-12)


def test_weights_are_those_of_a_cardinal_spline_and_have_its_derivatives():
    x = torch.tensor([[0.3, 0.0, 0.5], [0.999, 0.01, 0.2]], dtype=torch.float64)
    spline = BSpline.basis_element(np.arange(NODES + 1), extrapolate=False)
    expected = np.nan_to_num(spline(x.numpy()[..., None] + np.arange(NODES)))
    np.testing.assert_allclose(_Splines.apply(x, 0).numpy(), expected, atol=1e-13)
    x = torch.rand(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: _Splines.apply(x, 0), x)
    assert torch.autograd.gradgradcheck(lambda x: _Splines.apply(x, 0), x)
