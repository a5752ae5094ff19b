"""Every feature map against its formula; the mean of the estimates of exp(q·k), and the A of least variance."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from molflt.attention.build import Sizes, build_kernel, build_kernels
from molflt.attention.kernels import FLOOR, kernelised_attention, normalised, stable_features
from molflt.attention.kernels.random_features import EluKernel, ReluKernel
from molflt.attention.kernels.spectraformer import COMPONENT_FUNCTIONS, optimal_a
from molflt.attention.registry import KERNELS, attention_config
from molflt.errors import InputError
from tests.attention.kernels.checks import (
    GRID,
    LAWS,
    WIDTH,
    check_kernel,
    dense_attention,
    draws,
    estimates,
    generator,
    kernel_of,
    pair_terms,
    published_a,
    softmax_kernel,
    standard_errors_off,
    tokens,
)

COVERING = [
    *(f"{c}-{m}" for c in COMPONENT_FUNCTIONS for m in ("iid", "fastfood")),
    "posrf-orf",
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


def feature(kernel, x):
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
    # Both cases occur.
    assert bool(low.any())
    assert not bool(low.all())


@pytest.mark.parametrize("component", ["posrf", "oprf", "saderf"])
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


@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(masked):
    kernel, inputs = kernel_of("posrf-orf", m=4, c=2), tokens(batch=1, heads=1, n=3, c=2)
    mask = (torch.arange(3) < 2)[None, None, :, None] if masked else None
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(lambda *x: kernelised_attention(kernel, *x, mask), inputs)


def test_no_feature_exceeds_one_however_long_tokens_are_and_padding_is_zero():
    q, k, _ = tokens(scale=40.0)
    mask = torch.ones(2, 1, 6, 1, dtype=torch.bool)
    mask[1, 0, 4:] = False
    phi_q, phi_k = stable_features(*kernel_of("posrf-orf")(q, torch.where(mask, k, 1e3 * k), mask), mask)
    assert max(float(phi_q.max()), float(phi_k.max())) <= 1.0
    assert not bool(phi_k[1, :, 4:].any())
    assert bool(phi_k[1, :, :4].any())


def test_a_structure_without_tokens_is_zero():
    mask = torch.ones(2, 1, 6, 1, dtype=torch.bool)
    mask[1] = False
    inputs = [t.requires_grad_() for t in tokens()]
    out = kernelised_attention(kernel_of("posrf-orf"), *inputs, mask)
    assert not bool(out[1].any())
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(out.sum(), inputs))


def test_a_normaliser_of_nothing_is_zero_with_a_finite_gradient():
    numerator = torch.tensor([[1.0], [2.0], [0.0]], requires_grad=True)
    normaliser = torch.tensor([[4.0], [1e-30], [0.0]], requires_grad=True)
    out = normalised(numerator, normaliser)
    assert out.flatten().tolist() == [0.25, 0.0, 0.0]
    assert all(bool(torch.isfinite(g).all()) for g in torch.autograd.grad(out.sum(), [numerator, normaliser]))


def log_second_moment(a, square, c):
    """log of E X² exp(|q|² + |k|²) for one row, X = D² exp(2A|ω|² + B ω·z − (|q|² + |k|²)/2) and z = q + k.

    E exp(α|ω|² + β·ω) = (1 − 2α)^{−c/2} exp(|β|²/(2 − 4α)) with α = 4A and β = 2Bz; D⁴ = (1 − 4A)^c.
    """
    return c * math.log(1 - 4 * a) - c / 2 * math.log(1 - 8 * a) + 2 * (1 - 4 * a) * square / (1 - 8 * a)


@pytest.mark.parametrize("component", COMPONENT_FUNCTIONS)
def test_unbiased(component):
    q, k, _ = tokens(batch=1, n=4, scale=0.35)
    for matrix in ("iid", "orf", "qmc", "fastfood"):
        values = estimates(COMPONENT_FUNCTIONS[component], draws(LAWS[matrix], 1500, 8), q, k)
        assert standard_errors_off(values, softmax_kernel(q, k)) < 4.5
        # Power: three per cent more are found out.
        assert standard_errors_off(1.03 * values, softmax_kernel(q, k)) > 4.5


@pytest.mark.parametrize("square", [1e-3, 0.3, 2.0, 15.0, 400.0])
def test_optimal_a_minimises_the_second_moment(square):
    for c in (1, 5, 64):
        found = float(optimal_a(torch.tensor(square, dtype=torch.float64), c))
        bounds = (min(-10.0, 4 * found), 0.12)
        best = minimize_scalar(
            lambda a, c=c: log_second_moment(a, square, c), bounds=bounds, options={"xatol": 1e-11}
        )
        assert found == pytest.approx(best.x, abs=1e-5 * (1 + abs(best.x)))
        assert found < 0
        assert found == pytest.approx(published_a(square, c), rel=1e-6, abs=1e-9)
        # Never worse than A = 0, the positive features; and twice A is worse than A.
        assert log_second_moment(found, square, c) < log_second_moment(0.0, square, c)
        assert log_second_moment(found, square, c) < log_second_moment(2 * found, square, c)


def test_optimal_a_at_its_ends():
    """Zero, with a finite gradient, where q = −k; and no overflow in single precision."""
    zero = torch.zeros(1, requires_grad=True)
    (slope,) = torch.autograd.grad(optimal_a(zero, 4), zero)
    assert float(optimal_a(zero, 4).detach()) == 0
    assert -math.inf < float(slope) < 0
    assert bool(torch.isfinite(optimal_a(torch.tensor(1e12), 64)))
    # A = −S/2c + O(S²). Eq. 35 as printed loses it to cancellation.
    small = torch.tensor(1e-12, dtype=torch.float64)
    assert float(optimal_a(small, 4)) == pytest.approx(-1e-12 / 8, rel=2e-3)
    assert published_a(1e-12, 4) != pytest.approx(-1e-12 / 8, rel=1e-1)
