"""The quadrature under a budget: the same truncated sum in both orders, invariant, and counted rightly."""

import numpy as np
import pytest
import torch

from molflt.attention.far.costs import LayerSizes
from molflt.attention.far.exact import ExactMethod
from molflt.errors import InputError
from tests.attention.layers import Layer, check_orders_agree, water
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
