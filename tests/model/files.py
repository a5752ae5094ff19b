"""Model files to be written, altered and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from molflt.data.datasets import StructureDataset
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import (
    METADATA_KEY,
    LoadedModel,
    ModelMetadata,
    TrainingData,
    load_model,
    read_metadata,
    save_model,
)
from molflt.prediction.predictor import predict

Change = Callable[[dict[str, torch.Tensor], dict[str, Any]], object]
"""Something done to the tensors and to the metadata of a file."""


def content_of(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as handle:
        names = list(handle.keys())
        return {name: handle.get_tensor(name) for name in names}, json.loads(handle.metadata()[METADATA_KEY])


def altered(model_path: Path, folder: Path, change: Change) -> Path:
    """A copy of a model file after ``change(tensors, metadata)``."""
    tensors, metadata = content_of(model_path)
    change(tensors, metadata)
    path = folder / "altered.safetensors"
    save_file(tensors, path, metadata={METADATA_KEY: json.dumps(metadata)})
    return path


def tiny(attention: Any) -> ModelConfig:
    sizes = {"dim": 8, "n_heads": 2, "n_layers": 2, "ffn_dim": 8, "n_rbf": 4}
    return ModelConfig.model_validate({**sizes, "attention": attention})


def metadata_of(config: ModelConfig, **changes: Any) -> ModelMetadata:
    values: dict[str, Any] = {
        "seed": 7,
        "target": "y_relaxed",
        "elements": [1, 29],
        "standardiser": {},
        "training_data": TrainingData(path="x", fingerprint="y", n_structures=1),
        "validation": {},
        "epoch": 0,
    }
    return ModelMetadata(config=config, **{**values, **changes})


def check_round_trip(config: ModelConfig, structures: StructureDataset, folder: Path) -> None:
    """In either precision, tensors and energies of a model that was saved are those of the one that is loaded."""
    torch.manual_seed(1)
    model = EnergyModel(config, seed=7).eval()
    model.standardiser.mean.fill_(-1.23456789)
    model.standardiser.references[29] = 0.1 + 1e-12
    path = folder / "model.safetensors"
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        save_model(path, model, metadata_of(config))
        again = load_model(path)
        assert again.model.dtype == dtype
        assert again.metadata.config == config
        before = predict(LoadedModel(model, again.metadata, path), structures)
        after = predict(again, structures)
        np.testing.assert_array_equal(before.energies, after.energies)
        for name, value in model.state_dict().items():
            assert torch.equal(value, again.model.state_dict()[name]), name


SCHEMA_6 = {
    "combine": "product", "far_field": True, "far_rank": 0, "frequencies": "auto", "order": "auto", "tolerance": 1e-3,
    "l_max": None, "far_dim": None, "moment_channels": None, "n_basis": 4, "sigma_min": 1.0, "sigma_max": 9.0,
    "isolated_atoms": 8.0, "n_frequencies": 6, "directions": "averaged", "radii": "random", "proposal": "own",
    "means": False, "spectrum": "gaussian", "periodic_radius": 7.0, "kernel": "posrf-orf", "n_features": 6,
    "redraw_every": 3, "n_landmarks": 3, "n_samples": 2, "sampling": "biased", "positional_mask": False,
    "dense_cutoff": 5.0, "mechanism": "fourier",
}  # fmt: skip
"""All keys that any attention had in schema 6, far from their defaults."""


def attention_of_schema_6(old: dict[str, Any], model_path: Path, folder: Path) -> Any:
    """What the attention of a file of schema 6 with these keys is read as."""

    def change(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
        metadata.update(schema_version=6)
        metadata["config"]["attention"] = {**SCHEMA_6, **old}

    metadata = read_metadata(altered(model_path, folder, change))
    assert metadata.schema_version == 6
    return metadata.config.attention
