"""Forces and stress: against central differences, and what symmetry and periodicity say of them."""

import pytest
import torch

from molflt.model.derivatives import derivatives
from tests.attention.structures import STRUCTURES, batch_of
from tests.model.models import check_forces, check_hessian_vector_product, check_stress
from tests.model.models import make_model as make

WIDTHS = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4}
METHODS = {
    "exact": {"frequencies": "exact", **WIDTHS},
    "exact, rank one": {"frequencies": "exact", "far_rank": 1, **WIDTHS},
    "exact, rank m": {"frequencies": "exact", "far_rank": "m", "n_features": 8, **WIDTHS},
    "lattice": {"frequencies": "lattice", **WIDTHS},
    "mesh": {"frequencies": "mesh", "tolerance": 1e-3, **WIDTHS},
    "exact, both": {"frequencies": "exact", "spectrum": "both", **WIDTHS},
    "lattice, both": {"frequencies": "lattice", "spectrum": "both", **WIDTHS},
    "exact, vectors": {"frequencies": "exact", "vector_channels": 4, **WIDTHS},
    "lattice, vectors": {"frequencies": "lattice", "vector_channels": 4, **WIDTHS},
    "softmax": {"mechanism": "softmax", "dense_cutoff": 5.0},
    "undamped": {"mechanism": "undamped", "n_frequencies": 8, **WIDTHS},
    "undamped, random": {"mechanism": "undamped", "n_frequencies": 8, "directions": "random", **WIDTHS},
}
CASES = [(m, n) for m in METHODS for n in ("molecule", "triclinic")] + [("exact", "slab"), ("mesh", "slab")]


def make_model(method):
    """The mesh keeps its grid, as it does in the calculator: where the grid lies is chosen, not differentiated."""
    model = make(METHODS[method], cutoff=4.0, pair_types=False)
    if method == "mesh":
        plans = [model.plan()]

        def layout(batch, n_max=None):
            found = plans[-1](batch, n_max)
            plans.append(plans[-1].holding(found))
            return found

        model.layout = layout
    return model


@pytest.mark.parametrize(("method", "name"), CASES)
def test_forces_are_central_differences_and_balance(method, name):
    """Balanced to ε only where a held grid or an artificial cell does not turn; not with random directions."""
    at_rest = 1e-3 if method == "mesh" else 1e-11
    torque = 1e-3 if method.startswith(("lattice", "mesh")) else None if "random" in method else 1e-10
    check_forces(make_model(method), STRUCTURES[name](), at_rest, torque)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "softmax"])
def test_second_derivatives(method):
    check_hessian_vector_product(make_model(method), STRUCTURES["molecule"]())


@pytest.mark.parametrize("method", ["exact", "exact, rank m", "lattice", "mesh", "exact, both", "exact, vectors"])
@pytest.mark.parametrize("name", ["slab_open", "triclinic"])
def test_stress_is_a_central_difference(method, name):
    check_stress(make_model(method), STRUCTURES[name]())


def test_a_batch_gives_what_its_structures_give_alone():
    """Stress too, which is a sum over atoms divided by a volume of one's own; a molecule has none."""
    model = make_model("exact")
    atoms = [STRUCTURES[name]() for name in ("triclinic", "molecule", "slab_open", "tiny_cell")]
    together = derivatives(model, batch_of(atoms), stress=True)
    assert together.stress is not None
    alone = [derivatives(model, batch_of([one]), stress=True) for one in atoms]
    torch.testing.assert_close(together.forces, torch.cat([one.forces for one in alone]), rtol=0, atol=1e-10)
    torch.testing.assert_close(together.stress, torch.cat([one.stress for one in alone]), rtol=0, atol=1e-11)
    assert not bool(together.stress[1].any())


def test_the_batch_is_left_as_it_was():
    model, batch = make_model("exact"), batch_of([STRUCTURES["triclinic"]()])
    positions, cell = batch.positions.clone(), batch.cell.clone()
    with torch.no_grad():
        plain = model(batch).energy
        found = derivatives(model, batch, stress=True)
    assert torch.equal(batch.positions, positions)
    assert torch.equal(batch.cell, cell)
    assert not batch.positions.requires_grad
    torch.testing.assert_close(found.output.energy.detach(), plain, rtol=0, atol=1e-12)
    assert not found.forces.requires_grad
