"""A loader process that is killed, and one that meets a mistake of the user's."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from molflt.errors import InputError
from molflt.training.config import TrainConfig
from molflt.training.config_file import to_yaml
from molflt.training.datasets import NoisyDataset
from molflt.training.recorder import read_records
from molflt.training.run import train

MakeConfig = Callable[..., TrainConfig]
WORKERS = {"loss.noisy_nodes": True, "data.num_workers": 1, "trainer.max_epochs": 2}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")


def test_a_killed_loader_is_said_and_the_run_goes_on_later(
    molflt: Callable[..., Any], make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: NoisyDataset, index: int) -> Any:
        if self.epoch == 1:
            assert os.getpid() != first
            os.kill(os.getpid(), signal.SIGKILL)
        return get(self, index)

    first, get = os.getpid(), NoisyDataset.__getitem__
    monkeypatch.setattr(NoisyDataset, "__getitem__", killed)
    (tmp_path / "config.yaml").write_text(to_yaml(make_config(**WORKERS)))
    command = ["train", tmp_path / "config.yaml", "--out", tmp_path / "run", "--no-report", "--resume", "auto"]
    lost = molflt(*command)
    assert lost.status == 1, lost
    assert "a loader process was killed" in lost.err
    assert "--resume auto" in lost.err
    assert "Traceback" not in lost.err + lost.out
    assert len(read_records(tmp_path / "run")) == 1
    monkeypatch.undo()
    train(make_config(**WORKERS), tmp_path / "run", resume=True, say=lambda line: None)
    train(make_config(**WORKERS), tmp_path / "whole", say=lambda line: None)
    assert read_records(tmp_path / "run") == read_records(tmp_path / "whole")


def test_a_mistake_met_in_a_loader_is_said_without_its_traceback(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: NoisyDataset, index: int) -> Any:
        raise InputError("train.lmdb#3: atoms 0 and 1 coincide; remove one of them")

    monkeypatch.setattr(NoisyDataset, "__getitem__", refuse)
    with pytest.raises(InputError) as error:
        train(make_config(**WORKERS), tmp_path / "run", say=lambda line: None)
    assert str(error.value) == "train.lmdb#3: atoms 0 and 1 coincide; remove one of them"
