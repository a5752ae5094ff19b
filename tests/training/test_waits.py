"""A step of a run waits for no number from the device, and costs what the bare step costs and little more."""

from contextlib import ExitStack

import pytest
from lightning.pytorch.callbacks import Callback

from molflt.training.task import EnergyTask
from scripts.benchmarks.operators import Count, counting
from tests.training.runs import go, with_forces


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
