"""The parts of a training step: loss, groups of parameters, moving average, metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from molflt.training.datasets import TrainingSet

from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import load_model
from molflt.model.standardiser import Statistics
from molflt.training.config import TrainConfig
from molflt.training.optimisation import auxiliary_weight
from molflt.training.run import train
from molflt.training.run_directory import read_records
from molflt.training.task import EnergyTask

MakeConfig = Callable[..., TrainConfig]

TRAINING_SET = TrainingSet(Statistics("structure", 0.0, 1.0, {}, 1.0), [1], False, 1.0, 1.0, True)


def quiet(line: str) -> None:
    pass


@pytest.mark.parametrize(
    ("optimiser", "given", "expected"),
    [("adamw", None, 0.1), ("adam", None, 0.0), ("adamw", 0.0, 0.0), ("adam", 0.02, 0.02)],
)
def test_weight_decay_where_none_is_given(
    make_config: MakeConfig, optimiser: str, given: float | None, expected: float
) -> None:
    """Adam's is a penalty in the gradient, of another size."""
    config = make_config(**{"optimiser.name": optimiser, "optimiser.weight_decay": given})
    task = EnergyTask(config, EnergyModel(config.model), ["val"], TRAINING_SET)
    task._total_steps = lambda: 10  # type: ignore[method-assign]
    found = task.configure_optimizers()["optimizer"]  # type: ignore[call-overload,index]
    assert [group["weight_decay"] for group in found.param_groups] == [expected, 0.0]


def test_weight_decay_is_on_matrices_only(make_config: MakeConfig) -> None:
    config = make_config(**{"optimiser.weight_decay": 0.25})
    task = EnergyTask(config, EnergyModel(config.model), ["val"], TRAINING_SET)
    task._total_steps = lambda: 10  # type: ignore[method-assign]
    groups = task.configure_optimizers()["optimizer"].param_groups  # type: ignore[call-overload,index]
    names = {id(parameter): name for name, parameter in task.model.named_parameters()}
    decayed, kept = ({names[id(p)] for p in group["params"]} for group in groups)
    assert [group["weight_decay"] for group in groups] == [0.25, 0.0]
    assert decayed | kept == {name for name, _ in task.model.named_parameters()}
    assert not decayed & kept
    assert "encoder.layers.0.ffn.0.weight" in decayed
    for name in kept:
        assert (
            name.endswith(("bias", "norm.weight")) or "embedding" in name or task.model.get_parameter(name).dim() < 2
        )
    assert {"embedding.element.weight", "embedding.tag.weight", "encoder.norm.weight"} <= kept


def test_the_optimiser_is_the_one_asked_for(make_config: MakeConfig) -> None:
    for name, kind in {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}.items():
        config = make_config(**{"optimiser.name": name, "optimiser.betas": (0.8, 0.9), "optimiser.eps": 1e-5})
        task = EnergyTask(config, EnergyModel(config.model), ["val"], TRAINING_SET)
        task._total_steps = lambda: 10  # type: ignore[method-assign]
        optimiser = task.configure_optimizers()["optimizer"]  # type: ignore[call-overload,index]
        assert type(optimiser) is kind
        assert optimiser.defaults["betas"] == (0.8, 0.9)
        assert optimiser.defaults["eps"] == 1e-5


class Watch(Callback):
    """Recomputes by hand what the task does at every step."""

    def __init__(self) -> None:
        self.average: list[torch.Tensor] = []
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.expected: list[float] = []

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        self.average = [p.detach().clone() for p in pl_module.model.parameters()]

    def on_train_batch_start(self, trainer: lightning.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        model, step = pl_module.model, trainer.global_step
        with torch.no_grad():
            out = model(batch)
        energy = float((out.energy - batch.y_relaxed).abs().mean() / model.standardiser.std)
        moved = (batch.positions_relaxed - batch.positions).to(out.displacement.dtype)
        error = (out.displacement - moved)[~batch.fixed].abs().mean() / float(model.standardiser.displacement_std)
        self.expected.append(energy + auxiliary_weight(step, 12, 15.0, 1.0) * float(error))

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))
        n = trainer.global_step
        decay = min(0.9, (1 + n) / (10 + n))
        for kept, new in zip(self.average, pl_module.model.parameters(), strict=True):
            kept.mul_(decay).add_((1 - decay) * new.detach())


def test_loss_rate_and_average_step_by_step(make_config: MakeConfig, tmp_path: Path) -> None:
    watch = Watch()
    train(make_config(**{"optimiser.schedule": "linear"}), tmp_path / "run", say=quiet, callbacks=[watch])
    assert len(watch.losses) == 12
    # The displacement of atoms that are free to move, per component; 15 at the first step, towards 1 at the last.
    assert watch.losses == pytest.approx(watch.expected, rel=1e-5)
    # Two steps of warm-up, ten of linear decay; the first step is not wasted at rate zero.
    expected = [0.5, 1.0] + [1 - step / 10 for step in range(10)]
    assert watch.rates == pytest.approx([5e-3 * factor for factor in expected])
    # The average is what is saved.
    model = load_model(tmp_path / "run" / "last.safetensors").model
    for kept, stored in zip(watch.average, model.parameters(), strict=True):
        torch.testing.assert_close(kept, stored, rtol=1e-5, atol=1e-6)


def test_without_average_the_weights_themselves_are_saved(make_config: MakeConfig, tmp_path: Path) -> None:
    class Keep(Callback):
        def on_fit_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
            self.weights = {name: value.clone() for name, value in pl_module.model.state_dict().items()}
            assert pl_module.average is None

    keep = Keep()
    config = make_config(**{"optimiser.ema_decay": 0.0, "trainer.max_epochs": 1})
    train(config, tmp_path / "run", say=quiet, callbacks=[keep])
    saved = load_model(tmp_path / "run" / "last.safetensors").model.state_dict()
    assert all(torch.equal(value, keep.weights[name]) for name, value in saved.items())


def test_clipping(make_config: MakeConfig, tmp_path: Path) -> None:
    class Norm(Callback):
        largest = 0.0

        def on_before_zero_grad(self, trainer: lightning.Trainer, pl_module: Any, optimizer: Any) -> None:
            norms = [p.grad.norm() for p in pl_module.model.parameters() if p.grad is not None]
            if norms:
                self.largest = max(self.largest, float(torch.stack(norms).norm()))

    largest = {}
    for clip in (0.0, 0.01):
        norm = Norm()
        config = make_config(**{"optimiser.clip_norm": clip, "trainer.max_epochs": 1})
        train(config, tmp_path / str(clip), say=quiet, callbacks=[norm])
        largest[clip] = norm.largest
    assert largest[0.01] <= 0.0101
    assert largest[0.0] > 0.1


def test_splits_are_recorded_by_name_in_order(make_config: MakeConfig, tiny_data: Path, tmp_path: Path) -> None:
    # The first split decides what is best, whatever its name.
    val = {"z-far": str(tiny_data / "other.lmdb"), "a_near": str(tiny_data / "val.lmdb")}
    lines: list[str] = []
    result = train(make_config(**{"data.val": val}), tmp_path / "run", say=lines.append)
    records = read_records(tmp_path / "run")
    assert result.best == min(record["z-far/energy_mae"] for record in records)
    assert list(records[0])[2:8] == [
        f"{split}/{metric}" for split in val for metric in ("energy_mae", "energy_rmse", "ewt")
    ]
    assert lines[1].index("z-far") < lines[1].index("a_near")
