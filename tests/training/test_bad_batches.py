"""A loss or a gradient that is no number: written down, and left out where that is wanted; runs that stay alone."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from molflt.training.bad_batches import FILE, MOST_IN_A_ROW
from pydantic import ValidationError

from molflt.errors import InputError
from molflt.training.config import TrainConfig, TrainerConfig
from molflt.training.run import train
from molflt.training.run_directory import read_records

MakeConfig = Callable[..., TrainConfig]


def quiet(line: str) -> None:
    pass


class Spoil(Callback):
    """Makes the loss or the gradient of some steps no number, and keeps what the model was before and after."""

    def __init__(self, what: str, steps: range) -> None:
        self.what, self.steps = what, steps
        self.sids: list[list[int]] = []
        self.states: list[tuple[Any, Any]] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
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

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.states.append((self.before, self.state(trainer, pl_module)))

    @staticmethod
    def state(trainer: lightning.Trainer, pl_module: Any) -> Any:
        moments = trainer.optimizers[0].state_dict()["state"]
        return copy.deepcopy([pl_module.model.state_dict(), pl_module.average.state_dict(), moments])


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return all(map(same, a, b))
    return torch.equal(a, b)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_bad_batch_stops_the_run_and_is_written_down(what: str, make_config: MakeConfig, tmp_path: Path) -> None:
    spoil = Spoil(what, range(3, 4))
    with pytest.raises(InputError, match=rf"the {what} became .*step 3.*{FILE}"):
        train(make_config(), tmp_path / "run", say=quiet, callbacks=[spoil])
    (line,) = (tmp_path / "run" / FILE).read_text().splitlines()
    found = json.loads(line)
    assert [structure["sid"] for structure in found["structures"]] == spoil.sids[0]
    assert (found["step"], found["rank"]) == (3, 0)
    assert found["structures"][0]["label"] == ("inf" if what == "loss" else found["structures"][0]["label"])


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_batch_left_out_changes_nothing(what: str, make_config: MakeConfig, tmp_path: Path) -> None:
    """Neither weights, nor their average, nor the optimiser's moments; the run goes on and says so."""
    spoil, lines = Spoil(what, range(2, 4)), []
    config = make_config(**{"trainer.on_bad_batch": "skip", "trainer.max_epochs": 2})
    train(config, tmp_path / "run", say=lines.append, callbacks=[spoil])
    changed = [not same(before, after) for before, after in spoil.states]
    assert [step for step, c in enumerate(changed) if not c] == [2, 3]
    assert sum("2 batches left out" in line for line in lines) == 1
    assert len((tmp_path / "run" / FILE).read_text().splitlines()) == 2
    records = read_records(tmp_path / "run")
    assert len(records) == 2
    assert all(0 < record["train/grad_norm"] <= record["train/grad_norm_max"] for record in records)


def test_nothing_but_bad_batches_stops(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(**{"trainer.on_bad_batch": "skip", "trainer.max_epochs": 100})
    with pytest.raises(InputError, match=f"{MOST_IN_A_ROW} batches in a row"):
        train(config, tmp_path / "run", say=quiet, callbacks=[Spoil("loss", range(2, 10**6))])


def test_left_out_in_one_process_only() -> None:
    with pytest.raises(ValidationError, match="on_bad_batch"):
        TrainerConfig(on_bad_batch="skip", devices=2)


def test_two_runs_in_one_folder(make_config: MakeConfig, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    run = tmp_path / "run"
    train(make_config(**{"trainer.max_epochs": 1}), run, say=quiet)
    handle = os.open(run, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="another process is training there"):
        train(make_config(**{"trainer.max_epochs": 1}), run, resume=True, say=quiet)
    os.close(handle)
    train(make_config(**{"trainer.max_epochs": 1}), run, resume=True, say=quiet)


@pytest.mark.parametrize(("clip", "warned"), [(1e-4, True), (0.0, False), (5.0, False)])
def test_exploding_gradients_are_said(clip: float, warned: bool, make_config: MakeConfig, tmp_path: Path) -> None:
    lines: list[str] = []
    config = make_config(**{"optimiser.clip_norm": clip, "trainer.max_epochs": 2})
    train(config, tmp_path / "run", say=lines.append)
    said = [line for line in lines if "gradients explode" in line]
    # Once for each of the epochs, of six steps.
    assert [f"in 6 of 6 steps of epoch {epoch}" in line for epoch, line in enumerate(said, 1)] == [True] * 2 * warned
