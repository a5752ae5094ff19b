"""Causal and bidirectional sums over a sequence against the dense formula, with any kernel and with cosFormer."""

import math

import pytest
import torch

from molflt.attention.kernels import FLOOR, Features, Kernel
from scripts.literature.sequence import relative_bias
from scripts.literature.sequence.positioned_kernels import CosformerKernel
from scripts.literature.sequence.prefix_sums import check_causal, prefix_sums, sequence_attention
from scripts.literature.sequence.relative_bias import RelativeBias, log_linear_attention, softmax_attention
from scripts.literature.sequence.toeplitz import future, toeplitz_matrix, toeplitz_product
from tests.scripts.literature.sequence.oracles import (
    HEAD_DIM,
    KERNELS,
    N_HEADS,
    assert_differs,
    assert_same,
    dense,
    dense_kernelised,
    generator,
    kernel_of,
    kernel_weights,
    places,
    relative_matrix,
    tokens,
)

either_way = pytest.mark.parametrize("causal", [False, True])


@pytest.mark.parametrize("name", KERNELS)
@either_way
def test_equals_dense_formula(name, causal):
    kernel, (q, k, v) = kernel_of(name), tokens(11)
    found = sequence_attention(kernel, q, k, v, causal)
    assert_same(found, dense_kernelised(kernel, q, k, v, causal), (q, k, v))
    assert_differs(found, dense_kernelised(kernel, q, k, v, not causal))


@either_way
def test_normalisers_of_either_sign_are_raised_to_their_bound(causal):
    """With few trigonometric features and long tokens some normalisers fall below it."""
    kernel, (q, k, v) = kernel_of("trigrf-iid", n_features=2), tokens(9, seed=3)
    q, k = 2 * q, 2 * k
    weights, bound = kernel_weights(kernel, q, k)
    weights, bound = (x.tril() if causal else x for x in (weights, bound))
    raised = weights.sum(dim=-1) < FLOOR * bound.sum(dim=-1)
    assert raised.any()
    assert not raised.all()
    assert_same(sequence_attention(kernel, q, k, v, causal), dense_kernelised(kernel, q, k, v, causal), (q, k, v))


def test_chunks_change_nothing_and_the_state_before_a_chunk_counts():
    kernel, (q, k, v) = kernel_of("posrf-orf"), tokens(10)
    wanted = dense_kernelised(kernel, q, k, v, True)
    for chunk in (1, 2, 5, 7, 10, 64):
        assert_same(sequence_attention(kernel, q, k, v, True, chunk), wanted, (q, k, v))
    # Power: what a chunk alone would give differs.
    assert_differs(
        sequence_attention(kernel, q[..., 5:, :], k[..., 5:, :], v[..., 5:, :], True, 5), wanted[..., 5:, :]
    )


def test_a_common_factor_of_the_keys_cancels():
    """A last token whose exponents dwarf all others changes the maximum, and no output before it."""
    kernel, (q, k, v) = kernel_of("trigrf-iid"), tokens(8)
    longer = k.clone()
    longer[..., -1, :] *= 6
    exponents = [kernel(q, x)[1].exponent.detach().amax() for x in (k, longer)]
    assert float(exponents[1] - exponents[0]) > 5
    before, after = (sequence_attention(kernel, q, x, v, True)[..., :-1, :] for x in (k, longer))
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)
    assert_differs(*(sequence_attention(kernel, q, x, v, False)[..., :-1, :] for x in (k, longer)))


def test_work_is_linear_in_the_length():
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in (out if isinstance(out, tuple | list) else (out,)) if torch.is_tensor(t))
            return out

    largest = []
    for n in (512, 1024):
        sizes.clear()
        with torch.no_grad(), Watch():
            prefix_sums(*(torch.ones(n, 4) for _ in range(3)), chunk=16)
        largest.append(max(sizes))
    assert largest[1] == 2 * largest[0]
    assert largest[1] < 1024**2 / 8


def test_kernels_of_single_tokens_may_be_causal():
    class Square(Kernel):
        n_features = HEAD_DIM

        def forward(self, query, key, mask=None):
            return tuple(Features(torch.zeros_like(x[..., :1]), x**2) for x in (query, key))

    for kernel in (*map(kernel_of, KERNELS), CosformerKernel(HEAD_DIM, 9), Square()):
        check_causal(kernel, N_HEADS, HEAD_DIM)


@pytest.mark.parametrize("name", ["oprf-orf", "saderf-orf", "lara"])
@pytest.mark.parametrize("training", [True, False])
def test_kernels_that_average_over_the_sequence_are_refused(name, training):
    kernel = kernel_of(name, n_features=8).train(training)
    with pytest.raises(ValueError, match="future"):
        check_causal(kernel, N_HEADS, HEAD_DIM)
    kernel.eval()
    q, k, v = tokens(6)
    changed = k.clone()
    changed[..., -1, :] *= 3
    before, after = (sequence_attention(kernel, q, x, v, True)[..., :-1, :] for x in (k, changed))
    assert float((before - after).detach().abs().max()) > 1e-6


def cosformer_weights(q, k, length):
    n = q.shape[-2]
    cosines = [[math.cos(math.pi / 2 * (i - j) / length) for j in range(n)] for i in range(n)]
    return q.clamp(min=0) @ k.clamp(min=0).transpose(-1, -2) * torch.tensor(cosines, dtype=torch.float64)


@either_way
@pytest.mark.parametrize("length", [9, 20])
def test_cosformer_equals_its_dense_formula(causal, length):
    leaves = q, k, v = tokens(9)
    # A component that is positive in every token, lest a query meet no key.
    shift = torch.tensor([1.5, 0.0, 0.0], dtype=torch.float64)
    q, k = q + shift, k + shift
    kernel = CosformerKernel(HEAD_DIM, length)
    found = sequence_attention(kernel, q, k, v, causal)
    assert_same(found, dense(cosformer_weights(q, k, length), v, causal), leaves)
    assert_differs(found, dense(cosformer_weights(q, k, length), v, not causal))
    assert_differs(found, dense(cosformer_weights(q, k, 1e9), v, causal))
    assert all(bool((feature.values() >= 0).all()) for feature in kernel(q, k))


def test_a_query_of_cosformer_that_meets_no_key_gets_zero():
    q, k, v = tokens(4)
    found = sequence_attention(CosformerKernel(HEAD_DIM, 4), -q.abs(), k, v, True)
    assert torch.equal(found, torch.zeros_like(found))


SHAPES = [(9,), (3, 4)]
either_shape = pytest.mark.parametrize("shape", SHAPES)


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
