"""The local RPE against its formula, summed over images, and its envelope, which ends smoothly at the cutoff."""

import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list

from molflt.attention.near import GaussianDistanceBasis, LocalRPE, local_neighbourhood
from molflt.attention.smooth import envelope, taper
from molflt.vocabulary import MAX_ATOMIC_NUMBER
from tests.attention.structures import STRUCTURES, geometry_of

CUTOFF = 5.0
N_TYPES = MAX_ATOMIC_NUMBER + 1


def learnt(pair_types):
    """Every parameter away from its start, the affine of every pair of types another."""
    generator = torch.Generator().manual_seed(0)
    radial, rpe = GaussianDistanceBasis(8, CUTOFF, pair_types).double(), LocalRPE(8, 2).double()
    with torch.no_grad():
        # nn.Linear starts at random.
        rpe.bias.weight.fill_(0.2)
        rpe.bias.bias.fill_(-0.5)
        for parameter in (*radial.parameters(), *rpe.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return radial, rpe


def affine_gaussians(radial, distance, receiver, sender):
    """φ_k = exp(−((γ d/R + β − μ_k)/w_k)²/2) of one pair in numpy, Eq. 2 of arXiv 2203.04810 without its factor."""
    p = {name: x.detach().numpy() for name, x in radial.named_parameters()}
    pair, x = receiver * N_TYPES + sender, distance / CUTOFF
    if radial.pair_types:
        x = p["gamma"][pair] * x + p["beta"][pair]
    return np.exp(-(((x - p["centres"]) / np.exp(p["log_widths"])) ** 2) / 2)


def test_tails_are_no_denormal_numbers():
    values = GaussianDistanceBasis(64, 4.0)(torch.zeros(1), torch.tensor([1]), torch.tensor([1]))
    assert float(values.detach().min()) >= torch.finfo(torch.float32).tiny


def derivatives(function, at, order=2):
    """Value, slope, curvature, ... by automatic differentiation."""
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    value = function(x)
    found = [value.item()]
    for _ in range(order):
        (value,) = torch.autograd.grad(value, x, create_graph=True) if value.requires_grad else (0 * x,)
        found.append(value.item())
    return found


@pytest.mark.parametrize(
    ("function", "edge"),
    [(lambda d: envelope(d, CUTOFF), CUTOFF), *((lambda d: taper(d, 1.0, 2.0), edge) for edge in (1.0, 2.0))],
)
def test_envelope_and_taper_have_two_continuous_derivatives(function, edge):
    inside, outside = (derivatives(function, edge + delta) for delta in (-1e-9, 1e-9))
    assert inside == pytest.approx(outside, abs=1e-6)
    assert 0.1 < derivatives(function, 0.7 * CUTOFF if edge == CUTOFF else 1.5)[0] < 0.9


def test_envelope_is_a_polynomial_that_is_zero_from_the_cutoff_on():
    x = torch.linspace(0, 1, 50, dtype=torch.float64)
    expected = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
    torch.testing.assert_close(envelope(CUTOFF * x, CUTOFF), expected, rtol=0, atol=1e-14)
    assert bool((envelope(CUTOFF * x, CUTOFF).diff() <= 0).all())
    for dtype in (torch.float32, torch.float64):
        for cutoff in (0.3, 1.0, 4.7, 6.0, 100.0):
            beyond = cutoff * torch.linspace(1, 7, 100, dtype=dtype)
            beyond[0] = cutoff
            assert not bool(envelope(beyond, cutoff).any())


def oracle(atoms, radial, rpe):
    """Σ over ASE's neighbours of exp(b)·env, one pair at a time: (n, n, n_heads)."""
    matrix, bias = rpe.bias.weight.detach().numpy(), rpe.bias.bias.detach().numpy()
    z, n = atoms.numbers, len(atoms)
    found = np.zeros((n, n, len(bias)))
    for i, j, d in zip(*neighbor_list("ijd", atoms, CUTOFF), strict=True):
        x = d / CUTOFF
        env = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
        found[i, j] += np.exp(matrix @ affine_gaussians(radial, d, z[i], z[j]) + bias) * env
    for i in range(n):
        found[i, i] += np.exp(matrix @ affine_gaussians(radial, 0.0, z[i], z[i]) + bias)
    return found


@pytest.mark.parametrize(("name", "pair_types"), [*((name, True) for name in STRUCTURES), ("slab", False)])
def test_sum_over_images_is_that_over_the_neighbour_list_of_ase(name, pair_types):
    """The model's own list reaches to 6 Å: what lies between the cutoffs must not count."""
    atoms = STRUCTURES[name]()
    radial, rpe = learnt(pair_types)
    geometry = geometry_of([atoms], cutoff=6.0)
    with torch.no_grad():
        found = rpe(geometry, local_neighbourhood(geometry, radial, CUTOFF))[:, 0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(found, oracle(atoms, radial, rpe), rtol=1e-10, atol=1e-12)
