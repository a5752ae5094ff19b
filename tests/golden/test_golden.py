"""Numbers that stay: initialised presets, shipped models, and stored models of every schema. See ``values.py``."""

import json

import numpy as np
import pytest

from molflt.model.file import OLDEST_SCHEMA, SCHEMA_VERSION, load_models, read_metadata
from molflt.prediction.members import pretrained_models
from molflt.training.config import PRESETS
from tests.golden import derivatives
from tests.golden.values import (
    FOLDER,
    LARGE,
    MOLECULES,
    mean_energies,
    preset_energies,
    shipped_structures,
    structures,
)

STORED = json.loads((FOLDER / "stored.json").read_text(encoding="utf-8"))
SHIPPED = json.loads((FOLDER / "shipped.json").read_text(encoding="utf-8"))
GOLDEN = json.loads((FOLDER / "presets.json").read_text(encoding="utf-8"))


def marked(name):
    return pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name


@pytest.mark.parametrize("name", [marked(name) for name in PRESETS])
def test_presets_give_what_they_gave(name):
    # The paper's have random features by LAPACK, whose last bit in single precision depends on the processor.
    tolerance = 1e-7 if name in LARGE else 1e-9
    assert preset_energies(name) == pytest.approx(GOLDEN[name], rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", list(STORED))
def test_stored_models_predict_for_ever_what_they_predicted(name):
    members = load_models(FOLDER / f"{name}.safetensors")
    assert mean_energies(members, structures()) == pytest.approx(STORED[name], rel=2e-6)


def test_there_is_a_stored_model_of_every_schema():
    for schema in range(OLDEST_SCHEMA, SCHEMA_VERSION + 1):
        assert read_metadata(FOLDER / f"schema-{schema}-molflt.safetensors").schema_version == schema


# Of the large one all molecules and four slabs; a slab computed exactly takes it a minute.
CASES = [(name, 12 if name == "fg" else None) for name in SHIPPED]


@pytest.mark.parametrize(("name", "n"), [*CASES, pytest.param("fg", None, marks=pytest.mark.slow)])
def test_shipped_models_predict_for_ever_what_they_predicted(name, n):
    members = load_models(pretrained_models()[name])
    found = mean_energies(members, shipped_structures()[:n])
    assert found == pytest.approx(SHIPPED[name]["float32"][:n], rel=2e-6, abs=2e-6)
    expected = SHIPPED[name]["exact"][: len(MOLECULES) if n else None]
    found = mean_energies(members, shipped_structures()[: len(expected)], exact=True)
    assert found == pytest.approx(expected, rel=1e-10, abs=1e-10)


def test_every_shipped_model_has_numbers_and_the_present_schema():
    assert SHIPPED.keys() == pretrained_models().keys()
    for path in pretrained_models().values():
        assert read_metadata(path).schema_version == SCHEMA_VERSION


DERIVATIVES = dict(np.load(derivatives.FILE))


@pytest.mark.parametrize("name", [*derivatives.MODELS, *pretrained_models()])
def test_every_kind_of_attention_gives_the_derivatives_that_it_gave(name):
    """To the tolerance of the far field: a method or an order of summation may change, and nothing else."""
    shipped = name in pretrained_models()
    found = derivatives.shipped_values_of(name) if shipped else derivatives.values_of(name)
    assert found.keys() == {key for key in DERIVATIVES if key.partition("/")[0] == name}
    for key, values in found.items():
        bound = 1e-5 if "/large" in key else 1e-9
        scale = np.abs(DERIVATIVES[key]).max(axis=0, keepdims=True)
        np.testing.assert_array_less(np.abs(values - DERIVATIVES[key]) / scale, bound, err_msg=key)
