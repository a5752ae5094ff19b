"""molflt's whole models as bench_model.py sees them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from benchmarks.batch_file import PlainBatch
from molflt.attention.config import ATTENTION_PRESETS
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from molflt.training.presets import PRESETS


def model_config(preset: str, attention: str) -> ModelConfig:
    """The model of a preset with another attention; the number of Gaussians and the like stay the preset's."""
    sizes = dict(PRESETS[preset][1]["model"])
    sizes["attention"] = {**sizes.get("attention", {}), **ATTENTION_PRESETS[attention]}
    return ModelConfig.model_validate(sizes)


class MolfltEnergy(nn.Module):
    """The energy model of a preset.

    Args:
        preset: tiny, small, base, ...
        attention: a name that ``model.attention`` takes.
    """

    def __init__(self, preset: str, attention: str = "molflt") -> None:
        super().__init__()
        self.model = EnergyModel(model_config(preset, attention))

    def prepare(self, batch: PlainBatch) -> Any:
        """What a loader gives: fields and neighbour list. Geometry is part of the model, and is timed."""
        names = ("positions", "atomic_numbers", "batch", "cell", "pbc", "tags", "edge_index", "cell_offsets")
        return SimpleNamespace(**{name: getattr(batch, name) for name in names})

    def forward(self, inputs: Any) -> Tensor:
        """(n_structures,) energies."""
        return self.model(inputs).energy

    def loss(self, inputs: Any, batch: PlainBatch) -> Tensor:
        """Of a training step: energies, and the relaxed displacement that the auxiliary head learns."""
        output = self.model(inputs)
        loss = (output.energy - batch.target).square().mean()
        if output.displacement is not None:
            loss = loss + (output.displacement - batch.displacement).abs().mean()
        return loss
