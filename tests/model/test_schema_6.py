"""Files of schema 6 are read as configurations by mechanism. That their energies stay is in tests/golden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from molflt.errors import InputError
from molflt.model.model_file import SCHEMA_VERSION, load_model, read_metadata, save_model
from tests.model.files import altered, attention_of_schema_6, tiny

FAR = {"n_basis": 4, "sigma_min": 1.0, "sigma_max": 9.0, "isolated_atoms": 8.0}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {**FAR, "tolerance": 1e-3}),
        ({"frequencies": "exact", "far_dim": 8, "moment_channels": 0}, {**FAR, "frequencies": "exact",
          "far_dim": 8, "moment_channels": 0}),
        ({"far_rank": "m"}, {**FAR, "tolerance": 1e-3, "far_rank": "m", "n_features": 6, "redraw_every": 3}),
        ({"far_field": False, "far_rank": 1, "moment_channels": 5}, {"mechanism": "local", "moment_channels": 5}),
        ({"frequencies": "quadrature", "order": "linear"}, {**FAR, "frequencies": "quadrature", "tolerance": 1e-3}),
        ({"spectrum": "free"}, {**FAR, "tolerance": 1e-3, "spectrum": "gaussians"}),
        ({"mechanism": "kernelised", "far_field": False},
         {"mechanism": "kernelised", "n_features": 6, "redraw_every": 3}),
        ({"mechanism": "softmax", "frequencies": "sampled"}, {"mechanism": "softmax", "dense_cutoff": 5.0}),
    ],
    ids=str,
)  # fmt: skip
def test_schema_6_keeps_the_keys_that_act(
    old: dict[str, Any], new: dict[str, Any], model_path: Path, tmp_path: Path
) -> None:
    assert attention_of_schema_6(old, model_path, tmp_path) == tiny(new).attention


@pytest.mark.parametrize(
    "damage",
    [{"mechanism": "fourrier"}, {"mechanism": ["fourier"]}, {"mechanism": 5}, {"far_rank": "m", "kernel": 5},
     {"far_rank": "m", "kernel": ["-"]}, {"n_basis": "many"}, {"sigma_min": None}, {"far_field": None, "order": {}}],
    ids=str,
)  # fmt: skip
def test_damage_in_schema_6(damage: dict[str, Any], model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"metadata is damaged .*; .*train again"):
        attention_of_schema_6(damage, model_path, tmp_path)


def test_what_is_written_is_of_the_present_schema(model_path: Path, tmp_path: Path) -> None:
    """Also of a model that was read from an older file."""
    older = load_model(altered(model_path, tmp_path, lambda t, m: m.update(schema_version=6)))
    save_model(tmp_path / "again.safetensors", older.model, older.metadata)
    assert read_metadata(tmp_path / "again.safetensors").schema_version == SCHEMA_VERSION
