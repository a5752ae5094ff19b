"""Every feature map against its formula, and what must hold for all of them."""

import pytest
import torch

from molflt.attention.build import Sizes, build_kernel, build_kernels
from molflt.attention.kernels import FLOOR, kernelised_attention
from molflt.attention.kernels.random_features import EluKernel, ReluKernel
from molflt.attention.kernels.spectraformer import COMPONENT_FUNCTIONS
from molflt.attention.registry import KERNELS, attention_config
from molflt.errors import InputError
from tests.attention.kernels.checks import WIDTH, check_kernel, generator, tokens
from tests.attention.kernels.grid import GRID, dense_attention, kernel_of, pair_terms

COVERING = [
    *(f"{c}-{m}" for c in COMPONENT_FUNCTIONS for m in ("iid", "fastfood")),
    "oprf-mm",
    "saderf-qmc",
    "trigrf-sgq",
]
"""Each component function with a drawn and the learned matrix; how rows are drawn changes none of the checks."""


@pytest.mark.parametrize("name", COVERING)
def test_attention_is_the_dense_formula(name):
    kernel, (q, k, v) = kernel_of(name), tokens()
    component = name.partition("-")[0]
    with torch.no_grad():
        found, omega = kernelised_attention(kernel, q, k, v, None), kernel.weights()
    torch.testing.assert_close(found, dense_attention(component, omega, q, k, v), rtol=1e-9, atol=1e-11)
    # Power: the component functions give different answers from the same matrix.
    for other in set(COMPONENT_FUNCTIONS) - {component}:
        assert not torch.allclose(found, dense_attention(other, omega, q, k, v), rtol=1e-4)


def feature(kernel, x: torch.Tensor) -> torch.Tensor:
    """φ of one token of elu or relu, axis by axis."""
    if isinstance(kernel, EluKernel):
        return torch.stack([t + 1 if t > 0 else t.exp() for t in x])
    return torch.stack([max(row @ x, 0 * row @ x) + 1e-3 for row in kernel.matrix])


@pytest.mark.parametrize("name", ["elu", "relu"])
def test_attention_of_elu_and_relu_is_the_dense_formula(name):
    kernel, (q, k, v) = kernel_of(name), tokens(scale=1.5)
    with torch.no_grad():
        found = kernelised_attention(kernel, q, k, v, None)
        for b in range(2):
            for h in range(2):
                phi_q, phi_k = (torch.stack([feature(kernel, x) for x in t[b, h]]) for t in (q, k))
                weights = phi_q @ phi_k.T
                torch.testing.assert_close(found[b, h], weights @ v[b, h] / weights.sum(1, keepdim=True))
    # Power: it is not softmax attention.
    assert not torch.allclose(torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v, found, rtol=1e-2)


@pytest.mark.parametrize("name", [*COVERING, "elu", "relu", "lara"])
def test_what_must_hold_for_every_kernel(name):
    check_kernel(kernel_of(name).eval())


def test_an_estimate_of_either_sign_is_raised_to_the_floor():
    """Far queries, whose sums of cosines come out below the floor: divided by 1 % of the sum of absolute values."""
    kernel, (q, k, v) = kernel_of("trigrf-iid"), tokens(n=12, scale=2.0)
    found, omega = kernelised_attention(kernel, q, k, v, None), kernel.weights()
    low = torch.zeros_like(v[..., 0], dtype=torch.bool)
    for b in range(2):
        for h in range(2):
            weights = pair_terms("trigrf", omega, q[b, h], k[b, h]).sum(-1)
            lengths = [torch.exp(x[b, h].square().sum(1) / 2) for x in (q, k)]
            phase_q, phase_k = q[b, h] @ omega.T, k[b, h] @ omega.T
            overlap = phase_q.cos().abs() @ phase_k.cos().abs().T + phase_q.sin().abs() @ phase_k.sin().abs().T
            bound = FLOOR * (lengths[0][:, None] * lengths[1][None] * overlap / len(omega)).sum(1)
            low[b, h] = weights.sum(1) < bound
            wanted = weights @ v[b, h] / torch.maximum(weights.sum(1), bound)[:, None]
            torch.testing.assert_close(found[b, h], wanted, rtol=1e-8, atol=1e-10)
    # Power: both cases occur, and without the floor they differ.
    assert bool(low.any())
    assert not bool(low.all())
    assert not torch.allclose(dense_attention("trigrf", omega, q, k, v)[low], found[low], rtol=1e-3)


