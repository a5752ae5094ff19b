"""Toeplitz matrices of sequences and grids: products by FFT, and the matrices themselves.

A Toeplitz matrix on a sequence has entries c_{j−i}. On a grid in raster order its entries depend on the offset of
rows and on that of columns (a two-level or block Toeplitz matrix). The same code serves both, with one axis or two.
"""

from __future__ import annotations

import torch
from scipy.fft import next_fast_len
from torch import Tensor
from torch.nn import functional

CHANNELS_AT_ONCE = 256


def toeplitz_product(
    coefficients: Tensor, x: Tensor, shape: tuple[int, ...], channels_at_once: int = CHANNELS_AT_ONCE
) -> Tensor:
    """y_i = Σ_j c_{j−i} x_j in O(n log n) (arXiv 2106.12566, Eqs 12 and 13).

    The matrix is embedded in a circulant one of at least twice its size on every axis. The rounding error is relative
    to the largest entry of the whole sequence and not of the row, and a zero comes out as that much noise.

    Args:
        coefficients: c_{−(n−1)}, …, c_{n−1}, (..., 2n − 1), for a sequence, (..., 2h − 1, 2w − 1) for a grid. An
            offset is the place of the token that is summed over minus that of the row.
        x: (..., n, channels), n = h·w in raster order for a grid; leading axes broadcast with the coefficients.
        shape: (n,) or (h, w).
        channels_at_once: how many channels are transformed together. Beside input and output there is memory for
            this many channels of twice the length on every axis.

    Returns:
        (..., n, channels), float32 at least.
    """
    levels = len(shape)
    assert x.shape[-2] == torch.Size(shape).numel()
    # There is no FFT in half precision.
    dtype = torch.promote_types(torch.promote_types(x.dtype, coefficients.dtype), torch.float32)
    axes = tuple(range(-levels, 0))
    sizes = tuple(next_fast_len(2 * length - 1, real=True) for length in shape)
    padding = [
        p for length, size in zip(reversed(shape), reversed(sizes), strict=True) for p in (0, size - 2 * length + 1)
    ]
    around = functional.pad(coefficients.to(dtype), padding).roll([1 - length for length in shape], axes)
    # It is conjugated because the sum runs over c_{j−i} and not over c_{i−j}.
    spectrum = torch.fft.rfftn(around, dim=axes).conj().unsqueeze(-levels - 1)
    products = []
    for part in x.to(dtype).transpose(-1, -2).split(channels_at_once, dim=-2):
        waves = torch.fft.rfftn(part.unflatten(-1, shape), s=sizes, dim=axes)
        product = torch.fft.irfftn(spectrum * waves, s=sizes, dim=axes)
        for axis, length in zip(axes, shape, strict=True):
            product = product.narrow(axis, 0, length)
        products.append(product.flatten(-levels))
    return torch.cat(products, dim=-2).transpose(-1, -2)


def toeplitz_matrix(coefficients: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Matrix of rows i and columns j, (..., n, n), from arguments of :func:`toeplitz_product`."""
    places = torch.cartesian_prod(*(torch.arange(length, device=coefficients.device) for length in shape))
    index = torch.zeros((), dtype=torch.long, device=coefficients.device)
    for length, place in zip(shape, places.reshape(-1, len(shape)).unbind(dim=1), strict=True):
        index = index * (2 * length - 1) + (place[None, :] - place[:, None] + length - 1)
    return coefficients.flatten(-len(shape))[..., index]


def future(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Mask of the coefficients of j > i: bool, of the shape of the coefficients.

    On a grid too the order of two tokens depends on their offset alone: it is positive where the offset comes after
    zero in raster order.
    """
    counts = [2 * length - 1 for length in shape]
    total = torch.Size(counts).numel()
    return (torch.arange(total, device=device) > total // 2).reshape(counts)
