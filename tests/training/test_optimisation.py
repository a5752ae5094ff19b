"""Optimisers, schedules and moving average against closed forms and torch's own, and together in a run."""

import copy
import math
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.model.elements import lend_vectors
from molflt.model.energy import EnergyModel
from molflt.model.file import load_model
from molflt.training.config import OptimiserConfig
from molflt.training.optimisation import (
    Muon,
    auxiliary_weight,
    learning_rate_factor,
    make_optimiser,
    orthogonal_factor,
)
from molflt.training.run import train
from molflt.training.task import EnergyTask
from molflt.training.training_set import TrainingSet
from scripts.benchmarks.operators import Count, counting
from tests.training.runs import QUICK, go, with_forces


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


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [("muon", None, 0.1), ("adamw", None, 0.1), ("adam", None, 0.0), ("adamw", 0.0, 0.0), ("adam", 0.02, 0.02)],
)
def test_optimiser(name, given, expected, make_config):
    """Adam has no decay by default: there it is a penalty in the gradient, of another size."""
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
    # The average is what is saved, with vectors for elements that were not trained on.
    saved = load_model(tmp_path / "run" / "last.safetensors")
    expected = copy.deepcopy(saved.model)
    for kept, parameter in zip(watch.average, expected.parameters(), strict=True):
        parameter.data.copy_(kept)
    lend_vectors(expected, saved.metadata.elements)
    for parameter, stored in zip(expected.parameters(), saved.model.parameters(), strict=True):
        torch.testing.assert_close(parameter, stored, rtol=1e-5, atol=1e-6)


def test_the_force_loss_counts_lengths():
    vectors = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    loss = TrainingSet.force_loss(SimpleNamespace(force_std=2.0), vectors, squared=False)
    assert loss.tolist() == pytest.approx([2.5, 0.0], abs=1e-7)
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


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon of its own")
def test_steps_are_those_of_torch():
    """Matrices against torch's Muon, which iterates in bfloat16; the rest against AdamW, exactly."""
    assert not orthogonal_factor(torch.zeros(1, 3, 4)).any()
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((8, 24), (8, 24), (24, 8), (24,), (1, 24))]
    theirs = copy.deepcopy(ours)
    common = {"lr": 0.03, "weight_decay": 0.1}
    adam = {"betas": (0.9, 0.98), "eps": 1e-6}
    optimiser = Muon([{"params": ours[3:]}, {"params": ours[:3], "orthogonal": True}], **common, **adam)
    oracles = [
        torch.optim.Muon(theirs[:3], **common, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(theirs[3:], **common, **adam),
    ]
    start = [p.detach().clone() for p in ours]
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        for each in (optimiser, *oracles):
            each.step()
    for k, (a, b, before) in enumerate(zip(ours, theirs, start, strict=True)):
        moved = (b - before).detach().norm()
        assert float((a - b).detach().norm() / moved) < (0.02 if k < 3 else 1e-6)


class Steps(Callback):
    """Counts from the first hook of every step to the last, where the moving average has moved."""

    def __init__(self, monkeypatch):
        self.counts = []
        self.stack = ExitStack()
        last = EnergyTask.on_train_batch_end

        def end(task, *arguments):
            last(task, *arguments)
            self.stack.close()

        monkeypatch.setattr(EnergyTask, "on_train_batch_end", end)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.counts.append(Count())
        self.stack.enter_context(counting(self.counts[-1]))


@pytest.mark.parametrize("forces", [False, True])
def test_only_steps_that_look_wait(forces, make_config, tmp_path, monkeypatch):
    monkeypatch.setattr("molflt.training.task.LOOK_EVERY", 4)
    changes = {"optimiser.name": "muon", "trainer.max_epochs": 1, "trainer.on_bad_batch": "skip"}
    if forces:
        path = with_forces(make_config().data.train, tmp_path / "forces.extxyz")
        changes |= {"data.target": "energy", "loss.force_weight": 3.0, "data.train": path, "data.val": path}
    steps = Steps(monkeypatch)
    go(make_config(**changes), tmp_path / "run", steps)
    assert len(steps.counts) > 5
    waits = [dict(count.waits) for count in steps.counts]
    assert [number for number, found in enumerate(waits) if found] == [3], waits
