"""Whole models with the estimators of the literature: forces, files, and what they predicted before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from molflt.attention.registry import attention_config
from molflt.data.dataset import StructureDataset
from molflt.errors import InputError
from molflt.model.energy import EnergyModel
from molflt.model.file import load_model, save_model, set_frequencies
from tests.attention.structures import STRUCTURES
from tests.golden.values import energies as golden_energies
from tests.golden.values import structures as golden_structures
from tests.model.files import (
    check_round_trip,
    content_of,
    metadata_of,
    tiny,
)
from tests.model.models import (
    check_forces,
    check_hessian_vector_product,
    make_model,
)

NARROW = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4}
UNDAMPED = {
    "averaged": {},
    "random": {"directions": "random"},
}


@pytest.mark.parametrize("keys", UNDAMPED.values(), ids=UNDAMPED)
def test_forces_of_the_undamped_estimator(keys: dict[str, Any]) -> None:
    attention = {"mechanism": "undamped", "n_frequencies": 8, **NARROW, **keys}
    model = make_model(attention, cutoff=4.0, pair_types=False)
    random = keys.get("directions") == "random"
    for name in ("molecule", "triclinic"):
        check_forces(model, STRUCTURES[name](), torque=None if random else 1e-10)
    check_hessian_vector_product(model, STRUCTURES["molecule"]())


ROUND_TRIPS = {
    "undamped, free": {"mechanism": "undamped", "spectrum": "free"},
    "fastfood": {"mechanism": "undamped", "far_rank": "m", "kernel": "oprf-fastfood"},
    **{name: name for name in ("flt-concat", "ra-rpe", "lara-rpe", "relu", "trigrf-qmc")},
}


@pytest.mark.parametrize("attention", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_round_trip_gives_bit_equal_energies(attention: Any, val_set: StructureDataset, tmp_path: Path) -> None:
    check_round_trip(tiny(attention), val_set, tmp_path)


@pytest.mark.parametrize("mechanism", ["undamped", "concat"])
def test_an_estimator_refuses_another_method(mechanism: str) -> None:
    with pytest.raises(InputError, match=f"mechanism={mechanism}, an estimator that is part of it"):
        set_frequencies(EnergyModel(tiny({"mechanism": mechanism})), "exact")


STORED = json.loads((Path(__file__).parent / "golden" / "stored.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(STORED))
def test_stored_models_predict_for_ever_what_they_predicted(name: str) -> None:
    """As in tests/golden."""
    model = load_model(Path(__file__).parent / "golden" / f"{name}.safetensors").model
    assert golden_energies(model, golden_structures()) == pytest.approx(STORED[name], rel=2e-6)


def test_keys_that_do_nothing_are_not_written(tmp_path: Path) -> None:
    """They would be refused: a free spectrum has no use for the atoms that training counts."""
    config = tiny({"mechanism": "undamped", "spectrum": "free"})
    config.attention.isolated_atoms = 7.5
    save_model(tmp_path / "model.safetensors", EnergyModel(config), metadata_of(config))
    assert "isolated_atoms" not in content_of(tmp_path / "model.safetensors")[1]["config"]["attention"]
    load_model(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"means": True}, "means acts only with directions=random"),
        ({"frequencies": "mesh"}, "frequencies is no key of mechanism=undamped, but of fourier"),
    ],
    ids=str,
)
def test_what_the_undamped_estimator_refuses(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        attention_config(**{"mechanism": "undamped", **keys})
    attention_config(mechanism="undamped", directions="random", means=True)
