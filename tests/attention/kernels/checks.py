"""Properties of every feature map, tokens to try them on, and Spectraformer's grid from its published formulas."""

import math

import torch
from scipy.stats import chi, kstest, norm

from molflt.attention.build import build_kernel
from molflt.attention.kernels import kernelised_attention
from molflt.attention.kernels.spectraformer import COMPONENT_FUNCTIONS, DRAWN_MATRICES, FastFood

WIDTH = 5


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(batch=2, heads=2, n=6, c=WIDTH, scale=0.25, seed=7):
    """Queries, keys and values; keys are off centre and their axes of unequal length, so that averages matter."""
    q, k, v = torch.randn(3, batch, heads, n, c, generator=generator(seed), dtype=torch.float64)
    stretch = torch.linspace(0.5, 1.5, c, dtype=torch.float64)
    return scale * q, scale * (k * stretch + 0.3), v


def estimate(kernel, q, k):
    """φ_Q(q_i)·φ_K(k_j), (batch, heads, n, n), with nothing taken off the exponents."""
    phi_q, phi_k = kernel(q, k)
    return phi_q.values() @ phi_k.values().transpose(-1, -2)


def attention(kernel, *x, mask=None):
    return kernelised_attention(kernel, *x, mask)


def same(a, b):
    return torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def padding_changes_nothing_and_has_no_gradient(kernel):
    x = tokens()
    n, rest = 6, 2 * torch.randn(2, 2, 3, WIDTH, generator=generator(5), dtype=torch.float64)
    mask = (torch.arange(n + 3) < n)[None, None, :, None].expand(2, -1, -1, -1)
    wide = [torch.cat([t, rest + i], dim=2).requires_grad_() for i, t in enumerate(x)]
    found, alone = attention(kernel, *wide, mask=mask)[:, :, :n], attention(kernel, *x)
    assert same(found, alone)
    found.square().sum().backward()
    assert not any(bool(t.grad[:, :, n:].any()) for t in wide)


def gradients_are_finite_and_reach_everything(kernel):
    inputs = [t.requires_grad_() for t in tokens()]
    parameters = [p for p in kernel.parameters() if p.requires_grad]
    for tensor in torch.autograd.grad(attention(kernel, *inputs).square().sum(), [*inputs, *parameters]):
        assert bool(torch.isfinite(tensor).all())
        assert float(tensor.abs().max()) > 1e-8


def single_precision_with_huge_queries_stays_finite(kernel):
    for scale in (100.0, -100.0):
        q, k, v = (t.float() for t in tokens(scale=1.0))
        inputs = [t.requires_grad_() for t in (scale * q, k, v)]
        out = attention(kernel, *inputs)
        gradients = torch.autograd.grad(out.square().sum(), [*inputs, *kernel.parameters()])
        assert all(bool(torch.isfinite(t).all()) for t in (out, *gradients))


def features_are_as_many_and_of_the_sign_it_says(kernel):
    for scale in (0.1, 3.0):
        phi_q, phi_k = (feature.values() for feature in kernel(*tokens(scale=scale)[:2]))
        assert phi_q.shape[-1] == phi_k.shape[-1] == kernel.n_features
        for phi in (phi_q, phi_k):
            assert bool((phi >= 0).all()) if kernel.positive else bool((phi < 0).any())


def check_kernel(kernel):
    """All of the above; the kernel is of width WIDTH and two heads. The dense formula says the rest."""
    kernel = kernel.double()
    padding_changes_nothing_and_has_no_gradient(kernel)
    gradients_are_finite_and_reach_everything(kernel)
    features_are_as_many_and_of_the_sign_it_says(kernel)
    single_precision_with_huge_queries_stays_finite(kernel.float())


def standard_errors_off(values, wanted):
    """Largest distance of the mean over the first axis from ``wanted``, in standard errors."""
    error = values.std(dim=0) / len(values) ** 0.5
    return float(((values.mean(dim=0) - wanted).abs() / error).max())


