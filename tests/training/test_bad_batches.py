"""Batches whose loss or gradient is not a number, or that do not fit into memory."""

import copy
import json

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from molflt.errors import InputError
from molflt.model.energy import EnergyModel
from molflt.training.run import train
from molflt.training.run_dir import BAD_BATCHES, forget_bad_batches, read_records
from molflt.training.task import LOOK_EVERY, MOST_IN_A_ROW
from tests.training.runs import QUICK, go


class Spoil(Callback):
    """Makes the loss or the gradient of some steps NaN or infinite, and keeps what the model was before and after."""

    def __init__(self, what, steps):
        self.what, self.steps, self.sids, self.states = what, steps, [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = self.state(trainer, pl_module)
        if trainer.global_step not in self.steps:
            return
        self.sids.append(batch.sid.tolist())
        if self.what == "loss":
            batch.y_relaxed = batch.y_relaxed.clone()
            batch.y_relaxed[0] = torch.inf
        else:
            parameter = pl_module.model.energy_head.factor
            handle = parameter.register_hook(lambda gradient: (handle.remove(), gradient * torch.nan)[1])

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.states.append((self.before, self.state(trainer, pl_module)))

    @staticmethod
    def state(trainer, pl_module):
        moments = trainer.optimizers[0].state_dict()["state"]
        return copy.deepcopy([pl_module.model.state_dict(), pl_module.average.state_dict(), moments])


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return all(map(same, a, b)) if isinstance(a, list) else torch.equal(a, b)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_bad_batch_stops_the_run_and_is_written_down(what, make_config, tmp_path):
    spoil = Spoil(what, range(3, 4))
    with pytest.raises(InputError, match=rf"the {what} became .*step 3.*{BAD_BATCHES}"):
        go(make_config(), tmp_path / "run", spoil)
    (line,) = (tmp_path / "run" / BAD_BATCHES).read_text(encoding="utf-8").splitlines()
    found = json.loads(line)
    assert [structure["sid"] for structure in found["structures"]] == spoil.sids[0]
    assert (found["step"], found["rank"], found["seed"], found["epoch"]) == (3, 0, 3, 1)
    assert (found["structures"][0]["label"] == "inf") == (what == "loss")


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_batch_left_out_changes_nothing(what, make_config, tmp_path):
    """Neither weights, nor their average, nor the optimiser's moments; the run goes on and says so."""
    spoil, lines = Spoil(what, range(2, 4)), []
    train(make_config(**{"trainer.on_bad_batch": "skip"}), tmp_path / "run", say=lines.append, callbacks=[spoil])
    unchanged = [step for step, (before, after) in enumerate(spoil.states) if same(before, after)]
    assert unchanged == [2, 3]
    assert sum("2 batches left out" in line for line in lines) == 1
    assert len((tmp_path / "run" / BAD_BATCHES).read_text(encoding="utf-8").splitlines()) == 2
    records = read_records(tmp_path / "run")
    assert len(records) == 2
    assert all(0 < record["train/grad_norm"] <= record["train/grad_norm_max"] for record in records)


def test_nothing_but_bad_batches_stops(make_config, tmp_path):
    config = make_config(**{**QUICK, "trainer.on_bad_batch": "skip", "trainer.max_epochs": 100})
    with pytest.raises(InputError, match=f"{MOST_IN_A_ROW} batches in a row"):
        go(config, tmp_path / "run", Spoil("loss", range(2, 10**6)))


def test_flags_are_read_now_and_then_within_an_epoch(make_config, tmp_path, monkeypatch):
    """Batches until then are trained on as if the bad one had not been there."""
    assert LOOK_EVERY > 6
    monkeypatch.setattr("molflt.training.task.LOOK_EVERY", 4)
    spoil = Spoil("loss", range(1, 2))
    with pytest.raises(InputError, match="in epoch 1, step 1"):
        go(make_config(), tmp_path / "run", spoil)
    assert [same(before, after) for before, after in spoil.states] == [False, True, False, False]


def test_lines_on_repeated_epochs_are_forgotten(tmp_path):
    path = tmp_path / BAD_BATCHES
    forget_bad_batches(tmp_path, 1)
    assert not path.exists()
    lines = [f'{{"epoch": {epoch}, "step": {step}}}\n' for epoch, step in [(1, 4), (2, 8), (3, 9)]]
    path.write_text("".join(lines) + '{"epoch": 2, "st', encoding="utf-8")
    forget_bad_batches(tmp_path, 3)
    assert path.read_text(encoding="utf-8") == "".join(lines[:2])


def _gpu():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


# More than an address space holds: the errors are the allocators' own.
FAIL = {"gpu": _gpu, "numpy": lambda: np.empty(1 << 50), "cpu": lambda: torch.empty(1 << 50)}


class Full(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, fail):
        ctx.fail = fail
        return value.clone()

    @staticmethod
    def backward(ctx, *gradients):
        ctx.fail()


def room_for(n, monkeypatch, where="forward", kind="gpu"):
    """From now on, a model runs out of memory with more than so many structures."""
    forward = EnergyModel.forward

    def limited(self, batch):
        too_large = batch.num_graphs > n and self.training == (where != "validation")
        if too_large and where != "backward":
            FAIL[kind]()
        output = forward(self, batch)
        if too_large:
            output.energy = Full.apply(output.energy, FAIL[kind])
        return output

    monkeypatch.setattr(EnergyModel, "forward", limited)


@pytest.mark.parametrize(
    ("where", "kind"), [("forward", "numpy"), ("forward", "cpu"), ("backward", "gpu"), ("validation", "gpu")]
)
def test_the_key_to_lower_is_named(where, kind, make_config, tmp_path, monkeypatch):
    room_for(1, monkeypatch, where, kind)
    message = r"out of memory with a batch of \d+ structures \(\d+ atoms\); lower data.max_atoms, which is 60"
    with pytest.raises(InputError, match=message):
        go(make_config(**{"data.max_atoms": 60}), tmp_path / "run")


def test_one_structure_too_large_is_named(make_config, tmp_path, monkeypatch):
    room_for(0, monkeypatch)
    with pytest.raises(InputError, match=r"set0-\d\d: out of memory with this structure alone \(\d+ atoms\)"):
        go(make_config(**{"data.max_atoms": 1}), tmp_path / "run")
