"""Mistakes that are easy to make: each check passes for the code and fails for the mistake."""

import pytest
import torch

from molflt.attention.kernels.kernel import Features, kernelised_attention, normalised, stable_features
from molflt.attention.kernels.random_features import DrawnMatrix, RandomFeatureKernel
from molflt.literature.kernels import COMPONENT_FUNCTIONS
from molflt.literature.weight_matrices import iid
from tests.literature.kernels.grid import generator, kernel_of, tokens

COMPONENTS = tuple(COMPONENT_FUNCTIONS)


def error_of_many_features(component, change=lambda x, exponent: exponent) -> float:
    """Error of attention with 100,000 features against softmax, the exponents of features changed."""
    q, k, v = tokens(n=8, scale=0.3)

    def features(query, key, omega, mask):
        found = component(query, key, omega, mask)
        return tuple(Features(change(x, f.exponent), f.factor) for f, x in zip(found, (query, key), strict=True))

    kernel = RandomFeatureKernel(features, DrawnMatrix(iid, 100_000, 5, generator(1))).double()
    with torch.no_grad():
        found = kernelised_attention(kernel, q, k, v, None)
        return float((found - torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v).square().mean().sqrt())


@pytest.mark.parametrize("component", COMPONENTS)
def test_many_features_come_near_softmax_attention(component):
    """And neither the Gaussian kernel, nor exp(|x|) for exp(|x|²/2), nor a maximum off every key does."""
    function = COMPONENT_FUNCTIONS[component]
    right = error_of_many_features(function)

    def gaussian(x, exponent):
        return exponent - 0.5 * (x * x).sum(-1, keepdim=True)

    def length(x, exponent):
        square = (x * x).sum(-1, keepdim=True)
        return exponent + (1 if component == "trigrf" else -1) * (square.sqrt() - square / 2)

    def maximum(x, exponent):
        return exponent - exponent.amax(dim=-1, keepdim=True)

    assert right < 0.004
    for wrong in (gaussian, length, maximum):
        assert error_of_many_features(function, wrong) > 5 * right


def cancels(phi_q: torch.Tensor, phi_k: torch.Tensor, query: Features, key: Features) -> bool:
    """Whether every row of φ_Q φ_Kᵀ is that of the features themselves but for a factor."""
    found, wanted = phi_q @ phi_k.transpose(-1, -2), query.values() @ key.values().transpose(-1, -2)
    ratio = found / wanted
    return torch.allclose(ratio, ratio[..., :1], rtol=1e-9, atol=0)


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_taken_off_the_exponents_cancels(component):
    query, key = kernel_of(component, "orf")(*tokens(scale=0.7)[:2])
    phi_q, phi_k = stable_features(query, key, None)
    assert cancels(phi_q, phi_k, query, key)
    # Power: a maximum per key, and one per feature that the queries are not told of, do not.
    phi_q = query.values(query.exponent.amax(dim=-1, keepdim=True))
    per_key = key.values(key.exponent.amax(dim=-1, keepdim=True))
    assert not cancels(phi_q, per_key, query, key)
    if component != "trigrf":
        assert not cancels(phi_q, key.values(key.exponent.amax(dim=-2, keepdim=True)), query, key)


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_is_taken_off_the_exponents_is_large_enough(component):
    """No feature of a query or of a key that exists exceeds its factor, and padding is zero, however long."""
    q, k, _ = tokens(scale=40.0)
    mask = torch.ones(2, 1, 6, 1, dtype=torch.bool)
    mask[1, 0, 4:] = False
    k = torch.where(mask, k, 1e3 * k)
    query, key = kernel_of(component, "iid")(q, k, mask)
    phi_q, phi_k = stable_features(query, key, mask)
    assert float(phi_q.abs().max()) <= 1.0
    assert float(phi_k.abs().max()) <= 1.0
    assert not bool(phi_k[1, :, 4:].any())
    assert bool(phi_k[1, :, :4].any())


def test_a_structure_without_tokens_is_zero():
    kernel, (q, k, v) = kernel_of("oprf", "iid"), tokens()
    mask = torch.ones(2, 1, 6, 1, dtype=torch.bool)
    mask[1] = False
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out = kernelised_attention(kernel, *inputs, mask)
    assert not bool(out[1].any())
    out.sum().backward()
    assert all(bool(torch.isfinite(t.grad).all()) for t in inputs)


def test_a_normaliser_of_nothing_is_zero_with_a_finite_gradient():
    numerator = torch.tensor([[1.0], [2.0], [0.0]], requires_grad=True)
    normaliser = torch.tensor([[4.0], [1e-30], [0.0]], requires_grad=True)
    out = normalised(numerator, normaliser)
    assert out.flatten().tolist() == [0.25, 0.0, 0.0]
    out.sum().backward()
    assert bool(torch.isfinite(numerator.grad).all())
    assert bool(torch.isfinite(normaliser.grad).all())


def test_a_bounded_normaliser_is_raised():
    found = normalised(torch.ones(3, 1), torch.tensor([[0.5], [0.001], [-3.0]]), torch.ones(3, 1))
    torch.testing.assert_close(found, torch.tensor([[2.0], [100.0], [100.0]]))
