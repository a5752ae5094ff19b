"""elu + 1 and learned ReLU features against their formulas."""

import pytest
import torch

from molflt.attention.kernels.kernel import Kernel, kernelised_attention
from molflt.literature.kernels import EluKernel, ReluKernel
from tests.literature.kernels.grid import estimate, generator, tokens

C = 5


def kernel_of(name: str) -> Kernel:
    return EluKernel(C) if name == "elu" else ReluKernel(9, C, generator()).double()


def feature(kernel: Kernel, x: torch.Tensor) -> torch.Tensor:
    """φ of one token, axis by axis."""
    if isinstance(kernel, EluKernel):
        return torch.stack([t + 1 if t > 0 else t.exp() for t in x])
    return torch.stack([max(row @ x, 0 * row @ x) + 1e-3 for row in kernel.matrix])


kernels = pytest.mark.parametrize("name", ["elu", "relu"])


@kernels
def test_attention_is_the_dense_formula(name):
    kernel, (q, k, v) = kernel_of(name), tokens(scale=1.5)
    with torch.no_grad():
        found = kernelised_attention(kernel, q, k, v, None)
        for b in range(2):
            for h in range(2):
                phi_q, phi_k = (torch.stack([feature(kernel, x) for x in t[b, h]]) for t in (q, k))
                assert phi_q.shape[1] == kernel.n_features
                weights = phi_q @ phi_k.T
                torch.testing.assert_close(found[b, h], weights @ v[b, h] / weights.sum(1, keepdim=True))
    # Power: they are not the same, nor softmax attention.
    other = kernel_of("relu" if name == "elu" else "elu")
    assert not torch.allclose(kernelised_attention(other, q, k, v, None), found, rtol=1e-2)
    assert not torch.allclose(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v, found, rtol=1e-2)


@kernels
def test_features_are_positive(name):
    kernel, (q, k, _) = kernel_of(name), tokens(scale=3.0)
    assert kernel.positive
    assert bool((estimate(kernel, q, k) > 0).all())
    assert all(bool((f.values() > 0).all()) for f in kernel(q, k))


@kernels
def test_gradcheck(name):
    kernel, x = kernel_of(name), [t.requires_grad_() for t in tokens(batch=1, heads=1, n=3)]
    assert torch.autograd.gradcheck(lambda *y: kernelised_attention(kernel, *y, None), x)
    for parameter in kernel.parameters():
        assert torch.autograd.gradcheck(lambda _: kernelised_attention(kernel, *x, None), parameter)


@kernels
def test_padding_order_and_batch_mates(name):
    kernel, x = kernel_of(name), tokens(batch=1)
    alone = kernelised_attention(kernel, *x, None)
    wide = [torch.cat([t, torch.full_like(t[:, :, :2], 2.5)], dim=2) for t in x]
    mask = (torch.arange(8) < 6)[None, None, :, None]
    torch.testing.assert_close(kernelised_attention(kernel, *wide, mask)[:, :, :6], alone)
    assert not torch.allclose(kernelised_attention(kernel, *wide, None)[:, :, :6], alone, rtol=1e-2)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    moved = kernelised_attention(kernel, *(t[:, :, order] for t in x), None)
    torch.testing.assert_close(moved, alone[:, :, order])
    mates = kernelised_attention(kernel, *(torch.cat([t, 50 * t]) for t in x), None)
    torch.testing.assert_close(mates[:1], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_that_all_rows_of_relu_cut_off(dtype):
    """It sees every key by the sum of its features, and has a finite gradient."""
    kernel = ReluKernel(3, C, generator()).to(dtype)
    q, k, v = (t.to(dtype) for t in tokens(batch=1, heads=1))
    # W has three orthogonal rows in five dimensions: minus their sum is on the negative side of each.
    cut_off = -50 * kernel.matrix.detach().sum(0)
    assert bool((kernel.matrix.detach() @ cut_off < 0).all())
    q = q.clone()
    q[0, 0, 2] = cut_off
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out = kernelised_attention(kernel, *inputs, None)
    out.square().sum().backward()
    shares = torch.relu(k @ kernel.matrix.T).add(1e-3).sum(-1)[0, 0]
    torch.testing.assert_close(out[0, 0, 2], shares @ v[0, 0] / shares.sum())
    for tensor in (out, *(t.grad for t in (*inputs, kernel.matrix))):
        assert bool(torch.isfinite(tensor).all())
    assert not bool(q.grad[0, 0, 2].any())
    assert bool(q.grad.any())


def test_queries_and_keys_that_relu_all_cuts_off():
    """Nothing but ε is left: every query takes the mean of the values."""
    kernel = ReluKernel(3, C, generator()).double()
    cut_off = (-kernel.matrix.detach().sum(0)).expand(1, 1, 6, C)
    v = tokens(batch=1, heads=1)[2]
    found = kernelised_attention(kernel, cut_off, cut_off, v, None)
    torch.testing.assert_close(found, v.mean(dim=2, keepdim=True).expand_as(v))


@kernels
@pytest.mark.parametrize("scale", [100.0, -100.0])
def test_single_precision_with_huge_queries_stays_finite(name, scale):
    kernel = kernel_of(name).float()
    q, k, v = (t.float() for t in tokens())
    inputs = [t.requires_grad_() for t in (scale * q, k, v)]
    out = kernelised_attention(kernel, *inputs, None)
    out.sum().backward()
    assert bool(torch.isfinite(out).all())
    assert all(bool(torch.isfinite(t.grad).all()) for t in inputs)


def test_elu_keeps_its_accuracy_far_below_zero_in_single_precision():
    """exp(x) there, whose ratios are harmless: every feature near exp(−20)."""
    q, k, v = tokens(batch=1, heads=1)
    q = q - 20
    found = kernelised_attention(EluKernel(C), q.float(), k.float(), v.float(), None).double()
    torch.testing.assert_close(found, kernelised_attention(EluKernel(C), q, k, v, None), rtol=1e-3, atol=1e-5)


def test_the_matrix_of_relu_starts_orthogonal_and_learns():
    kernel = ReluKernel(C, C, generator(3)).double()
    unit = torch.nn.functional.normalize(kernel.matrix.detach(), dim=1)
    torch.testing.assert_close(unit @ unit.T, torch.eye(C, dtype=torch.float64), rtol=0, atol=1e-6)
    x = tokens()
    kernelised_attention(kernel, *x, None).square().sum().backward()
    assert bool((kernel.matrix.grad.abs().sum(dim=1) > 0).all())
    assert torch.equal(kernel.matrix, ReluKernel(C, C, generator(3)).double().matrix)
    assert not torch.equal(kernel.matrix, ReluKernel(C, C, generator(4)).double().matrix)
