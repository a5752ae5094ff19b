"""Batches that do not fit into memory: the same gradient from their parts."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.errors import InputError, out_of_memory
from molflt.model.energy_model import EnergyModel
from molflt.training.run import train
from molflt.training.run_directory import read_records
from tests.training.runs import QUICK, go, with_forces


def _gpu():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


# More than an address space holds: the errors are the allocators' own.
FAIL = {"gpu": _gpu, "numpy": lambda: np.empty(1 << 50), "cpu": lambda: torch.empty(1 << 50)}


@pytest.mark.parametrize("kind", FAIL)
def test_how_allocators_say_it(kind):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        FAIL[kind]()
    assert out_of_memory(caught.value)
    assert not out_of_memory(ValueError("out of memory"))


class Gradients(Callback):
    """Keeps the gradients of every step."""

    def __init__(self):
        self.found = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.found.append([p.grad.clone() for p in pl_module.model.parameters() if p.grad is not None])


class Marker(torch.autograd.Function):
    """Raises in the backward pass, and is seen to live as long as the graph does."""

    @staticmethod
    def forward(ctx, value, fail, alive):
        ctx.held = torch.zeros(1)
        alive.append(weakref.ref(ctx.held))
        ctx.fail = fail
        return value.clone()

    @staticmethod
    def backward(ctx, *gradients):
        ctx.fail()


def room_for(n, monkeypatch, where="forward", kind="gpu"):
    """From now on, training runs out of memory with more than so many structures; gives markers of dead graphs."""
    forward, alive = EnergyModel.forward, []

    def limited(self, batch):
        assert not any(reference() is not None for reference in alive), "the graph that did not fit is still there"
        too_large = batch.num_graphs > n and self.training
        if too_large and where == "forward":
            FAIL[kind]()
        output = forward(self, batch)
        if too_large:
            output.energy = Marker.apply(output.energy, FAIL[kind], alive)
        return output

    monkeypatch.setattr(EnergyModel, "forward", limited)
    return alive


@pytest.mark.parametrize(
    ("where", "kind", "forces"), [("forward", "numpy", False), ("forward", "cpu", True), ("backward", "gpu", False)]
)
def test_the_same_gradient(where, kind, forces, make_config, tmp_path, monkeypatch):
    changes = {"trainer.max_epochs": 1, "trainer.precision": "64-true", "data.max_atoms": 60}
    if forces:
        path = with_forces(make_config().data.train, tmp_path / "forces.extxyz")
        changes |= {"data.target": "energy", "loss.force_weight": 3.0, "loss.energy_per": "atom"}
        changes |= {"data.train": path, "data.val": path}
    config = make_config(**changes)
    whole, parts, lines = Gradients(), Gradients(), []
    go(config, tmp_path / "whole", whole)
    alive = room_for(1, monkeypatch, where, kind)
    train(config, tmp_path / "parts", say=lines.append, callbacks=[parts])
    assert len(parts.found) == len(whole.found) > 2
    for some, others in zip(parts.found, whole.found, strict=True):
        for mine, theirs in zip(some, others, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
    assert sum("out of memory" in line for line in lines) == 1
    (record,), (expected,) = read_records(tmp_path / "parts"), read_records(tmp_path / "whole")
    assert record == pytest.approx(expected, rel=1e-6)
    assert bool(alive) == (where == "backward")


def test_one_structure_too_large_is_named(make_config, tmp_path, monkeypatch):
    for where in ("forward", "backward"):
        room_for(0, monkeypatch, where)
        with pytest.raises(InputError, match=r"set0-\d\d: out of memory with this structure alone \(\d+ atoms\)"):
            go(make_config(), tmp_path / where)
        monkeypatch.undo()


def test_validation_in_parts(make_config, tmp_path, monkeypatch):
    def validating(self, batch):
        if batch.num_graphs > 1 and not torch.is_grad_enabled():
            raise MemoryError
        return forward(self, batch)

    go(make_config(**QUICK), tmp_path / "whole")
    forward = EnergyModel.forward
    monkeypatch.setattr(EnergyModel, "forward", validating)
    go(make_config(**QUICK), tmp_path / "parts")
    (mine,), (expected,) = read_records(tmp_path / "parts"), read_records(tmp_path / "whole")
    assert mine == pytest.approx(expected, rel=1e-5)


def test_other_errors_are_not_taken_for_it(make_config, tmp_path, monkeypatch):
    def broken(self, batch):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(EnergyModel, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        go(make_config(), tmp_path / "run")