def draws(draw, count, m, c=WIDTH, seed=11):
    """(count, m, c): so many matrices, drawn one after another."""
    random = generator(seed)
    return torch.stack([draw(m, c, random) for _ in range(count)])


def estimates(component, omegas, q, k):
    """(count, batch, heads, n, n): the estimate with each of the (count, m, c) matrices."""
    count, m, _ = omegas.shape
    features = component(q, k, omegas.flatten(0, 1), None)
    phi_q, phi_k = (feature.values().unflatten(-1, (-1, count, m)) for feature in features)
    # Features are divided by the root of the number of all rows; each matrix has only m.
    return count * torch.einsum("bhiwdr,bhjwdr->dbhij", phi_q, phi_k)


def rows_are_gaussian(draw):
    """Mean, covariance, fourth moments and the law of the lengths of two rows over many draws."""
    count, c = 1500, 4
    matrices = draws(draw, count, 2 * c + 1, c, seed=1)
    error = 4.5 / math.sqrt(count)
    for row in (0, 2 * c):
        mine = matrices[:, row]
        assert float(mine.mean(dim=0).abs().max()) < error
        assert float((mine.T @ mine / count - torch.eye(c)).abs().max()) < math.sqrt(2) * error
        assert float(((mine**4).mean(dim=0) - 3).abs().max()) < math.sqrt(96) * error
        assert kstest(mine.norm(dim=1).numpy(), chi(c).cdf).pvalue > 1e-3
        assert kstest(mine[:, 0].numpy(), norm.cdf).pvalue > 1e-3


def softmax_kernel(q, k):
    return (q @ k.transpose(-1, -2)).exp()


GRID = [f"{component}-{matrix}" for component in COMPONENT_FUNCTIONS for matrix in (*DRAWN_MATRICES, "fastfood")]


def kernel_of(name, m=14, c=WIDTH, seed=0):
    return build_kernel(name, c, 2, m, 3, generator(seed)).double()


def published_a(square, c):
    """Spectraformer Eq. 35 as printed."""
    rho = (math.sqrt((2 * square + c) ** 2 + 8 * c * square) - 2 * square - c) / (4 * square)
    return (1 - 1 / rho) / 8


def pair_terms(component, omega, q, k):
    """(n, n, m): what row r adds to κ(q_i, k_j), for the (n, c) tokens of one head of one structure."""
    c = q.shape[1]
    if component == "trigrf":
        phase = torch.einsum("rc,ijc->ijr", omega, q[:, None] - k[None])
        squares = (q**2).sum(1)[:, None] + (k**2).sum(1)[None]
        return torch.exp(squares / 2)[..., None] * torch.cos(phase) / len(omega)
    if component == "saderf":
        psi = ((k**2).sum(0) / (q**2).sum(0)) ** 0.25
        q, k = psi * q, k / psi
    z = q[:, None] + k[None]
    a = 0.0 if component == "posrf" else published_a(float((z**2).sum(-1).mean()), c)
    squares = (q**2).sum(1)[:, None] + (k**2).sum(1)[None]
    exponent = 2 * a * (omega**2).sum(1) + math.sqrt(1 - 4 * a) * torch.einsum("rc,ijc->ijr", omega, z)
    return (1 - 4 * a) ** (c / 2) * torch.exp(exponent - squares[..., None] / 2) / len(omega)


def dense_attention(component, omega, q, k, v):
    """Σ_j κ(q_i, k_j) v_j / Σ_j κ(q_i, k_j) in O(n²) per head and structure."""
    out = torch.zeros_like(v)
    for b in range(len(q)):
        for h in range(q.shape[1]):
            weights = pair_terms(component, omega, q[b, h], k[b, h]).sum(-1)
            out[b, h] = weights @ v[b, h] / weights.sum(1, keepdim=True)
    return out


def fastfood(m, c, random):
    return FastFood(m, c, random)().detach().double()


LAWS = {**DRAWN_MATRICES, "fastfood": fastfood}
