"""The choice between numerical methods and contraction orders: the cheapest by counted multiply-adds."""

import numpy as np
import pytest

from molflt.attention.far.choice import AutomaticMethod
from tests.attention.layers import Layer, water
from tests.attention.structures import STRUCTURES, geometry_of
from tests.attention.test_layer import METHODS


@pytest.mark.parametrize("method", ["lattice", "local"])
def test_the_choice_is_the_cheapest(method):
    keys, names = METHODS.get(method, ({"mechanism": "local"}, ["molecule", "slab"]))
    layer = Layer(**keys)
    for name in names:
        geometry = layer.geometry([STRUCTURES[name]()])
        counted = {}
        for order in ("auto", "quadratic", "linear"):
            layer.shared.order = order
            counted[order] = layer.context(geometry).contractions[0]
        assert counted["auto"].multiply_adds == min(counted[o].multiply_adds for o in ("quadratic", "linear"))
        assert str(counted["linear"]).endswith(", linear")


@pytest.mark.parametrize("name", ["molecule", "slab"])
@pytest.mark.parametrize("method", ["lattice", "lattice, waves"])
def test_the_counted_cost_is_that_of_the_features(method, name):
    """Applied once more, an operator takes two products with its features more: N · features · channels each."""
    keys, names = METHODS[method]
    shared = Layer(**keys).shared
    geometry, basis = geometry_of([STRUCTURES[name]()]), shared.rpe()
    operator = shared.method.operator(geometry, 0, basis)
    if name not in names:
        assert operator is None
        assert not np.isfinite(shared.method.operator_cost(geometry, 0, basis, 8, 2))
        return
    once, twice, wider = (shared.method.operator_cost(geometry, 0, basis, *of) for of in ((8, 1), (8, 2), (16, 1)))
    assert twice == wider
    # The lattice expects a number of vectors from the volume.
    assert twice - once == pytest.approx(2 * operator.features.numel() * 8, rel=0.15)
    assert once > twice - once


def test_the_mesh_is_offered_to_many_atoms_and_the_lattice_to_cells():
    offered = {
        n: [method.name for method in AutomaticMethod(1e-4).candidates(geometry_of([water(n)]), 0)] for n in (5, 100)
    }
    assert offered == {5: ["exact"], 100: ["exact", "mesh"]}
    periodic = AutomaticMethod(1e-4).candidates(geometry_of([STRUCTURES["triclinic"]()]), 0)
    assert [method.name for method in periodic] == ["exact", "lattice"]
