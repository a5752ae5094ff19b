"""cosFormer against its dense formula."""

import math

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.sequence.positioned_kernels import CosformerKernel
from molflt.literature.sequence.prefix_sums import check_causal, sequence_attention
from tests.literature.sequence.oracles import HEAD_DIM, N_HEADS, assert_differs, assert_same, dense, tokens


def positive_tokens(n):
    """With a component that is positive in every token, lest a query meet no key."""
    q, k, v = tokens(n)
    shift = torch.tensor([1.5, 0.0, 0.0], dtype=torch.float64)
    return q, k, v, q + shift, k + shift


def dense_weights(q, k, length):
    n = q.shape[-2]
    cosines = [[math.cos(math.pi / 2 * (i - j) / length) for j in range(n)] for i in range(n)]
    return q.clamp(min=0) @ k.clamp(min=0).transpose(-1, -2) * torch.tensor(cosines, dtype=torch.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [9, 20])
def test_equals_dense_formula(causal, length):
    q, k, v, shifted_q, shifted_k = positive_tokens(9)
    found = sequence_attention(CosformerKernel(HEAD_DIM, length), shifted_q, shifted_k, v, causal)
    assert_same(found, dense(dense_weights(shifted_q, shifted_k, length), v, causal), (q, k, v))
    assert_differs(found, dense(dense_weights(shifted_q, shifted_k, length), v, not causal))
    assert_differs(found, dense(dense_weights(shifted_q, shifted_k, 1e9), v, causal))


def test_no_feature_is_negative():
    q, k, _ = tokens(9)
    kernel = CosformerKernel(HEAD_DIM, 9)
    assert all(bool((f.values() >= 0).all()) for f in kernel(q, k))
    check_causal(kernel, N_HEADS, HEAD_DIM)


def test_a_query_that_meets_no_key_gets_zero():
    q, k, v = tokens(4)
    found = sequence_attention(CosformerKernel(HEAD_DIM, 4), -q.abs(), k, v, True)
    assert torch.equal(found, torch.zeros_like(found))


def test_refusals():
    with pytest.raises(InputError, match="max_length"):
        CosformerKernel(HEAD_DIM, 0)
    q, k, _ = tokens(5)
    with pytest.raises(InputError, match="negative"):
        CosformerKernel(HEAD_DIM, 4)(q, k)
