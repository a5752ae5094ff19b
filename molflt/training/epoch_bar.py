"""A bar for the epoch that runs; the lines of the finished ones stay above it."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class EpochBar(Callback):
    """Shows an epoch's batches on standard error, and vanishes before the epoch's line is printed.

    Lightning's own bar stays, and lines printed by others end up on its row. Belongs before the recorder in the
    list of callbacks.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start a bar."""
        if not trainer.is_global_zero:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        description = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
        self._progress.add_task(description, total=trainer.num_training_batches)
        self._progress.start()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """One batch further."""
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Say what the wait is for."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description="validating")

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Make room for the epoch's line."""
        self._stop()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back."""
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
