"""What a run shows while it runs: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import pytest
from lightning.pytorch.callbacks import Callback
from molflt.training.epoch_bar import EpochBar

from molflt.training.config import TrainConfig
from molflt.training.run import train


def test_bar_on_a_terminal(
    make_config: Callable[..., TrainConfig], tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Any, Any]] = []
    bars: list[EpochBar] = []

    class Watch(Callback):
        def on_fit_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
            bars.extend(callback for callback in trainer.callbacks if isinstance(callback, EpochBar))

        def on_validation_epoch_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
            task = bars[0]._progress.tasks[0]  # type: ignore[union-attr]
            seen.append((task.description, task.completed, task.total))

    lines: list[tuple[str, bool]] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    # No bar may be on the screen when a line is printed.
    train(
        make_config(),
        tmp_path / "run",
        say=lambda line: lines.append((line, bool(bars) and bars[0]._progress is not None)),
        callbacks=[Watch()],
    )
    assert seen == [("validating", 6, 6)] * 2
    assert [line[:5] for line, _ in lines[1:]] == ["epoch", "epoch"]
    assert not any(bar for _, bar in lines)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (tiny_run / "metrics.jsonl").read_bytes()


def test_bar_goes_away_with_an_interruption(
    make_config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[EpochBar] = []

    class Interrupt(Callback):
        def on_train_batch_start(self, trainer: lightning.Trainer, *rest: Any) -> None:
            bars.extend(callback for callback in trainer.callbacks if isinstance(callback, EpochBar))
            assert bars[0]._progress is not None
            raise KeyboardInterrupt

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        train(make_config(), tmp_path / "run", say=lambda line: None, callbacks=[Interrupt()])
    assert bars[0]._progress is None


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_between_epochs_where_there_is_no_bar(
    terminal: bool, make_config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("molflt.training.recorder.HEARTBEAT_SECONDS", -1.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    lines: list[str] = []
    train(make_config(**{"trainer.max_epochs": 1}), tmp_path / "run", say=lines.append)
    signs = [line for line in lines if "batch" in line]
    assert len(signs) == (0 if terminal else 6)
    if not terminal:
        assert signs[2].startswith("epoch 1: batch 3 of 6, loss ")
