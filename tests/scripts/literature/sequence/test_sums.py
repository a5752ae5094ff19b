"""Causal and bidirectional sums over a sequence against the dense formula, with any kernel and with cosFormer."""

import math

import pytest
import torch

from molflt.attention.kernels.base import FLOOR, Features, Kernel
from scripts.literature.sequence.positioned_kernels import CosformerKernel
from scripts.literature.sequence.prefix_sums import check_causal, prefix_sums, sequence_attention
from tests.scripts.literature.sequence.oracles import (
    HEAD_DIM,
    KERNELS,
    N_HEADS,
    assert_differs,
    assert_same,
    dense,
    dense_kernelised,
    kernel_of,
    kernel_weights,
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


def test_kernels_of_single_tokens_may_be_causal():
    class Square(Kernel):
        """Without a parameter to take a dtype from."""

        n_features = HEAD_DIM

        def forward(self, query, key, mask=None):
            return tuple(Features(torch.zeros_like(x[..., :1]), x**2) for x in (query, key))

    for kernel in (*map(kernel_of, KERNELS), CosformerKernel(HEAD_DIM, 9), Square()):
        check_causal(kernel, N_HEADS, HEAD_DIM)


@pytest.mark.parametrize("name", ["oprf-orf", "saderf-orf", "lara"])
@pytest.mark.parametrize("training", [True, False])
def test_kernels_that_average_over_the_sequence_are_refused(name, training):
    """And rightly: with them the future does reach the past."""
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
