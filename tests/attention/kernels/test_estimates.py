"""Mean and variance of the estimates of exp(q·k), in closed form and over many draws."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import iv

from molflt.attention.kernels.random_features import positive
from molflt.attention.kernels.spectraformer import (
    COMPONENT_FUNCTIONS,
    generalised_features,
    iid,
    mean_square_of_sums,
    optimal_a,
    optimised_positive,
    saderf,
    sphere,
    structured_orthogonal,
)
from tests.attention.kernels.checks import (
    WIDTH,
    draws,
    estimates,
    generator,
    pairs,
    softmax_kernel,
    square_of_sums,
    squares,
    standard_errors_off,
    tokens,
)
from tests.attention.kernels.grid import LAWS, published_a

M = 8


def log_second_moment(a: float, square: float, c: int) -> float:
    """log of E X² exp(|q|² + |k|²) for one row, X = D² exp(2A|ω|² + B ω·z − (|q|² + |k|²)/2) and z = q + k.

    E exp(α|ω|² + β·ω) = (1 − 2α)^{−c/2} exp(|β|²/(2 − 4α)) with α = 4A and β = 2Bz; D⁴ = (1 − 4A)^c.
    """
    return c * math.log(1 - 4 * a) - c / 2 * math.log(1 - 8 * a) + 2 * (1 - 4 * a) * square / (1 - 8 * a)


@pytest.mark.parametrize("component", COMPONENT_FUNCTIONS)
def test_unbiased(component):
    q, k, _ = tokens(batch=1, n=4, scale=0.35)
    for matrix in ("iid", "orf", "qmc", "fastfood"):
        values = estimates(COMPONENT_FUNCTIONS[component], draws(LAWS[matrix], 1500, M), q, k)
        assert standard_errors_off(values, softmax_kernel(q, k)) < 4.5
        # Power: three per cent more are found out.
        assert standard_errors_off(1.03 * values, softmax_kernel(q, k)) > 4.5


def test_structured_rows_are_biased_by_less_in_wider_heads():
    """The mean of exp(ω·z − |z|²/2) − 1 over directions of z, |z| = 1.8, at c = 4 and c = 64."""
    biases, errors = [], []
    for c, count in ((4, 4000), (64, 250)):
        z = torch.randn(8, c, generator=generator(2), dtype=torch.float64)
        q = (0.9 * z / z.norm(dim=1, keepdim=True))[:, None, None]
        omegas = structured_orthogonal(c * count, c, generator(3)).unflatten(0, (count, c))
        values = (estimates(positive, omegas, q, q) / softmax_kernel(q, q)).mean(dim=(1, 2, 3, 4)) - 1
        biases.append(float(values.mean()))
        errors.append(float(values.std()) / math.sqrt(count))
        if c == 4:
            # Power: it is the fixed length that biases; with Gaussian lengths the same directions do not.
            lengths = torch.randn(count, c, c, generator=generator(4), dtype=torch.float64).norm(dim=2, keepdim=True)
            free = estimates(positive, omegas / math.sqrt(c) * lengths, q, q) / softmax_kernel(q, q)
            assert abs(float(free.mean()) - 1) < abs(biases[0]) / 4
    # Rows of length √c: below by about |z|⁴/4(c + 2).
    assert biases[0] < -8 * errors[0]
    assert biases[0] < -0.2
    assert abs(biases[1]) < min(abs(biases[0]) / 4 + 3 * errors[1], 0.1)


def regularised_softmax_kernel(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """exp(−(|q|² + |k|²)/2) Γ(ν + 1) (2/r)^ν I_ν(r), r = √c|q + k|, ν = c/2 − 1."""
    c = q.shape[-1]
    r, order = (c * square_of_sums(q, k)).sqrt(), c / 2 - 1
    log_factor = math.lgamma(c / 2) + order * torch.log(2 / r) - squares(q, k) / 2
    return log_factor.exp() * torch.from_numpy(iv(order, r.numpy()))


@pytest.mark.parametrize("c", [2, 5, 16])
def test_positive_features_on_the_sphere_estimate_the_regularised_softmax_kernel(c):
    q, k, _ = tokens(batch=1, n=4, c=c, scale=1.2 / math.sqrt(c))
    omegas = sphere(2000 * M, c, generator(6)).unflatten(0, (2000, M))
    values = estimates(positive, omegas, q, k)
    wanted = regularised_softmax_kernel(q, k)
    assert standard_errors_off(values, wanted) < 4.5
    assert bool((wanted < softmax_kernel(q, k)).all())
    # Power: it is neither the softmax kernel nor that of another radius.
    if c < 16:
        assert standard_errors_off(values, softmax_kernel(q, k)) > 8
    assert standard_errors_off(estimates(positive, omegas / math.sqrt(c), q, k), wanted) > 8


@pytest.mark.parametrize("a", [None, -0.5, -0.1])
def test_variance_of_optimised_features(a):
    """E X² from Gaussian integrals less exp(2q·k), over m; with the A of the pair and with others."""
    q, k = pairs(6, 0.7)
    used = optimal_a(mean_square_of_sums(q, k, None), WIDTH) if a is None else torch.full((6, 1, 1, 1), a).double()

    def component(query, key, omega, mask):
        return generalised_features(query, omega, used), generalised_features(key, omega, used)

    values = estimates(optimised_positive if a is None else component, draws(iid, 6000, M), q, k)
    square = square_of_sums(q, k)
    moments = zip(used.flatten().tolist(), square.flatten().tolist(), strict=True)
    second = torch.tensor([log_second_moment(x, s, WIDTH) for x, s in moments]).double().reshape(square.shape)
    wanted = (torch.exp(second - squares(q, k)) - softmax_kernel(q, k) ** 2) / M
    ratio = values.var(dim=0) / wanted
    assert 0.85 < float(ratio.min()) < float(ratio.max()) < 1.18
    # Power: the lemma of the positive features does not describe them.
    of_positive = torch.expm1(square) * softmax_kernel(q, k) ** 2 / M
    assert float((values.var(dim=0) / of_positive - 1).abs().max()) > 0.3


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


def test_optimised_features_vary_less_and_psi_makes_them_vary_less_still():
    """Never more than positive ones for the pair they are optimised for; SADERF pays off where axes are unequal."""
    q, k = pairs(12, 0.9)
    omegas = draws(iid, 6000, M)
    ratio = estimates(optimised_positive, omegas, q, k).var(dim=0) / estimates(positive, omegas, q, k).var(dim=0)
    assert float(ratio.max()) < 1.0
    assert float(ratio.min()) < 0.5
    q, k, _ = tokens(batch=1, heads=1, n=5)
    axes = torch.tensor([4.0, 0.25, 1.0, 3.0, 0.5], dtype=torch.float64)
    q, k, omegas = q * axes, k / axes, omegas[:1500]
    stretched, plain = (estimates(f, omegas, q, k).var(dim=0) for f in (saderf, optimised_positive))
    assert float((stretched / plain).log().mean()) < math.log(0.7)
    # Ψ is the minimiser of Σ|Ψq|² + Σ|Ψ⁻¹k|²: the same for whatever Ψ comes before.
    torch.testing.assert_close(estimates(saderf, omegas, q * axes, k / axes), estimates(saderf, omegas, q, k))
