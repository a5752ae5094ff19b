"""The Gaussian distance basis against its formula, and its derivatives."""

import pytest
import torch

from molflt.attention.near import GaussianDistanceBasis


def basis(n=5, pair_types=True):
    generator = torch.Generator().manual_seed(0)
    radial = GaussianDistanceBasis(n, 4.0, pair_types).double()
    with torch.no_grad():
        for parameter in radial.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return radial


@pytest.mark.parametrize("pair_types", [True, False])
def test_formula(pair_types):
    """φ_k = exp(−((γ d/R + β − μ_k)/w_k)²/2), Eq. 2 of arXiv 2203.04810 without its constant factor.

    Without pair types γ = 1 and β = 0, whatever the elements.
    """
    radial = basis(pair_types=pair_types)
    distances = torch.linspace(0.0, 4.0, 7, dtype=torch.float64)
    receiver, sender = torch.tensor([1, 6, 8, 78, 1, 1, 118]), torch.tensor([8, 6, 1, 1, 78, 1, 118])
    pair = receiver * 119 + sender
    x = distances / 4.0
    if pair_types:
        x = radial.gamma[pair] * x + radial.beta[pair]
    expected = torch.exp(-(((x[:, None] - radial.centres) / radial.log_widths.exp()) ** 2) / 2)
    torch.testing.assert_close(radial(distances, receiver, sender), expected, rtol=1e-12, atol=1e-26)
    small = receiver.to(torch.uint8), sender.to(torch.uint8)
    torch.testing.assert_close(radial(distances, *small), expected, rtol=1e-12, atol=1e-26)


def test_derivatives_of_any_order():
    radial = basis()
    z = torch.tensor([1, 6, 8])
    distances = torch.tensor([0.5, 1.7, 3.9], dtype=torch.float64, requires_grad=True)

    def values(d, centres, log_widths):
        parameters = {"centres": centres, "log_widths": log_widths}
        return torch.func.functional_call(radial, parameters, (d, z, z))

    inputs = (distances, radial.centres, radial.log_widths)
    assert torch.autograd.gradcheck(values, inputs)
    assert torch.autograd.gradgradcheck(values, inputs)


def test_tails_are_no_denormal_numbers():
    radial = GaussianDistanceBasis(64, 4.0)
    values = radial(torch.zeros(1), torch.tensor([1]), torch.tensor([1]))
    assert float(values.min()) >= torch.finfo(torch.float32).tiny
