"""Spectraformer's grid: each combination against its formula, its expectation, its variance, and the known traps."""

import math

import pytest
import torch

from molflt.attention.config import COMPONENT_FUNCTIONS, KERNELS, RANDOM_FEATURES
from molflt.attention.kernels.build import build_kernel, redraw
from molflt.attention.kernels.kernel import FLOOR, Kernel, kernelised_attention, stable_features
from molflt.attention.kernels.optimised_positive import generalised_features, mean_square_of_sums, optimal_a
from molflt.attention.kernels.positive import positive
from molflt.attention.weight_matrices.iid import iid

HEADS, N, WIDTH, M = 2, 5, 4, 12
UNBIASED = ("iid", "orf", "qmc", "fastfood")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kernel_of(name: str, seed: int = 0, n_features: int = M, width: int = WIDTH) -> Kernel:
    return build_kernel(name, width, HEADS, n_features, 3, generator(seed)).double().eval()


def tokens(scale: float = 0.4, batch: int = 1, n: int = N, width: int = WIDTH) -> tuple[torch.Tensor, ...]:
    q, k, v = torch.randn(3, batch, HEADS, n, width, generator=generator(1), dtype=torch.float64)
    return scale * q, scale * k + 0.1, v


def estimate(kernel: Kernel, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    phi_q, phi_k = kernel(q, k)
    return phi_q.values() @ phi_k.values().transpose(-1, -2)


def written_out(name: str, kernel: Kernel, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """κ(q_i, k_j) of every pair, with loops over heads, tokens and rows of ω."""
    component = name.split("-")[0]
    omega = kernel.weights()
    found = torch.zeros(*q.shape[:2], q.shape[2], k.shape[2], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            x, y = q[b, h], k[b, h]
            if component == "saderf":
                psi = ((y**2).sum(0) / (x**2).sum(0)) ** 0.25
                x, y = x * psi, y / psi
            a = 0.0
            if component in ("oprf", "saderf"):
                s = float(torch.stack([(p + r).square().sum() for p in x for r in y]).mean())
                d = x.shape[1]
                rho = (math.sqrt((2 * s + d) ** 2 + 8 * d * s) - 2 * s - d) / (4 * s)
                a = (1 - 1 / rho) / 8
            for i, p in enumerate(x):
                for j, r in enumerate(y):
                    total = 0.0
                    for w in omega:
                        if component == "trigrf":
                            total += math.cos(float(w @ (p - r))) * math.exp(float(p @ p + r @ r) / 2)
                        else:
                            grow = 1 - 4 * a
                            exponent = 2 * a * float(w @ w) + math.sqrt(grow) * float(w @ (p + r))
                            total += grow ** (len(p) / 2) * math.exp(exponent - float(p @ p + r @ r) / 2)
                    found[b, h, i, j] = total / len(omega)
    return found


@pytest.mark.parametrize("name", RANDOM_FEATURES)
def test_it_is_its_formula(name):
    kernel, (q, k, v) = kernel_of(name), tokens(batch=2)
    with torch.no_grad():
        wanted = written_out(name, kernel, q, k)
        torch.testing.assert_close(estimate(kernel, q, k), wanted, rtol=1e-9, atol=1e-12)
        normaliser = wanted.sum(dim=-1, keepdim=True)
        if not kernel.positive:
            phi_q, phi_k = (feature.values().abs() for feature in kernel(q, k))
            normaliser = normaliser.maximum(FLOOR * phi_q @ phi_k.sum(dim=-2)[..., None])
        out = (wanted @ v) / normaliser
        torch.testing.assert_close(kernelised_attention(kernel, q, k, v, None), out, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_padding_batch_mates_and_order(name):
    kernel, (q, k, v) = kernel_of(name), tokens()
    assert kernel(q, k)[0].values().shape[-1] == kernel.n_features

    def attend(*x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return kernelised_attention(kernel, *x, mask)

    inputs = tuple(t[:, :, :3].clone().requires_grad_() for t in (q, k, v))
    assert torch.autograd.gradcheck(attend, inputs)
    out = attend(q, k, v)
    order = torch.randperm(N, generator=generator())
    torch.testing.assert_close(attend(*(t[:, :, order] for t in (q, k, v))), out[:, :, order])
    padded = [torch.cat([t, torch.full_like(t[:, :, :2], 0.7)], dim=2) for t in (q, k, v)]
    mask = (torch.arange(N + 2) < N)[None, None, :, None]
    torch.testing.assert_close(attend(*padded, mask=mask)[:, :, :N], out, rtol=1e-10, atol=1e-12)
    # Power: left off, the mask is missed.
    assert not torch.allclose(attend(*padded)[:, :, :N], out, rtol=1e-4)
    with_mate = [torch.cat([t, 5 * t.flip(2)]) for t in (q, k, v)]
    torch.testing.assert_close(attend(*with_mate)[:1], out, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_large_queries_in_single_precision_stay_finite_and_positive_ones_positive(name):
    kernel = kernel_of(name).float()
    q, k, v = (t.float().requires_grad_() for t in tokens(scale=30.0))
    out = kernelised_attention(kernel, q, k, v, None)
    assert bool(torch.isfinite(out).all())
    out.sum().backward()
    assert all(bool(torch.isfinite(t.grad).all()) for t in (q, k, v))
    q, k, _ = tokens(scale=2.0)
    values = torch.cat([feature.values() for feature in kernel.double()(q, k)])
    assert kernel.positive == (not name.startswith("trigrf"))
    assert bool((values >= 0).all()) == kernel.positive


def deviation(name: str, wanted: torch.Tensor, q: torch.Tensor, k: torch.Tensor, draws: int = 800) -> float:
    """Largest deviation of the mean over draws, in standard errors."""
    random = generator(3)
    with torch.no_grad():
        values = torch.stack(
            [estimate(build_kernel(name, WIDTH, HEADS, M, 3, random).double(), q, k) for _ in range(draws)]
        )
    return float(((values.mean(dim=0) - wanted).abs() / (values.std(dim=0) / math.sqrt(draws))).max())


@pytest.mark.parametrize("matrix", UNBIASED)
@pytest.mark.parametrize("component", COMPONENT_FUNCTIONS)
def test_unbiased_for_the_softmax_kernel(component, matrix):
    """E κ̂ = exp(q·k); power: the Gaussian kernel in its place is found out."""
    q, k, _ = tokens(scale=0.3)
    dots = q @ k.transpose(-1, -2)
    squares = (q * q).sum(-1)[..., :, None] + (k * k).sum(-1)[..., None, :]
    assert deviation(f"{component}-{matrix}", dots.exp(), q, k) < 4.5
    assert deviation(f"{component}-{matrix}", torch.exp(dots - squares / 2), q, k, draws=300) > 8


def test_structured_rows_lose_their_bias_with_the_width():
    """SORF is unbiased only as the width grows: the error of its mean at c = 4 and c = 64, the same |q| and |k|."""
    biases = []
    for width in (4, 64):
        q = torch.full((1, 1, 1, width), 1.2 / math.sqrt(width), dtype=torch.float64)
        random = generator()
        with torch.no_grad():
            kernels = [build_kernel("posrf-sorf", width, 1, 256, 1, random).double() for _ in range(100)]
            mean = torch.stack([estimate(kernel, q, q) for kernel in kernels]).mean()
        biases.append(abs(float(mean) / math.exp(1.44) - 1))
    assert biases[1] < biases[0] / 3


ROWS = 400_000


def terms(component, draw, q, k) -> torch.Tensor:
    """κ̂ of every row of ω for one query and one key, (ROWS,)."""
    phi_q, phi_k = component(q, k, draw(ROWS, q.shape[-1], generator(5)), None)
    return ROWS * (phi_q.values() * phi_k.values()).flatten()


@pytest.mark.parametrize("scale", [0.1, 0.2])
def test_variance_of_positive_features_is_that_of_the_lemma(scale):
    """(exp|q + k|² − 1) exp(2q·k)/m for m independent rows (arXiv 2106.12566, Eq. 14)."""
    q, k, _ = (t[:, :1, :1] for t in tokens(scale=scale))
    wanted = torch.expm1((q + k).square().sum()) * torch.exp(2 * (q * k).sum())
    assert float(terms(positive, iid, q, k).var() / wanted) == pytest.approx(1, abs=0.03)


def second_moment(a: torch.Tensor, square: torch.Tensor, c: int) -> torch.Tensor:
    """E κ̂² of one row over exp(−|q|² − |k|²): (1 − 4A)^c (1 − 8A)^{−c/2} exp(2|z|²(1 − 4A)/(1 − 8A)), z = q + k."""
    return (1 - 4 * a) ** c * (1 - 8 * a) ** (-c / 2) * torch.exp(2 * square * (1 - 4 * a) / (1 - 8 * a))


@pytest.mark.parametrize("square", [0.01, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("c", [1, 4, 32])
def test_the_optimal_a_is_the_minimum_of_the_variance(square, c):
    s = torch.tensor(square, dtype=torch.float64)
    best = optimal_a(s, c)
    assert float(best) <= 0
    around = best + torch.linspace(-0.05, 0.05, 101, dtype=torch.float64)
    around = around[around < 0.12]
    least = around[second_moment(around, s, c).argmin()]
    assert abs(float(least - best)) <= 0.0011
    # A = 0 are the positive features: never better.
    assert float(second_moment(best, s, c)) <= float(second_moment(torch.zeros(()).double(), s, c)) * (1 + 1e-12)


def test_variance_of_optimised_features():
    """Measured against the closed form of Gaussian integrals, and below that of positive features."""
    q, k, _ = (t[:, :1, :1] for t in tokens(scale=0.6))
    a = optimal_a(mean_square_of_sums(q, k, None), WIDTH)

    def optimised(q, k, omega, mask):
        return generalised_features(q, omega, a), generalised_features(k, omega, a)

    square = (q + k).square().sum()
    scale = torch.exp(-(q.square().sum() + k.square().sum()))
    wanted = second_moment(a.squeeze(), square, WIDTH) * scale - torch.exp(2 * (q * k).sum())
    measured = float(terms(optimised, iid, q, k).var())
    assert measured / float(wanted) == pytest.approx(1, abs=0.03)
    assert measured < float(terms(positive, iid, q, k).var())


def orthogonal_blocks(n_features: int, dim: int, random: torch.Generator) -> torch.Tensor:
    """As :func:`orthogonal`, whose blocks are drawn one by one, many at a time."""
    q, r = torch.linalg.qr(torch.randn(n_features // dim, dim, dim, generator=random, dtype=torch.float64))
    directions = (q * torch.sign(r.diagonal(dim1=1, dim2=2))[:, None, :]).transpose(1, 2).flatten(0, 1)
    return directions * iid(n_features, dim, random).norm(dim=1, keepdim=True)


@pytest.mark.parametrize("component", ["posrf", "trigrf"])
def test_orthogonal_rows_vary_less(component):
    """Estimates from blocks of as many rows as columns."""
    q, k, _ = (t[:, :1, :1] for t in tokens(scale=0.3))

    def estimates(draw) -> torch.Tensor:
        if component == "posrf":
            return terms(positive, draw, q, k).view(-1, WIDTH).mean(dim=1)
        waves = torch.cos((q - k).flatten() @ draw(ROWS, WIDTH, generator(5)).T)
        return waves.view(-1, WIDTH).mean(dim=1)

    assert float(estimates(orthogonal_blocks).var() / estimates(iid).var()) < 0.9


def test_sphere_features_estimate_the_regularised_kernel():
    """exp(−(|q|² + |k|²)/2) Γ(c/2) (2/√c|z|)^{c/2−1} I_{c/2−1}(√c|z|), z = q + k."""
    from scipy.special import gamma, iv

    q, k, _ = tokens(scale=0.5)
    z = math.sqrt(WIDTH) * (q[..., :, None, :] + k[..., None, :, :]).norm(dim=-1)
    order = WIDTH / 2 - 1
    bessel = gamma(WIDTH / 2) * (2 / z) ** order * torch.from_numpy(iv(order, z.numpy()))
    squares = (q * q).sum(-1)[..., :, None] + (k * k).sum(-1)[..., None, :]
    assert deviation("posrf-sphere", bessel * torch.exp(-squares / 2), q, k) < 4.5
    assert deviation("posrf-sphere", torch.exp(q @ k.transpose(-1, -2)), q, k, draws=1500) > 6


def test_a_maximum_per_key_does_not_cancel():
    """What is taken off the keys is one number per structure and head; power: one per key changes the result."""
    kernel, (q, k, v) = kernel_of("posrf-orf"), tokens(scale=1.0)
    phi_q, phi_k = stable_features(*kernel(q, k), None)
    torch.testing.assert_close((phi_q @ phi_k.transpose(-1, -2)), estimate(kernel, q, k) * _ratio(kernel, q, k))
    wrong = phi_k / phi_k.amax(dim=-1, keepdim=True)
    out = kernelised_attention(kernel, q, k, v, None)
    weights = phi_q @ wrong.transpose(-1, -2)
    assert not torch.allclose(weights @ v / weights.sum(-1, keepdim=True), out, rtol=1e-2)


def _ratio(kernel: Kernel, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """exp(−max of a query) exp(−max of all keys of the head)."""
    a, b = kernel(q, k)
    return torch.exp(-a.exponent.amax(-1, keepdim=True) - b.exponent.amax((-1, -2), keepdim=True))


@pytest.mark.parametrize("name", ["posrf-iid", "oprf-mm", "saderf-fastfood", "relu", "lara"])
def test_redrawing_touches_what_is_drawn_and_not_what_is_learned(name):
    kernel = kernel_of(name)
    before = {key: value.clone() for key, value in kernel.state_dict().items()}
    redraw(kernel, generator(9))
    changed = {key for key, value in kernel.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == ({"weights.omega"} if name in ("posrf-iid", "oprf-mm") else set())
    if name == "saderf-fastfood":
        q, k, v = tokens()
        kernelised_attention(kernel, q, k, v, None).square().sum().backward()
        assert all(float(p.grad.abs().sum()) > 0 for p in kernel.parameters())
