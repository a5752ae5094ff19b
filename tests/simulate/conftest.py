"""Random models for the tests of calculators."""

from pathlib import Path

import pytest
import torch

from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel
from tests.model.files import metadata_of

ELEMENTS = [1, 6, 7, 8, 13, 28, 29]
WIDTHS = {"sigma_min": 1.5, "sigma_max": 4.0, "n_basis": 4}


def loaded(model, target="energy", elements=ELEMENTS):
    """As if from a file."""
    changes = {"seed": model.seed, "target": target, "elements": elements, "validation": {"val/force_mae": 0.1}}
    metadata = metadata_of(model.config, **changes)
    return LoadedModel(model.eval(), metadata, Path("model.safetensors"))


@pytest.fixture(scope="session")
def random_model():
    """Factory of untrained models in double precision, their far field ten times as strong as at the start."""

    def make(attention=None, target="energy", seed=0):
        torch.manual_seed(seed)
        config = ModelConfig(
            dim=16, n_heads=4, n_layers=2, ffn_dim=32, cutoff=4.0, n_rbf=8, attention={**WIDTHS, **(attention or {})}
        )
        model = EnergyModel(config, seed=seed).double()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("rpe_weights"):
                    parameter.mul_(10.0)
        return loaded(model, target)

    return make
