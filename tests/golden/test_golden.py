"""Numbers that stay: presets as they are initialised, and a stored model of every schema. See ``values.py``."""

import json

import pytest

from molflt.model.model_file import SCHEMA_VERSION, load_model
from molflt.training.presets import PRESETS
from tests.golden.values import FOLDER, LARGE, energies, preset_energies

STORED = json.loads((FOLDER / "stored.json").read_text())
GOLDEN = json.loads((FOLDER / "presets.json").read_text())


def marked(name):
    return pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name


@pytest.mark.parametrize("name", [marked(name) for name in PRESETS])
def test_presets_give_what_they_gave(name):
    assert preset_energies(name) == pytest.approx(GOLDEN[name], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", list(STORED))
def test_stored_models_predict_for_ever_what_they_predicted(name):
    """In single precision, to its rounding."""
    assert energies(load_model(FOLDER / f"{name}.safetensors").model) == pytest.approx(STORED[name], rel=2e-6)


def test_there_is_a_stored_model_of_every_schema():
    for schema in range(1, SCHEMA_VERSION + 1):
        assert f"schema-{schema}-molflt" in STORED
    # Power: models of the same weights are told apart where the far field carries other channels or has another
    # scale, where there are moments, and where there are pairs of elements.
    for newer, older in ((6, 5), (5, 4), (4, 3), (3, 2)):
        assert STORED[f"schema-{newer}-molflt"] != pytest.approx(STORED[f"schema-{older}-molflt"], rel=2e-6)
