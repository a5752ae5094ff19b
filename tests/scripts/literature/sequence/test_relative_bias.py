"""Toeplitz products by FFT, the log-linear Performer and dense softmax, against matrices written entry by entry."""

import math

import pytest
import torch

from scripts.literature.sequence import relative_bias
from scripts.literature.sequence.relative_bias import RelativeBias, log_linear_attention, softmax_attention
from scripts.literature.sequence.toeplitz import future, toeplitz_matrix, toeplitz_product
from tests.scripts.literature.sequence.oracles import (
    N_HEADS,
    assert_differs,
    assert_same,
    dense,
    dense_kernelised,
    generator,
    kernel_of,
    places,
    relative_matrix,
    tokens,
)

SHAPES = [(9,), (3, 4)]
either_shape = pytest.mark.parametrize("shape", SHAPES)
either_way = pytest.mark.parametrize("causal", [False, True])


def coefficients_of(shape):
    lengths = [2 * length - 1 for length in shape]
    return torch.randn(N_HEADS, *lengths, generator=generator(5), dtype=torch.float64, requires_grad=True)


def channels_of(shape, channels=5):
    n = math.prod(shape)
    return torch.randn(3, N_HEADS, n, channels, generator=generator(1), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("shape", [(1,), (2,), (7,), (16,), (3, 4), (1, 5), (5, 2)])
def test_toeplitz_product_equals_that_of_the_matrix(shape):
    coefficients, x = coefficients_of(shape), channels_of(shape)
    matrix = relative_matrix(coefficients, shape)
    assert torch.equal(toeplitz_matrix(coefficients, shape), matrix)
    for at_once in (1, 2, 5, 9):
        assert_same(toeplitz_product(coefficients, x, shape, at_once), matrix @ x, (coefficients, x))
    if max(shape) > 2:
        # Power: c_{i−j} instead of c_{j−i}.
        axes = tuple(range(-len(shape), 0))
        assert_differs(toeplitz_product(coefficients.flip(axes), x, shape), matrix @ x)
    # What is later in raster order is so by the offset alone.
    marked = relative_matrix(future(shape, torch.device("cpu"))[None].double(), shape)[0]
    assert torch.equal(marked, torch.ones_like(marked).triu(1))
    assert len(places(shape)) == len(marked)


def test_half_precision_comes_out_in_single():
    coefficients, x = coefficients_of((7,)).bfloat16(), channels_of((7,)).bfloat16()
    found = toeplitz_product(coefficients, x, (7,))
    assert found.dtype == torch.float32
    wanted = toeplitz_product(coefficients.double(), x.double(), (7,))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["posrf-orf", "trigrf-iid"])
@either_way
@either_shape
@pytest.mark.parametrize("order", ["linear", "quadratic"])
def test_log_linear_attention_equals_dense_formula(name, causal, shape, order):
    kernel, bias, (q, k, v) = kernel_of(name), coefficients_of(shape), tokens(math.prod(shape))
    found = log_linear_attention(kernel, q, k, v, bias, shape, causal, order)
    factors = relative_matrix(bias, shape).exp()
    assert_same(found, dense_kernelised(kernel, q, k, v, causal, factors), (q, k, v, bias))
    assert_differs(found, dense_kernelised(kernel, q, k, v, not causal, factors))
    assert_differs(found, dense_kernelised(kernel, q, k, v, causal, factors.transpose(-1, -2)))
    assert_differs(found, dense_kernelised(kernel, q, k, v, causal))


@pytest.mark.parametrize("channels", [1, 8, 10_000])
def test_features_at_once_change_nothing(monkeypatch, channels):
    kernel, bias, (q, k, v) = kernel_of("posrf-orf"), coefficients_of((9,)), tokens(9)
    wanted = log_linear_attention(kernel, q, k, v, bias, (9,), True, "linear")
    monkeypatch.setattr(relative_bias, "CHANNELS_AT_ONCE", channels)
    assert_same(log_linear_attention(kernel, q, k, v, bias, (9,), True, "linear"), wanted, (q, k, v, bias), 1e-11)


def test_large_biases_do_not_overflow():
    """exp(1000) has no float64; a constant cancels, and so does one on the masked half."""
    kernel, bias, (q, k, v) = kernel_of("posrf-orf"), coefficients_of((9,)), tokens(9)
    wanted = log_linear_attention(kernel, q, k, v, bias, (9,), True)
    found = log_linear_attention(kernel, q, k, v, bias + 1000, (9,), True)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    masked = bias + 1000 * (torch.arange(17) > 8)
    assert torch.equal(log_linear_attention(kernel, q, k, v, masked, (9,), True), wanted)


@either_way
@either_shape
def test_softmax_equals_dense_formula(causal, shape):
    bias, (q, k, v) = coefficients_of(shape), tokens(math.prod(shape))
    found = softmax_attention(q, k, v, bias, shape, causal)
    content, matrix = q @ k.transpose(-1, -2), relative_matrix(bias, shape)
    assert_same(found, dense(torch.exp(content + matrix), v, causal), (q, k, v, bias))
    assert_differs(found, dense(torch.exp(content + matrix), v, not causal))
    assert_differs(found, dense(torch.exp(content + matrix.transpose(-1, -2)), v, causal))
    assert_differs(found, dense(torch.exp(content), v, causal))


def test_bias_of_a_shorter_sequence_is_that_of_the_same_offsets():
    bias = RelativeBias(N_HEADS, (6,)).double()
    torch.nn.init.normal_(bias.values, generator=generator())
    for n in (1, 4, 6):
        values, shape = bias(n)
        assert torch.equal(relative_matrix(values, shape), relative_matrix(bias.values, (6,))[:, :n, :n])
