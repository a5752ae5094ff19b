"""Two contraction orders, one answer; and the choice between them."""

import numpy as np
import pytest
import torch
from ase import Atoms

from molflt.attention.build import build_attention
from molflt.attention.config import AttentionConfig
from molflt.attention.far.choice import AutomaticMethod
from molflt.attention.far.method import PositionFeatures
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from molflt.errors import InputError
from tests.attention.structures import STRUCTURES, geometry_of

DIM, HEADS, RBF, CUTOFF = 12, 3, 7, 4.0
SMALL = {"n_basis": 3, "sigma_min": 1.5, "sigma_max": 4.0, "n_features": 10, "n_frequencies": 6}
ISOLATED = ["molecule", "benzene", "linear", "atom"]
PERIODIC = ["slab", "slab_open", "wire", "triclinic", "tiny_cell"]
METHODS = {
    "lattice": ({"frequencies": "lattice"}, PERIODIC + ISOLATED),
    "mesh": ({"frequencies": "mesh", "tolerance": 5e-3}, ["slab_open", "triclinic", "molecule"]),
    "quadrature": ({"frequencies": "quadrature"}, ISOLATED),
    "quadrature budget": ({"frequencies": "quadrature", "l_max": 3}, ISOLATED),
    "random": ({"frequencies": "sampled", "directions": "random"}, ISOLATED),
    "averaged budget": ({"frequencies": "sampled", "l_max": 3}, ISOLATED),
    "free budget": ({"frequencies": "sampled", "l_max": 3, "spectrum": "free"}, ISOLATED),
    "none": ({"far_field": False}, PERIODIC + ISOLATED),
}


def water(n: int, seed: int = 0) -> Atoms:
    """n molecules at the density of water, isolated."""
    random = np.random.default_rng(seed)
    side = (n / 0.033) ** (1 / 3)
    centres = random.uniform(0, side, size=(n, 3))
    return Atoms("OHH" * n, np.repeat(centres, 3, axis=0) + random.normal(0, 0.6, size=(3 * n, 3)))


