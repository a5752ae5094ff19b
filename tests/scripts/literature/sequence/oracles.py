"""What the tests compare with: the O(n²) formulas written out, and kernels and inputs to try them on."""

import itertools

import torch

from molflt.attention.build import build_kernel
from molflt.attention.kernels import FLOOR
from tests.attention.kernels.checks import generator

N_HEADS = 2
HEAD_DIM = 3
KERNELS = ("posrf-orf", "elu", "relu", "trigrf-iid")


def kernel_of(name, dim=HEAD_DIM, n_features=16, seed=1):
    return build_kernel(name, dim, N_HEADS, n_features, 2, generator(seed)).double()


def tokens(n, dim=HEAD_DIM, seed=2, batch=2):
    """q, k, v of a few tokens, leaves with gradients."""
    shape = (3, batch, N_HEADS, n, dim)
    drawn = 0.7 * torch.randn(shape, generator=generator(seed), dtype=torch.float64)
    return [t.clone().requires_grad_() for t in drawn]


def kernel_weights(kernel, query, key):
    """κ(q_i, k_j), with nothing taken off, and the sum of the absolute values of its terms."""
    phi_q, phi_k = (f.values() for f in kernel(query, key))
    return phi_q @ phi_k.transpose(-1, -2), phi_q.abs() @ phi_k.abs().transpose(-1, -2)


def dense(weights, value, causal, bound=None):
    """Σ_j A_ij v_j / Σ_j A_ij; ``bound`` for weights of either sign."""
    n = value.shape[-2]
    seen = torch.tensor([[float(j <= i or not causal) for j in range(n)] for i in range(n)], dtype=torch.float64)
    total = (weights * seen).sum(dim=-1, keepdim=True)
    if bound is not None:
        total = torch.maximum(total, FLOOR * (bound * seen).sum(dim=-1, keepdim=True))
    return (weights * seen) @ value / total


def dense_kernelised(kernel, query, key, value, causal, mask=1.0):
    """Kernelised attention with weights κ · mask."""
    weights, bound = kernel_weights(kernel, query, key)
    return dense(weights * mask, value, causal, None if kernel.positive else bound * mask)


def places(shape):
    """Row and column of the tokens of a grid, or the place in a sequence."""
    return list(itertools.product(*map(range, shape)))


def relative_matrix(values, shape):
    """B_ij = b_{j−i}, entry by entry."""
    rows = []
    for here in places(shape):
        row = []
        for there in places(shape):
            entry = values
            for a, b, length in zip(here, there, shape, strict=True):
                entry = entry[:, b - a + length - 1]
            row.append(entry)
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


def gradients(output, leaves):
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape)
    return torch.autograd.grad((output * weights).sum(), leaves, retain_graph=True)


def assert_same(found, wanted, leaves, tolerance=1e-10):
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    for a, b in zip(gradients(found, leaves), gradients(wanted, leaves), strict=True):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def assert_differs(found, wanted):
    assert float((found - wanted).detach().abs().max()) > 1e-4
