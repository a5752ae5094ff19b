"""The local RPE: as smooth at the cutoff as it says, aware of types, and summed over images."""

import math

import numpy as np
import pytest
import torch
from ase.neighborlist import neighbor_list

from molflt.attention import local_rpe
from molflt.attention.geometry import build_geometry
from molflt.attention.near import GaussianDistanceBasis, LocalRPE, local_neighbourhood
from molflt.attention.smooth import envelope
from molflt.vocabulary import MAX_ATOMIC_NUMBER
from tests.attention.structures import STRUCTURES, geometry_of

CUTOFF = 5.0
N_TYPES = MAX_ATOMIC_NUMBER + 1


def learnt(seed: int = 0) -> tuple[GaussianDistanceBasis, LocalRPE]:
    """Every parameter away from its start, the affine of every pair of types another."""
    generator = torch.Generator().manual_seed(seed)
    radial, rpe = GaussianDistanceBasis(8, CUTOFF, pair_types=True).double(), LocalRPE(8, 2).double()
    with torch.no_grad():
        # nn.Linear starts at random
        rpe.bias.weight.fill_(0.2)
        rpe.bias.bias.fill_(-0.5)
        for parameter in (*radial.parameters(), *rpe.parameters()):
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return radial, rpe


def pair_weight(distance: torch.Tensor, z=(6, 8), seed: int = 0) -> torch.Tensor:
    """exp(b)·env of two atoms at a distance, as the model forms it: () Å → (2, 2), [receiver, sender], first head."""
    radial, rpe = learnt(seed)
    direction = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
    positions = torch.stack([torch.zeros_like(direction), distance * direction])
    geometry = build_geometry(
        positions,
        torch.tensor(z),
        torch.zeros(2, dtype=torch.long),
        torch.zeros(1, 3, 3),
        torch.zeros(1, 3, dtype=torch.bool),
        torch.tensor([[0, 1], [1, 0]]),
        torch.zeros(2, 3),
        torch.float64,
    )
    return rpe(geometry, local_neighbourhood(geometry, radial, CUTOFF))[0, 0]


def derivatives(distance: float) -> list[float]:
    """Value, slope and curvature by automatic differentiation, through the positions."""
    x = torch.tensor(distance, dtype=torch.float64, requires_grad=True)
    value = pair_weight(x)[0, 1]
    found = [value.item()]
    for _ in range(2):
        (value,) = torch.autograd.grad(value, x, create_graph=True) if value.requires_grad else (0 * x,)
        found.append(value.item())
    return found


def steps_at_cutoff(delta: float) -> list[float]:
    """How much value, slope and curvature change from one side of the cutoff to the other."""
    return [abs(a - b) for a, b in zip(derivatives(CUTOFF - delta), derivatives(CUTOFF + delta), strict=True)]


@pytest.mark.parametrize("distance", [1.2, 3.0, 4.6, 4.95, 5.2])
def test_slope_and_curvature_are_those_of_finite_differences(distance):
    step = 1e-3
    with torch.no_grad():
        points = distance + step * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        low, middle, high = (pair_weight(x)[0, 1].item() for x in points)
    value, slope, curvature = derivatives(distance)
    assert value == pytest.approx(middle, abs=1e-14)
    assert slope == pytest.approx((high - low) / (2 * step), abs=2e-5)
    assert curvature == pytest.approx((high + low - 2 * middle) / step**2, abs=2e-5)


def test_value_slope_and_curvature_end_at_zero_at_the_cutoff():
    """δ inside, they are of order δ³, δ² and δ; outside there is nothing."""
    assert derivatives(CUTOFF + 1e-6) == [0.0, 0.0, 0.0]
    value, slope, curvature = steps_at_cutoff(1e-6)
    assert value < 1e-14
    assert slope < 1e-10
    assert curvature < 1e-4
    # the first derivative that jumps is the third: a tenfold δ has a tenfold curvature
    assert steps_at_cutoff(1e-5)[2] == pytest.approx(10 * curvature, rel=1e-3)
    # and well inside there is something to end
    assert derivatives(0.6 * CUTOFF)[0] > 0.1


@pytest.mark.parametrize(
    ("other", "first_jump"),
    [
        (lambda d, cutoff: torch.where(d < cutoff, torch.ones_like(d), torch.zeros_like(d)), 0),
        (lambda d, cutoff: torch.where(d < cutoff, 1 - d / cutoff, torch.zeros_like(d)), 1),
        (lambda d, cutoff: torch.where(d < cutoff, (torch.cos(math.pi * d / cutoff) + 1) / 2, 0 * d), 2),
    ],
    ids=["hard", "linear", "cosine"],
)
def test_other_cutoffs_fail_where_theory_says(monkeypatch, other, first_jump):
    """The hard cutoff jumps itself, the linear one in its slope, the plain cosine in its curvature."""
    monkeypatch.setattr(local_rpe, "envelope", other)
    steps = steps_at_cutoff(1e-6)
    assert steps[first_jump] > 1e-2
    assert all(step < 1e-5 for step in steps[:first_jump])


