"""How the weights move: optimiser, schedules and moving average against closed forms, and together in a run."""

import math

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import load_model
from molflt.training.config import OptimiserConfig
from molflt.training.muon import Muon
from molflt.training.optimisation import auxiliary_weight, learning_rate_factor, make_optimiser, move_averages
from molflt.training.run import train
from molflt.training.task import _norms
from tests.training.runs import QUICK, go


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_learning_rate(shape):
    warmup, total = 10, 110
    factors = [learning_rate_factor(step, warmup, total, shape) for step in range(total + 1)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    done = [(step - 10) / 100 for step in range(10, 111)]
    expected = [1 - d if shape == "linear" else math.cos(math.pi * d / 2) ** 2 for d in done]
    assert factors[10:] == pytest.approx(expected, abs=1e-12)
    assert factors[-1] == pytest.approx(0, abs=1e-12)
    assert max(factors) == 1


@pytest.mark.parametrize(("warmup", "total"), [(0, 5), (100, 5), (100, 1), (3, 0), (0, 0)])
def test_learning_rate_of_short_runs(warmup, total):
    """A warm-up longer than the run is cut to half of it; no step is taken at rate zero except the very last."""
    factors = [learning_rate_factor(step, warmup, total, "cosine") for step in range(max(total, 1))]
    assert all(0 < factor <= 1 for factor in factors)
    assert 0 <= learning_rate_factor(total + 5, warmup, total, "linear") <= 1


def test_auxiliary_weight_falls_from_15_to_1():
    assert [auxiliary_weight(step, 100, 15, 1) for step in (0, 50, 100, 1000)] == [15, 8, 1, 1]
    assert auxiliary_weight(0, 0, 15, 1) == 15


def test_moving_average_by_hand():
    decay, expected = 0.5, 1.0
    average = torch.tensor([1.0], dtype=torch.float64)
    for n, weight in enumerate([2.0, -1.0, 4.0, 0.5, 7.0, 3.0, 2.0, 2.0, 8.0, 1.0, 5.0], start=1):
        # The decay rises as (1+n)/(10+n) until it reaches its value: 2/11, 3/12, ... 9/18 = 0.5
        d = min(decay, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * weight
        move_averages([average], [torch.tensor([weight], dtype=torch.float64)], n, decay, torch.tensor(True))
        assert float(average) == pytest.approx(expected, rel=1e-12)
    constant = torch.tensor([0.3, -2.0])
    average = constant.clone()
    for n in range(1, 200):
        move_averages([average], [constant], n, 0.999, torch.tensor(True))
    assert torch.equal(average, constant)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("muon", None, 0.1), ("adamw", None, 0.1), ("adam", None, 0.0), ("adamw", 0.0, 0.0), ("adam", 0.02, 0.02)],
)
def test_optimiser(name, given, expected, make_config):
    """Where no decay is given, Adam has none: there it is a penalty in the gradient, of another size."""
    model = EnergyModel(make_config().model)
    config = OptimiserConfig(name=name, weight_decay=given, betas=(0.8, 0.9), eps=1e-5)
    optimiser = make_optimiser(model, config)
    assert type(optimiser) is {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}[name]
    assert (optimiser.defaults["betas"], optimiser.defaults["eps"]) == ((0.8, 0.9), 1e-5)
    assert [group["weight_decay"] for group in optimiser.param_groups][:2] == [expected, 0.0]
    # Matrices decay, and nothing else.
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, kept, *orthogonal = ({names[id(p)] for p in group["params"]} for group in optimiser.param_groups)
    if name == "muon":
        # Those of a single row or column are not for Muon.
        assert {min(model.get_parameter(name).shape) for name in decayed} <= {1}
        assert optimiser.param_groups[2]["weight_decay"] == expected
        decayed |= orthogonal[0]
    assert decayed | kept == set(names.values())
    assert not decayed & kept
    assert "encoder.layers.0.ffn.0.weight" in decayed
    assert {"embedding.element.weight", "embedding.tag.weight", "encoder.norm.weight"} <= kept
    assert all("embedding" in name or model.get_parameter(name).dim() < 2 for name in kept)


class Watch(Callback):
    """Recomputes by hand what the task does at every step."""

    def __init__(self, per):
        self.per, self.rates, self.losses, self.expected = per, [], [], []

    def on_train_start(self, trainer, pl_module):
        self.average = [p.detach().clone() for p in pl_module.model.parameters()]
        sizes = trainer.datamodule.train_structures.n_atoms
        self.mean_size = float(sizes.mean())

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        model, step = pl_module.model, trainer.global_step
        with torch.no_grad():
            out = model(batch)
        weights = self.mean_size / torch.bincount(batch.batch) if self.per == "atom" else 1.0
        energy = float(((out.energy - batch.y_relaxed).abs() * weights).mean() / model.standardiser.std)
        moved = (batch.positions_relaxed - batch.positions).to(out.displacement.dtype)
        error = (out.displacement - moved)[~batch.fixed].abs().mean() / float(model.standardiser.displacement_std)
        self.expected.append(energy + auxiliary_weight(step, 12, 15.0, 1.0) * float(error))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))
        n = trainer.global_step
        decay = min(0.9, (1 + n) / (10 + n))
        for kept, new in zip(self.average, pl_module.model.parameters(), strict=True):
            kept.mul_(decay).add_((1 - decay) * new.detach())


@pytest.mark.parametrize("per", ["structure", "atom"])
def test_loss_rate_and_average_step_by_step(per, make_config, tmp_path):
    watch = Watch(per)
    go(make_config(**{"optimiser.schedule": "linear", "loss.energy_per": per}), tmp_path / "run", watch)
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


def test_the_force_loss_counts_lengths():
    vectors = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = _norms(vectors)
    assert loss.tolist() == pytest.approx([5.0, 0.0], abs=1e-7)
    loss.sum().backward()
    assert bool(torch.isfinite(vectors.grad).all())


def test_without_average_the_weights_themselves_are_saved(make_config, tmp_path):
    class Keep(Callback):
        def on_fit_end(self, trainer, pl_module):
            self.weights = {name: value.clone() for name, value in pl_module.model.state_dict().items()}
            assert pl_module.average is None

    keep = Keep()
    go(make_config(**QUICK, **{"optimiser.ema_decay": 0.0}), tmp_path / "run", keep)
    saved = load_model(tmp_path / "run" / "last.safetensors").model.state_dict()
    assert all(torch.equal(value, keep.weights[name]) for name, value in saved.items())


@pytest.mark.parametrize("clip", [0.0, 1e-4, 5.0])
def test_gradients_are_clipped_and_explosions_are_said(clip, make_config, tmp_path):
    class Norm(Callback):
        largest = 0.0

        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            norms = [p.grad.norm() for p in pl_module.model.parameters() if p.grad is not None]
            if norms:
                self.largest = max(self.largest, float(torch.stack(norms).norm()))

    lines, norm = [], Norm()
    config = make_config(**{"optimiser.clip_norm": clip})
    train(config, tmp_path / "run", say=lines.append, callbacks=[norm])
    said = [line for line in lines if "gradients explode" in line]
    if clip == 1e-4:
        assert norm.largest <= 1.01e-4
        assert [f"in 6 of 6 steps of epoch {epoch}" in line for epoch, line in enumerate(said, 1)] == [True, True]
    else:
        assert norm.largest > 0.1
        assert said == []
