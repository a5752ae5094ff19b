"""Every mechanism of the literature as the attention of a whole model, by the same checks as the package's own."""

import json
from pathlib import Path

import pytest
import torch

from molflt.literature.names import PRESETS
from molflt.model.model_file import load_model
from tests.attention.structures import STRUCTURES, rotated
from tests.golden.values import energies as energies_of
from tests.golden.values import structures
from tests.model.models import (
    EXTREMES,
    all_structures,
    change_in_company,
    change_when_moved,
    check_finite,
    check_forces,
    check_it_trains_as_it_is_built,
    check_supercells,
    energies,
    excess,
    make_model,
    relative,
)

GOLDEN = Path(__file__).parent / "golden"
STORED = json.loads((GOLDEN / "stored.json").read_text())
NARROW = {"sigma_min": 1.5, "sigma_max": 4.0}
BUDGET = {"mechanism": "budget", "n_frequencies": 6, "l_max": 3, **NARROW}
SOME = {
    **{name: name for name in ("ra", "ra-rpe", "lara-rpe", "lara", "elu", "relu", "oprf-mm", "saderf-fastfood")},
    "biased": {"mechanism": "randomised", "sampling": "biased"},
    "budget": BUDGET,
    "kernel of flt": {"mechanism": "sampled", "far_rank": "m", "kernel": "oprf-sorf"},
}
PUBLISHED = "flt-concat"
some = pytest.mark.parametrize("attention", SOME.values(), ids=SOME)
some_and_published = pytest.mark.parametrize("attention", [*SOME.values(), PUBLISHED], ids=[*SOME, PUBLISHED])


@some_and_published
def test_alone_in_a_batch_padded_and_reordered_agree(attention):
    for dtype, bound in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        assert change_in_company(make_model(attention, dtype)) < bound


@some
def test_invariant_to_rotation_reflection_translation_and_image(attention):
    assert change_when_moved(make_model(attention)) < 1e-10


def test_the_published_form_fails_the_same_test():
    model, atoms = make_model(PUBLISHED), all_structures()
    turned = energies(model, [rotated(a, i) for i, a in enumerate(atoms)])
    assert relative(turned, energies(model, atoms)) > 1e-5


@pytest.mark.parametrize("attention", [*PRESETS, BUDGET], ids=[*PRESETS, "budget"])
def test_trains_as_it_is_built(attention):
    check_it_trains_as_it_is_built(attention)


@pytest.mark.parametrize("attention", ["ra-rpe", "lara-rpe"])
def test_a_supercell_is_a_multiple(attention):
    check_supercells(make_model(attention))


def test_energies_of_separate_structures_add_up_where_nothing_is_averaged():
    exact = {"frequencies": "exact", **NARROW}
    assert excess(make_model({"mechanism": "randomised-rpe", **exact}), 50.0) < 1e-11
    # Power: a kernel that averages over a structure ties its far parts together.
    assert excess(make_model({"far_rank": "m", "kernel": "oprf-iid", **exact}), 50.0) > 1e-8


def test_forces_under_a_budget_are_those_of_finite_differences():
    check_forces(make_model({**BUDGET, "order": "linear"}), STRUCTURES["molecule"]())


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("attention", [PUBLISHED, BUDGET, "ra-rpe"], ids=str)
def test_extreme_parameters_give_no_nan(attention, extreme):
    model = make_model(attention, torch.float32)
    extreme(model)
    check_finite(model, [STRUCTURES[name]() for name in ("molecule", "slab", "atom")])


@pytest.mark.parametrize("name", STORED)
def test_stored_models_predict_for_ever_what_they_predicted(name):
    """In single precision, to its rounding."""
    model = load_model(GOLDEN / f"{name}.safetensors").model
    assert energies_of(model, structures()) == pytest.approx(STORED[name], rel=2e-6)