def test_types_of_a_pair_matter_and_their_order_is_that_of_the_basis():
    """The affine belongs to (receiver, sender): exchanging the two atoms transposes the weights."""
    distance = torch.tensor(2.3, dtype=torch.float64)
    with torch.no_grad():
        weights = {z: pair_weight(distance, z) for z in ((6, 8), (8, 6), (6, 6), (6, 7))}
    torch.testing.assert_close(weights[6, 8], weights[8, 6].flip(0, 1), rtol=1e-14, atol=0)
    torch.testing.assert_close(weights[6, 6], weights[6, 6].T, rtol=1e-14, atol=0)
    values = [weights[6, 8][0, 1], weights[6, 8][1, 0], weights[6, 6][0, 1], weights[6, 7][0, 1]]
    gaps = [abs(a - b).item() for i, a in enumerate(values) for b in values[:i]]
    assert min(gaps) > 1e-4
    # what an atom has with itself depends on its own type only
    assert weights[6, 8][0, 0] == weights[6, 7][0, 0] == weights[6, 6][1, 1]
    assert weights[6, 8][0, 0] != weights[6, 8][1, 1]


def test_types_do_not_matter_before_anything_is_learnt():
    radial = GaussianDistanceBasis(8, CUTOFF, pair_types=True)
    d = torch.tensor([1.0, 1.0, 1.0])
    found = radial(d, torch.tensor([1, 78, 6]), torch.tensor([1, 8, 6]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def affine_gaussians(radial: GaussianDistanceBasis, distance: float, receiver: int, sender: int) -> np.ndarray:
    """φ of one pair in numpy, from the definition."""
    p = {name: x.detach().numpy() for name, x in radial.named_parameters()}
    pair = receiver * N_TYPES + sender
    x = p["gamma"][pair] * distance / CUTOFF + p["beta"][pair]
    return np.exp(-(((x - p["centres"]) / np.exp(p["log_widths"])) ** 2) / 2)


def oracle(atoms, cutoff: float, only_nearest: bool = False) -> np.ndarray:
    """Σ over ASE's neighbours of exp(b)·env, one pair at a time: (n, n, n_heads)."""
    radial, rpe = learnt()
    weight, bias = rpe.bias.weight.detach().numpy(), rpe.bias.bias.detach().numpy()
    z, n = atoms.numbers, len(atoms)
    found = np.zeros((n, n, len(bias)))
    nearest = {}
    for i, j, d in zip(*neighbor_list("ijd", atoms, cutoff), strict=True):
        x = d / cutoff
        env = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
        term = np.exp(weight @ affine_gaussians(radial, d, z[i], z[j]) + bias) * env
        if only_nearest and nearest.get((i, j), np.inf) <= d:
            continue
        found[i, j] = term if only_nearest else found[i, j] + term
        nearest[i, j] = d
    for i in range(n):
        found[i, i] += np.exp(weight @ affine_gaussians(radial, 0.0, z[i], z[i]) + bias)
    return found


@pytest.mark.parametrize("name", STRUCTURES)
def test_sum_over_images_is_that_over_the_neighbour_list_of_ase(name):
    """The model's own list reaches to 6 Å: what lies between the cutoffs must not count."""
    atoms = STRUCTURES[name]()
    radial, rpe = learnt()
    geometry = geometry_of([atoms], cutoff=6.0)
    with torch.no_grad():
        found = rpe(geometry, local_neighbourhood(geometry, radial, CUTOFF))[:, 0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(found, oracle(atoms, CUTOFF), rtol=1e-10, atol=1e-12)
    if name in ("triclinic", "tiny_cell", "wire", "slab"):
        # power: with one image of each pair, as in a minimum-image convention, the sums are others
        assert np.abs(found - oracle(atoms, CUTOFF, only_nearest=True)).max() > 1e-2


def test_envelope_is_the_polynomial_of_the_oracle():
    x = torch.linspace(0, 1, 50, dtype=torch.float64)
    expected = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
    torch.testing.assert_close(envelope(CUTOFF * x, CUTOFF), expected, rtol=0, atol=1e-14)


def test_batch_mates_do_not_enter_a_structures_sums():
    radial, rpe = learnt()
    names = ("triclinic", "tiny_cell", "molecule")
    together = geometry_of([STRUCTURES[name]() for name in names])
    with torch.no_grad():
        found = rpe(together, local_neighbourhood(together, radial, CUTOFF))
        for b, name in enumerate(names):
            alone = geometry_of([STRUCTURES[name]()])
            n = alone.sizes[0]
            expected = rpe(alone, local_neighbourhood(alone, radial, CUTOFF))[:, 0]
            torch.testing.assert_close(found[:, b, :n, :n], expected, rtol=1e-12, atol=1e-14)
            assert not found[:, b, n:].any()
            assert not found[:, b, :, n:].any()