class Layer:
    """One layer of attention with generic weights, in any order."""

    def __init__(self, options: dict, dtype=torch.float64, **sizes) -> None:
        torch.manual_seed(0)
        config = AttentionConfig(**{**SMALL, **options})
        self.shared, layers = build_attention(config, DIM, HEADS, 1, 1, RBF, 0.0, seed=3)
        self.layer, self.radial, self.dtype = layers[0], GaussianDistanceBasis(RBF, CUTOFF), dtype
        for module in (self.shared, self.layer, self.radial):
            for parameter in module.parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
            module.to(dtype)

    def context(self, geometry):
        return self.shared(geometry, local_neighbourhood(geometry, self.radial, CUTOFF))

    def __call__(self, atoms: list[Atoms], order: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Output and gradients with respect to positions and the parameters of layer and shared part."""
        self.shared.order = order
        geometry = geometry_of(atoms, CUTOFF, self.dtype)
        geometry.positions = geometry.positions.detach().requires_grad_()
        x = torch.randn(geometry.n_atoms, DIM, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        out = self.layer(x, geometry, self.layer.prepare(geometry, self.context(geometry)))
        parameters = [*self.layer.parameters(), *self.shared.parameters()]
        weights = torch.linspace(-1, 1, out.numel(), dtype=self.dtype).view_as(out)
        found = torch.autograd.grad((out * weights).sum(), [geometry.positions, *parameters], allow_unused=True)
        return out.detach(), [g for g in found if g is not None]


@pytest.mark.parametrize("far_dim", [None, 6, 12])
@pytest.mark.parametrize("far_rank", [0, 1, "m"])
@pytest.mark.parametrize("method", list(METHODS))
def test_both_orders_agree(method, far_rank, far_dim):
    options, names = METHODS[method]
    atoms = [STRUCTURES[name]() for name in names]
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        layer = Layer({**options, "far_rank": far_rank, "far_dim": far_dim}, dtype)
        (expected, slopes), (found, other_slopes) = layer(atoms, "quadratic"), layer(atoms, "linear")
        assert float((found - expected).abs().max()) < bound * float(expected.abs().max())
        if dtype == torch.float64:
            assert len(slopes) == len(other_slopes)
            for a, b in zip(slopes, other_slopes, strict=True):
                assert float((a - b).abs().max()) < 1e-8 * max(1.0, float(a.abs().max()))


def test_a_feature_dropped_shows():
    """Power: the agreement is not that of two zeros."""
    layer = Layer({"frequencies": "sampled", "l_max": 2})
    atoms = [STRUCTURES["molecule"]()]
    expected, _ = layer(atoms, "quadratic")
    complete = PositionFeatures.__call__

    def incomplete(self, weights, values):
        return complete(PositionFeatures(self.features[:, 1:], self.coefficients[1:]), weights, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PositionFeatures, "__call__", incomplete)
        found, _ = layer(atoms, "linear")
    assert float((found - expected).abs().max()) > 1e-3 * float(expected.abs().max())


def test_order_is_chosen_per_structure_and_batch_mates_change_nothing():
    """An atom stays on pairs, a large cluster does not, together as alone; the batch is split and put back."""
    layer = Layer({"frequencies": "sampled", "l_max": 2})
    atoms = [STRUCTURES["atom"](), water(60), STRUCTURES["atom"](), water(50, seed=1)]
    geometry = geometry_of(atoms, CUTOFF)
    context = layer.context(geometry)
    assert [c.order for c in context.contractions] == ["quadratic", "linear", "quadratic", "linear"]
    assert [part.quadratic for part in context.parts] == [True, False]
    x = torch.randn(geometry.n_atoms, DIM, dtype=torch.float64)
    together = layer.layer(x, geometry, layer.layer.prepare(geometry, context)).split(geometry.sizes)
    for one, expected, inputs in zip(atoms, together, x.split(geometry.sizes), strict=True):
        alone = geometry_of([one], CUTOFF)
        found = layer.layer(inputs, alone, layer.layer.prepare(alone, layer.context(alone)))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("method", ["lattice", "quadrature", "averaged budget", "none"])
def test_the_choice_is_the_cheapest(method):
    options, names = METHODS[method]
    layer = Layer(options)
    for name in names:
        geometry = geometry_of([STRUCTURES[name]()], CUTOFF)
        counted = {}
        for order in ("auto", "quadratic", "linear"):
            layer.shared.order = order
            counted[order] = layer.context(geometry).contractions[0]
        assert counted["auto"].multiply_adds == min(counted[o].multiply_adds for o in ("quadratic", "linear"))
        assert str(counted["linear"]).endswith(", linear")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"frequencies": "exact"}, "molecule"),
        ({"frequencies": "sampled"}, "molecule"),
        ({"frequencies": "sampled", "l_max": 2}, "slab"),
        ({"frequencies": "quadrature", "l_max": 2}, "slab"),
    ],
)
def test_an_order_that_is_not_there_is_refused(options, name):
    layer = Layer(options)
    with pytest.raises(InputError, match="no linear form"):
        layer([STRUCTURES[name]()], "linear")


def test_a_budget_is_invariant_and_is_an_approximation():
    """Turning changes nothing at any l_max; the distance from the untruncated estimator falls with l_max."""
    atoms = water(6)
    angles = np.random.default_rng(0).uniform(0, 360, 3)
    turned = atoms.copy()
    turned.euler_rotate(*angles, center=(1.0, 2.0, 3.0))
    errors = []
    untruncated, _ = Layer({"frequencies": "sampled"})([atoms], "quadratic")
    for l_max in (1, 3, 6, 12):
        layer = Layer({"frequencies": "sampled", "l_max": l_max})
        found, _ = layer([atoms], "linear")
        again, _ = layer([turned], "linear")
        torch.testing.assert_close(again, found, rtol=1e-10, atol=1e-11)
        errors.append(float((found - untruncated).abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1e-3 > 10 * errors[-1]


@pytest.mark.parametrize("name", ["molecule", "slab"])
@pytest.mark.parametrize("method", ["lattice", "quadrature", "quadrature budget", "random", "averaged budget"])
def test_the_counted_cost_is_that_of_the_features(method, name):
    """Applied once more, an operator takes two products with its features more: N · features · channels each."""
    options, names = METHODS[method]
    shared = Layer(options).shared
    geometry, basis = geometry_of([STRUCTURES[name]()], CUTOFF), shared.rpe()
    operator = shared.method.operator(geometry, 0, basis)
    if name not in names:
        assert operator is None or not np.isfinite(shared.method.operator_cost(geometry, 0, basis, 8, 2))
        return
    once, twice, wider = (shared.method.operator_cost(geometry, 0, basis, *of) for of in ((8, 1), (8, 2), (16, 1)))
    assert twice == wider
    # The lattice expects a number of vectors from the volume.
    assert twice - once == pytest.approx(2 * operator.features.numel() * 8, rel=0.1 if method == "lattice" else 1e-12)
    assert once > twice - once


def test_the_mesh_is_offered_to_many_atoms():
    offered = {
        n: [method.name for method in AutomaticMethod(1e-4).candidates(geometry_of([water(n)]), 0)] for n in (5, 100)
    }
    assert offered[5] == ["exact"]
    assert offered[100] == ["exact", "mesh"]
    periodic = AutomaticMethod(1e-4).candidates(geometry_of([STRUCTURES["triclinic"]()]), 0)
    assert [method.name for method in periodic] == ["exact", "lattice"]
