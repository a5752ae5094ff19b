"""Causal and bidirectional kernelised attention against the dense formula."""

import pytest
import torch

from molflt.attention.kernels.kernel import FLOOR, Features, Kernel
from molflt.errors import InputError
from molflt.literature.sequence.prefix_sums import causal_attention, check_causal, prefix_sums, sequence_attention
from tests.literature.sequence.oracles import (
    HEAD_DIM,
    KERNELS,
    N_HEADS,
    assert_differs,
    assert_same,
    dense_kernelised,
    kernel_of,
    kernel_weights,
    tokens,
)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
def test_equals_dense_formula(name, causal):
    kernel, (q, k, v) = kernel_of(name), tokens(11)
    found = sequence_attention(kernel, q, k, v, causal)
    assert_same(found, dense_kernelised(kernel, q, k, v, causal), (q, k, v))
    assert_differs(found, dense_kernelised(kernel, q, k, v, not causal))


@pytest.mark.parametrize("causal", [False, True])
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


@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 10, 64])
def test_chunk_size_changes_nothing(chunk):
    kernel, (q, k, v) = kernel_of("posrf-orf"), tokens(10)
    assert_same(causal_attention(kernel, q, k, v, chunk), dense_kernelised(kernel, q, k, v, True), (q, k, v))


def test_state_of_earlier_chunks_counts():
    """Power: what a chunk alone would give differs."""
    kernel, (q, k, v) = kernel_of("posrf-orf"), tokens(10)
    found = causal_attention(kernel, q, k, v, 5)
    assert_differs(found[..., 5:, :], causal_attention(kernel, q[..., 5:, :], k[..., 5:, :], v[..., 5:, :], 5))


def test_a_common_factor_of_the_keys_cancels():
    """A last token whose exponents dwarf all others changes the maximum, and no output before it."""
    kernel, (q, k, v) = kernel_of("trigrf-iid"), tokens(8)
    longer = k.clone()
    longer[..., -1, :] *= 6
    exponents = [kernel(q, x)[1].exponent.detach().amax() for x in (k, longer)]
    assert float(exponents[1] - exponents[0]) > 5
    before, after = (causal_attention(kernel, q, x, v)[..., :-1, :] for x in (k, longer))
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)
    assert_differs(*(sequence_attention(kernel, q, x, v, False)[..., :-1, :] for x in (k, longer)))


def test_work_is_linear_in_the_length():
    """No tensor of n² numbers is made."""
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


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_single_tokens_may_be_causal(name):
    check_causal(kernel_of(name), N_HEADS, HEAD_DIM)


@pytest.mark.parametrize("name", ["oprf-orf", "saderf-orf", "lara"])
@pytest.mark.parametrize("training", [True, False])
def test_kernels_that_average_over_the_sequence_are_refused(name, training):
    """And rightly: with them the future does reach the past."""
    kernel = kernel_of(name, n_features=8).train(training)
    with pytest.raises(InputError, match="future"):
        check_causal(kernel, N_HEADS, HEAD_DIM)
    kernel.eval()
    q, k, v = tokens(6)
    changed = k.clone()
    changed[..., -1, :] *= 3
    before, after = (causal_attention(kernel, q, x, v)[..., :-1, :] for x in (k, changed))
    assert float((before - after).detach().abs().max()) > 1e-6


def test_a_kernel_without_parameters_can_be_checked():
    class Square(Kernel):
        n_features = 2

        def forward(self, query, key, mask=None):
            return tuple(Features(torch.zeros_like(x[..., :1]), x**2) for x in (query, key))

    check_causal(Square(), 1, 2)


def test_refuses_an_empty_chunk():
    with pytest.raises(InputError, match="chunk"):
        prefix_sums(*(torch.ones(4, 2) for _ in range(3)), chunk=0)
