"""A loader process that is killed, and one that meets a mistake of the user's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from molflt.errors import InputError
from molflt.training.config import TrainConfig
from molflt.training.config_file import to_yaml
from molflt.training.data_module import NoisyDataset
from molflt.training.run import train
from molflt.training.run_directory import read_records
from tests.conftest import REPOSITORY

MakeConfig = Callable[..., TrainConfig]
WORKERS = {"loss.noisy_nodes": True, "data.num_workers": 1, "trainer.max_epochs": 2}


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")


def test_a_killed_loader_is_said(make_config: MakeConfig, tmp_path: Path) -> None:
    """From outside, again and again until the run has noticed: a loader whose work is done is not missed."""
    run, long = tmp_path / "run", {**WORKERS, "trainer.max_epochs": 500}
    (tmp_path / "config.yaml").write_text(to_yaml(make_config(**long)))
    command = [sys.executable, "-m", "molflt.cli.main", "train", str(tmp_path / "config.yaml"), "--out", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as lost:
        while lost.poll() is None:
            children = Path(f"/proc/{lost.pid}/task/{lost.pid}/children").read_text().split()
            if children and (run / "last.ckpt").exists():
                with suppress(ProcessLookupError):
                    os.kill(int(children[-1]), signal.SIGKILL)
            time.sleep(0.2)
        out, err = lost.communicate()
    assert lost.returncode == 1, err
    assert "a loader process was killed" in err
    assert "--resume auto" in err
    assert "Traceback" not in err + out


def test_a_run_whose_loader_was_killed_goes_on_as_if_not(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: NoisyDataset, index: int) -> Any:
        if self.epoch == 1:
            assert os.getpid() != first
            os.kill(os.getpid(), signal.SIGKILL)
        return get(self, index)

    first, get = os.getpid(), NoisyDataset.__getitem__
    monkeypatch.setattr(NoisyDataset, "__getitem__", killed)
    with pytest.raises(ChildProcessError, match="a loader process was killed"):
        train(make_config(**WORKERS), tmp_path / "run", say=lambda line: None)
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
