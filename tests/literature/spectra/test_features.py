"""Random features: a product that is the sum of cosines, in both precisions, differentiable."""

import math

import pytest
import torch

from molflt.errors import InputError
from molflt.literature.spectra.spectrum import features, wave_features
from tests.literature.spectra.families import FAMILIES


def positions(n: int, dim: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_product_of_features_is_the_sum_of_cosines(name, dim):
    spectrum, x, y = FAMILIES[name](dim), positions(7, dim, 1), positions(9, dim, 2)
    with torch.no_grad():
        xi = spectrum.sample(48, torch.Generator().manual_seed(0))
        a = spectrum.coefficients(xi)
        query, key = features(spectrum, x, y, xi)
        assert (query.shape, key.shape) == ((7, 96), (9, 96))
        expected = torch.cos(2 * math.pi * (x[:, None, :] - y[None, :, :]) @ xi.T) @ a
        torch.testing.assert_close(query @ key.T, expected, rtol=0, atol=1e-12)
        shift = torch.tensor([5.3, -7.1, 2.9], dtype=torch.float64)[:dim]
        shifted_query, shifted_key = features(spectrum, x + shift, y + shift, xi)
        assert (shifted_query @ shifted_key.T - query @ key.T).abs().max().item() < 1e-12
        # power: the features themselves do change, and only one side shifted changes the product
        assert (shifted_query - query).abs().max().item() > 1e-2
        assert (shifted_query @ key.T - query @ key.T).abs().max().item() > 1e-2


def test_sign_stands_on_the_key_side_only():
    x = positions(4, 3, 3)
    xi = positions(5, 3, 4)
    a = torch.tensor([0.3, -0.7, 0.0, 1.1, -0.2], dtype=torch.float64)
    query, key = wave_features(x, x, xi, a)
    plain_query, plain_key = wave_features(x, x, xi, a.abs())
    assert torch.equal(query, plain_query)
    assert torch.equal(key, plain_key * a.sign().repeat(2))
    # with the sign lost, or on both sides, it is another function
    delta = x[:, None, :] - x[None, :, :]
    expected = torch.cos(2 * math.pi * delta @ xi.T) @ a
    torch.testing.assert_close(query @ key.T, expected, rtol=0, atol=1e-13)
    assert (plain_query @ plain_key.T - expected).abs().max().item() > 0.1


def test_a_coefficient_of_zero_has_a_finite_slope():
    xi, x = positions(3, 2, 4), positions(4, 2, 5)
    for dtype in (torch.float32, torch.float64):
        a = torch.tensor([0.0, 0.5, -0.5], dtype=dtype, requires_grad=True)
        query, key = wave_features(x, x, xi, a)
        (query @ key.T).sum().backward()
        assert bool(a.grad.isfinite().all())


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_single_precision_follows_double(name, dim):
    """The same draw in both; a frequency far out in a heavy tail has the digits it needs for its phase."""
    double, single = FAMILIES[name](dim), FAMILIES[name](dim).float()
    x = positions(6, dim, 6)
    with torch.no_grad():
        xi = single.sample(512, torch.Generator().manual_seed(0))
        assert xi.dtype == torch.float32
        torch.testing.assert_close(
            xi.double(), double.sample(512, torch.Generator().manual_seed(0)), rtol=3e-5, atol=1e-7
        )
        products = [
            q @ k.T
            for q, k in (
                features(s, x, x, xi.to(d))
                for s, d in zip((single, double), (torch.float32, torch.float64), strict=True)
            )
        ]
    assert products[0].dtype == torch.float32
    torch.testing.assert_close(products[0].double(), products[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_estimate_is_differentiable_in_every_parameter(name):
    """Through draw, weight and features at once, against finite differences."""
    spectrum, x = FAMILIES[name](2), positions(3, 2, 7)
    names, values = zip(*spectrum.named_parameters(), strict=True)

    def estimate(*parameters):
        class Estimate(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.spectrum = spectrum

            def forward(self):
                xi = spectrum.sample(16, torch.Generator().manual_seed(1))
                query, key = features(spectrum, x, x, xi)
                return query @ key.T, spectrum.value(x)

        replaced = {f"spectrum.{n}": p for n, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Estimate(), replaced, ())

    inputs = [v.detach().clone().requires_grad_() for v in values]
    assert torch.autograd.gradcheck(estimate, inputs, atol=1e-6, rtol=1e-4)
    # and nothing is there that cannot learn
    for output in zip(*[torch.autograd.grad(sum(o.square().sum() for o in estimate(*inputs)), inputs)], strict=True):
        assert all(bool((g != 0).any()) for g in output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_finite_where_norms_and_sines_vanish(name, dtype):
    spectrum = FAMILIES[name](3).to(dtype)
    far = [[0.0, 0.0, 0.0], [1e-6, 0.0, 0.0], [1.3, 0.9, 1.1], [2.6, 1.8, 2.2], [40.0, -30.0, 1e4]]
    point = torch.tensor(far, dtype=dtype, requires_grad=True)
    for function in (spectrum.value, spectrum.transform):
        (slope,) = torch.autograd.grad(function(point).sum(), point, create_graph=True)
        assert bool(slope.isfinite().all())
        assert slope[0].abs().max().item() < 1e-7
        point.grad = None
        function(point).sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in spectrum.parameters() if p.grad is not None)


def test_features_refuse_positions_of_another_dimension():
    spectrum = FAMILIES["gaussian"](1)
    xi = spectrum.sample(4, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="build the spectrum with dimension 3"):
        features(spectrum, positions(2, 3, 0), positions(2, 3, 0), xi)
