"""Products with Toeplitz matrices by FFT."""

import math

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.sequence.toeplitz import future, toeplitz_matrix, toeplitz_product
from tests.literature.sequence.oracles import assert_differs, assert_same, generator, places, relative_matrix

SHAPES = [(1,), (2,), (7,), (16,), (3, 4), (1, 5), (5, 2)]


def problem(shape, channels=5):
    lengths = [2 * length - 1 for length in shape]
    coefficients = torch.randn(2, *lengths, generator=generator(), dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 2, math.prod(shape), channels, generator=generator(1), dtype=torch.float64, requires_grad=True)
    return coefficients, x


@pytest.mark.parametrize("shape", SHAPES)
def test_product_equals_that_of_the_matrix_entry_by_entry(shape):
    coefficients, x = problem(shape)
    found = toeplitz_product(coefficients, x, shape)
    assert_same(found, relative_matrix(coefficients, shape) @ x, (coefficients, x))


@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_other_way_round_differs(shape):
    """Power: c_{i−j} instead of c_{j−i}."""
    coefficients, x = problem(shape)
    axes = tuple(range(-len(shape), 0))
    assert_differs(toeplitz_product(coefficients.flip(axes), x, shape), relative_matrix(coefficients, shape) @ x)


@pytest.mark.parametrize("shape", SHAPES)
def test_matrix(shape):
    coefficients, _ = problem(shape)
    assert torch.equal(toeplitz_matrix(coefficients, shape), relative_matrix(coefficients, shape))


def test_rows_and_columns_of_a_grid_are_not_confused():
    coefficients, x = problem((3, 4))
    swapped = toeplitz_product(coefficients.transpose(-1, -2), x, (4, 3))
    assert_differs(swapped, toeplitz_product(coefficients, x, (3, 4)))


@pytest.mark.parametrize("channels_at_once", [1, 2, 5, 9])
def test_channels_at_once_change_nothing(channels_at_once):
    coefficients, x = problem((3, 4))
    found = toeplitz_product(coefficients, x, (3, 4), channels_at_once)
    torch.testing.assert_close(found, toeplitz_product(coefficients, x, (3, 4)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_future_is_what_comes_later_in_raster_order(shape):
    marked = relative_matrix(future(shape, torch.device("cpu"))[None].double(), shape)[0]
    n = len(places(shape))
    wanted = torch.tensor([[float(j > i) for j in range(n)] for i in range(n)], dtype=torch.float64)
    assert torch.equal(marked, wanted)


def test_half_precision_comes_out_in_single():
    coefficients, x = problem((7,))
    found = toeplitz_product(coefficients.bfloat16(), x.bfloat16(), (7,))
    assert found.dtype == torch.float32
    wanted = toeplitz_product(coefficients.bfloat16().double(), x.bfloat16().double(), (7,))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_refusals():
    coefficients, x = problem((7,))
    with pytest.raises(InputError, match="coefficients"):
        toeplitz_product(coefficients[:, 1:], x, (7,))
    with pytest.raises(InputError, match="tokens"):
        toeplitz_product(coefficients, x[..., 1:, :], (7,))
