"""The log-linear Performer and dense softmax, against the formulas with a bias matrix."""

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.sequence import log_linear
from molflt.literature.sequence.prefix_sums import sequence_attention
from molflt.literature.sequence.relative_bias import (
    RelativeBias,
    log_linear_attention,
    softmax_attention,
    unit_length,
)
from tests.literature.sequence.oracles import (
    KERNELS,
    N_HEADS,
    assert_differs,
    assert_same,
    dense,
    dense_kernelised,
    generator,
    kernel_of,
    relative_matrix,
    tokens,
)

SHAPES = [(9,), (3, 4)]


def bias_of(shape):
    lengths = [2 * length - 1 for length in shape]
    return torch.randn(N_HEADS, *lengths, generator=generator(5), dtype=torch.float64, requires_grad=True)


def count(shape):
    return torch.Size(shape).numel()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["linear", "quadratic"])
def test_equals_dense_formula(name, causal, shape, order):
    kernel, bias, (q, k, v) = kernel_of(name), bias_of(shape), tokens(count(shape))
    found = log_linear_attention(kernel, q, k, v, bias, shape, causal, order)
    factors = relative_matrix(bias, shape).exp()
    assert_same(found, dense_kernelised(kernel, q, k, v, causal, factors), (q, k, v, bias))
    assert_differs(found, dense_kernelised(kernel, q, k, v, not causal, factors))
    assert_differs(found, dense_kernelised(kernel, q, k, v, causal, factors.transpose(-1, -2)))
    assert_differs(found, dense_kernelised(kernel, q, k, v, causal))


@pytest.mark.parametrize("channels", [1, 8, 10_000])
def test_features_at_once_change_nothing(monkeypatch, channels):
    kernel, bias, (q, k, v) = kernel_of("posrf-orf"), bias_of((9,)), tokens(9)
    wanted = log_linear_attention(kernel, q, k, v, bias, (9,), True, "linear")
    monkeypatch.setattr(log_linear, "CHANNELS_AT_ONCE", channels)
    assert_same(log_linear_attention(kernel, q, k, v, bias, (9,), True, "linear"), wanted, (q, k, v, bias), 1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_without_a_bias_it_is_kernelised_attention(causal):
    kernel, (q, k, v) = kernel_of("posrf-orf"), tokens(9)
    zero = torch.zeros(N_HEADS, 17, dtype=torch.float64)
    found = log_linear_attention(kernel, q, k, v, zero, (9,), causal)
    torch.testing.assert_close(found, sequence_attention(kernel, q, k, v, causal), rtol=1e-10, atol=1e-10)


def test_large_biases_do_not_overflow():
    """exp(1000) has no float64; a constant cancels, and so does one on the masked half."""
    kernel, bias, (q, k, v) = kernel_of("posrf-orf"), bias_of((9,)), tokens(9)
    found = log_linear_attention(kernel, q, k, v, bias + 1000, (9,), True)
    torch.testing.assert_close(found, log_linear_attention(kernel, q, k, v, bias, (9,), True), rtol=1e-10, atol=1e-10)
    masked = bias + 1000 * (torch.arange(17) > 8)
    assert torch.equal(
        log_linear_attention(kernel, q, k, v, masked, (9,), True),
        log_linear_attention(kernel, q, k, v, bias, (9,), True),
    )


def test_unit_length():
    (q, _, _) = tokens(5)
    torch.testing.assert_close(unit_length(q).norm(dim=-1), torch.ones(2, N_HEADS, 5, dtype=torch.float64))
    assert torch.isfinite(unit_length(torch.zeros(1, 3))).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_equals_dense_formula(causal, shape):
    bias, (q, k, v) = bias_of(shape), tokens(count(shape))
    found = softmax_attention(q, k, v, bias, shape, causal)
    content, matrix = q @ k.transpose(-1, -2), relative_matrix(bias, shape)
    assert_same(found, dense(torch.exp(content + matrix), v, causal), (q, k, v, bias))
    assert_differs(found, dense(torch.exp(content + matrix), v, not causal))
    assert_differs(found, dense(torch.exp(content + matrix.transpose(-1, -2)), v, causal))
    assert_differs(found, dense(torch.exp(content), v, causal))


@pytest.mark.parametrize("n", [1, 4, 6])
def test_bias_of_a_shorter_sequence_is_that_of_the_same_offsets(n):
    bias = RelativeBias(N_HEADS, (6,)).double()
    torch.nn.init.normal_(bias.values, generator=generator())
    values, shape = bias(n)
    assert torch.equal(relative_matrix(values, shape), relative_matrix(bias.values, (6,))[:, :n, :n])


def test_bias_refusals():
    for shape in ((), (2, 2, 2), (0,)):
        with pytest.raises(InputError, match="length"):
            RelativeBias(1, shape)
    with pytest.raises(InputError, match="bias for 6"):
        RelativeBias(1, (6,))(7)
    with pytest.raises(InputError, match="grid of 2 by 3"):
        RelativeBias(1, (2, 3))(5)
