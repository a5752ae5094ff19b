"""Model files to be written, altered and read back."""

import json

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.model.file import METADATA_KEY, LoadedModel, ModelMetadata, TrainingData, load_model, save_model
from molflt.prediction.predict import predict


def content_of(path):
    with safe_open(path, framework="pt") as handle:
        names = list(handle.keys())
        return {name: handle.get_tensor(name) for name in names}, json.loads(handle.metadata()[METADATA_KEY])


def altered(model_path, folder, change):
    """A copy of a model file after ``change(tensors, metadata)``."""
    tensors, metadata = content_of(model_path)
    change(tensors, metadata)
    path = folder / "altered.safetensors"
    save_file(tensors, path, metadata={METADATA_KEY: json.dumps(metadata)})
    return path


def tiny(attention):
    sizes = {"dim": 8, "n_heads": 2, "n_layers": 2, "ffn_dim": 8, "n_rbf": 4}
    return ModelConfig.model_validate({**sizes, "attention": attention})


def metadata_of(config, **changes):
    values = {
        "seed": 7,
        "target": "y_relaxed",
        "elements": [1, 29],
        "standardiser": {},
        "training_data": TrainingData(path="x", fingerprint="y", n_structures=1),
        "validation": {},
        "epoch": 0,
    }
    return ModelMetadata(config=config, **{**values, **changes})


def check_round_trip(config, structures, folder):
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
