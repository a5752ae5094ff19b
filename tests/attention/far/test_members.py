"""The Gaussians of f: their transforms, widths and amplitudes."""

import numpy as np
import pytest
import torch
from scipy.special import hyp0f1

from molflt.attention.far.members import GaussianRPE


@pytest.mark.parametrize("spectrum", ["gaussians", "both"])
def test_widths_start_as_asked_and_stay_bounded(spectrum):
    rpe = GaussianRPE(8, 2.0, 12.0, spectrum=spectrum)
    if spectrum == "gaussians":
        np.testing.assert_allclose(rpe.widths.detach().numpy(), np.geomspace(2, 12, 8), rtol=1e-5)
    for most in (60.0, 1e4):
        with torch.no_grad():
            rpe.raw_widths.copy_(torch.tensor([-most, most] * 4))
        assert float(rpe.widths.detach().min()) >= rpe.sigma_low * (1 - 1e-6) > 0
        assert float(rpe.widths.detach().max()) <= rpe.sigma_high * (1 + 1e-6)


def test_amplitude_of_an_isolated_structure_counts_the_atoms_there_are():
    """One over them all for a wide Gaussian, one over those within reach for a narrow one."""
    rpe = GaussianRPE(6, 0.5, 200.0, n_atoms=8.0)
    inverse = 1 / rpe().amplitudes.detach()
    assert float(inverse[-1]) == pytest.approx(8, rel=1e-3)
    unbounded = 1 / GaussianRPE(6, 0.5, 200.0)().amplitudes.detach()
    assert float(inverse[0]) == pytest.approx(float(unbounded[0]), rel=1e-2)
    assert bool((inverse <= unbounded).all())
    assert bool((inverse.diff() > 0).all())
    assert float(GaussianRPE(2, 0.5, 200.0, n_atoms=1.0)().amplitudes.min()) == 1.0
    assert rpe().some(torch.tensor([5])).amplitudes == rpe().amplitudes[5]


class Sinc(torch.autograd.Function):
    """sin(z)/z of z² = x as 0F1(3/2, −x/4), whose derivatives are 0F1 again."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.save_for_backward(x)
        ctx.b = b
        return torch.from_numpy(hyp0f1(b, -x.numpy() / 4))

    @staticmethod
    def backward(ctx, gradient):
        return -gradient / (4 * ctx.b) * Sinc.apply(ctx.saved_tensors[0], ctx.b + 1), None


def formula(basis, squared):
    shape = torch.exp(-squared / (2 * basis.widths[:, None] ** 2)) * basis.amplitudes[:, None]
    if basis.turned is None:
        return shape
    return shape * Sinc.apply((basis.turned / basis.widths)[:, None] ** 2 * squared, 1.5)


@pytest.mark.parametrize("spectrum", ["gaussians", "sampled", "both"])
def test_members_on_pairs_are_those_of_the_formula_with_their_derivatives(spectrum, monkeypatch):
    monkeypatch.setattr("molflt.attention.far.pairs._VALUES_AT_ONCE", 70)
    rpe = GaussianRPE(6, 1.0, 6.0, None, spectrum).double()
    squared = torch.cat([torch.zeros(1), torch.logspace(-9, 2.5, 40)]).double().requires_grad_()
    weights = torch.randn(6, 41, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    wanted = [squared, rpe.raw_widths, weights]
    found = []
    for values in (formula(rpe(), squared), rpe().on_pairs(squared)):
        fast = torch.autograd.grad((values * weights).sum(), wanted, retain_graph=True)
        slopes = torch.autograd.grad((values * weights).sum(), wanted, create_graph=True)
        again = torch.autograd.grad(slopes[0].square().sum(), wanted)
        found.append([values.detach(), *fast, *slopes, *again])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)
    # Power: every one of them is there to be missed.
    assert all(float(value.detach().abs().max()) > 1e-3 for value in found[0])


def test_the_derivatives_of_parameters_cannot_be_differentiated_silently():
    rpe = GaussianRPE(4, 1.0, 6.0)
    (slope,) = torch.autograd.grad(rpe().on_pairs(torch.ones(3)).sum(), rpe.raw_widths, create_graph=True)
    with pytest.raises(AssertionError, match="first derivative only"):
        slope.sum().backward()