@pytest.mark.parametrize("component", ["oprf", "saderf"])
def test_single_precision_keeps_its_accuracy_with_long_queries(component):
    """Against the logarithms of all pairs in double precision, for |q| near 60 and 16 wide heads."""
    kernel = kernel_of(f"{component}-orf", m=32, c=16)
    q, k, v = torch.randn(3, 2, 2, 20, 16, generator=generator(50), dtype=torch.float64)
    q, k = 15 * q, 0.5 * k
    log_q, log_k = (feature.exponent for feature in kernel(q, k))
    wanted = torch.softmax(torch.logsumexp(log_q[..., :, None, :] + log_k[..., None, :, :], dim=-1), dim=-1) @ v
    found = kernelised_attention(kernel.float(), *(t.float() for t in (q, k, v)), None).double()
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3


def test_elu_keeps_its_accuracy_far_below_zero_in_single_precision():
    """exp(x) there, whose ratios are harmless: every feature near exp(−20)."""
    q, k, v = tokens(batch=1, heads=1)
    found = kernelised_attention(EluKernel(WIDTH), (q - 20).float(), k.float(), v.float(), None).double()
    torch.testing.assert_close(
        found, kernelised_attention(EluKernel(WIDTH), q - 20, k, v, None), rtol=1e-3, atol=1e-5
    )


def test_a_query_that_all_rows_of_relu_cut_off():
    """It sees every key by the sum of its features, and has a finite gradient; where all are cut off, all equally."""
    kernel = ReluKernel(3, WIDTH, generator()).double()
    q, k, v = tokens(batch=1, heads=1)
    # W has three orthogonal rows in five dimensions: minus their sum is on the negative side of each.
    cut_off = -50 * kernel.matrix.detach().sum(0)
    assert bool((kernel.matrix.detach() @ cut_off < 0).all())
    q = q.clone()
    q[0, 0, 2] = cut_off
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out = kernelised_attention(kernel, *inputs, None)
    gradients = torch.autograd.grad(out.square().sum(), [*inputs, kernel.matrix])
    shares = torch.relu(k @ kernel.matrix.T).add(1e-3).sum(-1)[0, 0]
    torch.testing.assert_close(out[0, 0, 2], shares @ v[0, 0] / shares.sum())
    assert all(bool(torch.isfinite(t).all()) for t in (out, *gradients))
    assert not bool(gradients[0][0, 0, 2].any())
    everywhere = cut_off.expand(1, 1, 6, WIDTH)
    found = kernelised_attention(kernel, everywhere, everywhere, v, None)
    torch.testing.assert_close(found, v.mean(dim=2, keepdim=True).expand_as(v))


def test_the_matrix_of_relu_starts_orthogonal():
    kernel = ReluKernel(WIDTH, WIDTH, generator(3)).double()
    unit = torch.nn.functional.normalize(kernel.matrix.detach(), dim=1)
    torch.testing.assert_close(unit @ unit.T, torch.eye(WIDTH, dtype=torch.float64), rtol=0, atol=1e-6)


def test_every_name_of_the_registry_builds_that_kernel():
    assert set(GRID) | {"elu", "relu", "lara"} == set(KERNELS)
    for name in KERNELS:
        keys = {"n_landmarks": 3} if name == "lara" else {} if name == "elu" else {"n_features": 14}
        config = attention_config("performer", kernel=name, **keys)
        by_config, _ = build_kernels(config, WIDTH, Sizes(dim=2 * WIDTH, n_heads=2, n_layers=2, n_rbf=1))
        by_name = build_kernel(name, WIDTH, 2, 14, 3, generator())
        torch.testing.assert_close(by_config.state_dict(), by_name.state_dict(), rtol=0, atol=0)
        if "-" in name:
            assert by_name.component is COMPONENT_FUNCTIONS[name.partition("-")[0]]
    for name in ("posrf", "posrf-", "-orf", "posrf-orf-orf", "PosRF-ORF", "gauss-iid", "posrf_orf", ""):
        with pytest.raises(InputError, match="lists them"):
            build_kernel(name, WIDTH, 2, 14, 3, generator())
