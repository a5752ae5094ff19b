"""The quadrature under a budget: the same truncated sum in both orders, invariant, and counted rightly."""

import numpy as np
import pytest
import torch
from ase.build import molecule

from molflt.attention.build import build_attention
from molflt.attention.far.costs import LayerSizes
from molflt.attention.far.exact import ExactMethod
from molflt.attention.registry import attention_config
from molflt.errors import InputError
from tests.attention.layers import SIZES, Layer, check_orders_agree, water
from tests.attention.structures import STRUCTURES, geometry_of

BUDGET = {"mechanism": "budget", "l_max": 3}


@pytest.mark.parametrize("far_rank", [0, 1, "m"])
def test_both_orders_agree(far_rank):
    check_orders_agree(["molecule", "benzene", "linear", "atom"], **BUDGET, far_rank=far_rank)


def test_it_comes_to_f_as_the_budget_grows_and_is_invariant_at_any():
    atoms = water(6)
    turned = atoms.copy()
    turned.euler_rotate(*np.random.default_rng(0).uniform(0, 360, 3), center=(1.0, 2.0, 3.0))
    errors = []
    for n_frequencies, l_max in ((4, 1), (12, 6), (24, 14)):
        layer = Layer(mechanism="budget", n_frequencies=n_frequencies, l_max=l_max)
        torch.testing.assert_close(layer([turned], "linear")[0], layer([atoms], "linear")[0], rtol=1e-10, atol=1e-11)
        geometry, basis = geometry_of([atoms]), layer.shared.rpe()
        exact = ExactMethod().pair_basis(geometry, basis)
        errors.append(float((layer.shared.method.pair_basis(geometry, basis) - exact).detach().abs().max()))
    assert errors[0] > 0.1 > errors[1] > 0.01 > 100 * errors[2]


def test_its_cost_is_that_of_its_features_and_periodic_structures_have_no_linear_form():
    """In each application an operator takes two products with its features."""
    layer = Layer(**BUDGET)
    method, basis, geometry = layer.shared.method, layer.shared.rpe(), geometry_of([STRUCTURES["molecule"]()])
    features = method.operator(geometry, 0, basis).features
    sizes = LayerSizes(n_applications=3, n_heads=2, dim=8, far_dim=8, rank=1, n_layers=3)
    work = method.operator_work(geometry, 0, basis, sizes)
    assert work.feature_products == 3 * 2 * features.numel() * 8
    assert method.operator(geometry_of([STRUCTURES["slab"]()]), 0, basis) is None
    with pytest.raises(InputError, match="no linear form"):
        layer([STRUCTURES["slab"]()], "linear")


def change_of_f(atoms, far, **keys):
    """By how much f̂ between some atoms changes, relative to itself, when others are put beside them."""
    shared, _ = build_attention(attention_config(**keys), SIZES)
    shared.double()
    with torch.no_grad():
        method = shared.method if keys["mechanism"] != "fourier" else ExactMethod()
        alone, together = (
            method.pair_basis(geometry_of([one]), shared.rpe())[0][: len(atoms), : len(atoms)]
            for one in (atoms, atoms + far)
        )
    return float((together - alone).norm() / alone.norm())


def test_a_budget_is_not_local():
    """As docs/design.md says: what it cuts off between the atoms of one molecule depends on all there are."""
    ethanol, far = molecule("CH3CH2OH"), molecule("CH3CH2OH")
    far.positions += [50.0, 0, 0]
    assert change_of_f(ethanol, far, mechanism="budget", l_max=4) == pytest.approx(0.85, abs=0.01)
    assert change_of_f(ethanol, far, mechanism="undamped", l_max=4) > 0.8
    # Power: without a budget nothing changes.
    assert change_of_f(ethanol, far, mechanism="undamped") < 1e-12
    assert change_of_f(ethanol, far, mechanism="fourier", spectrum="both") < 1e-12


def test_the_undamped_estimator_is_not_size_consistent():
    """Two molecules far apart feel each other through a sinc; through a damped wave they do not."""
    ethanol, far = molecule("CH3CH2OH"), molecule("CH3CH2OH")
    felt = {}
    for name, keys in {"undamped": {"mechanism": "undamped"}, "waves": {"spectrum": "sampled"}}.items():
        shared, _ = build_attention(attention_config(**keys), SIZES)
        shared.double()
        method = shared.method if name == "undamped" else ExactMethod()
        felt[name] = []
        for distance in (100.0, 400.0):
            far.positions = ethanol.positions + np.array([distance, 0, 0])
            with torch.no_grad():
                f = method.pair_basis(geometry_of([ethanol + far]), shared.rpe())[0]
            n = len(ethanol)
            felt[name].append(float(f[:n, n:].norm() / f[:n, :n].norm()))
    assert felt["waves"] == [0.0, 0.0] or max(felt["waves"]) < 1e-12
    assert felt["undamped"][0] > 1e-4
    assert 1.5 < felt["undamped"][0] / felt["undamped"][1] < 16
