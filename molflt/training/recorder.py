"""Signs of life of a run, its records and model files after validations, and its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning
from lightning.pytorch.callbacks import Callback
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from molflt.data.progress import console, visible
from molflt.errors import InputError
from molflt.model.compiled import n_compilations
from molflt.model.elements import lend_vectors
from molflt.model.file import ModelMetadata, read_metadata, save_model
from molflt.prediction.members import BEST
from molflt.training.config import TrainerConfig
from molflt.training.optimisation import warmup
from molflt.training.run_dir import BAD_BATCHES, LAST, epoch_file, forget_bad_batches, write_records
from molflt.training.task import EXPLODING, EnergyTask, diverged

HEARTBEAT_SECONDS = 30.0


@dataclass(frozen=True)
class Score:
    """The error by which an epoch is judged.

    Attributes:
        kind: energy, forces, or both: the sum of the mean absolute errors of energies and of force components, each
            over what it would be without a model.
        split: the validation split.
        energy_scale: eV, the mean absolute deviation of its labels.
        force_scale: eV/Å, the root mean square component of the training set's forces.
    """

    kind: Literal["energy", "forces", "both"]
    split: str
    energy_scale: float
    force_scale: float

    def __call__(self, metrics: Mapping[str, float]) -> float:
        """The error of an epoch with these metrics."""
        energy = metrics[f"{self.split}/energy_mae"]
        if self.kind == "energy":
            return energy
        forces = metrics[f"{self.split}/force_mae"]
        return forces if self.kind == "forces" else energy / (self.energy_scale or 1.0) + forces / self.force_scale


class RunRecorder(Callback):
    """Writes metrics and model files, says how the run goes, and decides when it is over.

    After every validation it writes metrics.jsonl, metrics.csv, last.safetensors and, when the first split has
    improved, best.safetensors. The last epoch is validated whatever ``val_every`` says, and ``patience`` counts
    validations (Lightning's own early stop counts epochs, and forgets on resuming that it had stopped).

    On a terminal there is a bar for the epoch, gone before the epoch's line is printed: Lightning's own bar stays,
    and lines printed by others end up on its row. Elsewhere there is a line now and then.

    Args:
        metadata: of the model; validation metrics and epoch are filled in here.
        mad: mean absolute deviation of the labels of each split, eV.
        score: what an epoch is judged by: the smaller the better.
        say: prints a line.
    """

    def __init__(
        self,
        config: TrainerConfig,
        run_dir: Path,
        metadata: ModelMetadata,
        mad: dict[str, float],
        score: Score,
        say: Callable[[str], None],
    ) -> None:
        self.run_dir, self.metadata, self.mad, self.score, self.say = run_dir, metadata, mad, score, say
        self.patience, self.keep_last = config.patience, config.keep_last
        self._n_epochs = 0
        self._records: list[dict[str, Any]] = []
        self._validated = False
        self._last_sign = time.monotonic()
        self._bar: Progress | None = None

    @property
    def best(self) -> dict[str, Any] | None:
        """The record of the best epoch, if there is one yet."""
        return next((record for record in self._records if record["epoch"] == self._records[-1]["best_epoch"]), None)

    def state_dict(self) -> dict[str, Any]:
        """Keep the records: metrics.jsonl may have been written since, or damaged."""
        return {"records": self._records}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._records = list(state_dict["records"])

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Learn how far the run had come; Lightning calls this before it loads the state."""
        self._n_epochs = int(checkpoint["epoch"]) + 1

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Drop records of epochs that are about to be repeated.

        Raises:
            InputError: the best model, or one that is kept to average, is damaged; they may not be written again.
        """
        # Later ones are about to be written again.
        kept = (path.name for path in sorted(self.run_dir.glob(epoch_file("[0-9]*"))))
        self.check_models(*(name for name in kept if name <= epoch_file(self._n_epochs - 1)))
        if trainer.is_global_zero:
            forget_bad_batches(self.run_dir, self._n_epochs + 1)
            write_records(self.run_dir, self._records)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Stay stopped if the run had stopped."""
        if self._out_of_patience():
            trainer.should_stop = True
        assert isinstance(pl_module, EnergyTask)
        asked, total = pl_module.config.optimiser.warmup_steps, int(trainer.estimated_stepping_batches)
        if asked > (taken := warmup(asked, total)):
            self.say(
                f"Warning: the whole run has {total:,} steps, so the warm-up takes {taken:,} instead of "
                f"optimiser.warmup_steps={asked:,}; for more steps raise trainer.max_epochs or lower data.max_atoms"
            )

    def on_train_epoch_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Validate the last epoch in any case: its weights are what the run was for."""
        self._validated = False
        if trainer.current_epoch + 1 == trainer.max_epochs:
            trainer.check_val_every_n_epoch = 1
        if trainer.is_global_zero and visible():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console(), transient=True)
            description = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self._bar.add_task(description, total=trainer.num_training_batches)
            self._bar.start()

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Give a sign of life; at ``max_steps``, stop and validate."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        elif time.monotonic() - self._last_sign > HEARTBEAT_SECONDS:
            self._last_sign = time.monotonic()
            total, loss = trainer.num_training_batches, float(outputs["loss"])
            self.say(f"epoch {trainer.current_epoch + 1}: batch {batch_idx + 1} of {total}, loss {loss:.4f}")
        if 0 < trainer.max_steps <= trainer.global_step:
            trainer.check_val_every_n_epoch = 1
            trainer.should_stop = True

    def on_validation_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Make the model ready for elements that it does not learn, and say what the wait is for."""
        assert isinstance(pl_module, EnergyTask)
        lend_vectors(pl_module.evaluated_model, self.metadata.trained_elements)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description="validating")

    def on_validation_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Note that the metrics are those of this epoch."""
        self._validated = True

    def on_train_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Record the epoch if it was validated.

        Raises:
            InputError: a metric is not a number; the files of the last good epoch stay.
        """
        assert isinstance(pl_module, EnergyTask)
        self._remove_bar()
        pl_module.read_epoch()
        self._say_what_went_wrong(trainer, pl_module)
        if pl_module.model.compiled is not None and trainer.current_epoch == 0:
            self.say(f"graphs compiled in the first epoch: {n_compilations()}")
        if not self._validated:
            return
        metrics = pl_module.validated | pl_module.trained
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise InputError(diverged(name, value, trainer.current_epoch + 1, trainer.global_step))
        best, epoch = self.best, trainer.current_epoch + 1
        improved = best is None or self.score(metrics) < self.score(best)
        record = {"epoch": epoch, "step": trainer.global_step, **metrics}
        record["best_epoch"] = epoch if best is None or improved else best["epoch"]
        self._records = [*self._records, record]
        if trainer.is_global_zero:
            write_records(self.run_dir, self._records)
            self._save_models(pl_module, trainer.current_epoch, metrics, improved)
            self.say(self._line(trainer, metrics, improved))
        if self._out_of_patience():
            self.say(f"no improvement in {self.patience} validations: stopping (trainer.patience)")
            trainer.should_stop = True
        self._last_sign = time.monotonic()

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back."""
        self._remove_bar()

    def check_models(self, *names: str) -> None:
        """Check that the best model, and those of other names, are whole and not too old.

        Raises:
            InputError: one is damaged.
        """
        oldest = dict.fromkeys(names, 0) | ({BEST: self.best["epoch"] - 1} if self.best else {})
        for name, epoch in oldest.items():
            path = self.run_dir / name
            try:
                fine = read_metadata(path).epoch >= epoch
            except InputError:
                fine = False
            if not fine:
                needed = name in (BEST, LAST)
                remedy = "start again with another '--out'" if needed else "remove it and resume without it"
                raise InputError(
                    f"{path}: is missing, damaged or older than the run, which does not write it again; {remedy}, or "
                    f"remove {self.run_dir} and start again"
                )

    def _save_models(self, task: EnergyTask, epoch: int, metrics: dict[str, float], improved: bool) -> None:
        validation = {k: v for k, v in metrics.items() if not k.startswith("train/")}
        metadata = self.metadata.model_copy(update={"validation": validation, "epoch": epoch})
        for name in [LAST, *([BEST] if improved else []), *([epoch_file(epoch)] if self.keep_last else [])]:
            save_model(self.run_dir / name, task.evaluated_model, metadata)
        if self.keep_last:
            for old in sorted(self.run_dir.glob(epoch_file("*")))[: -self.keep_last]:
                old.unlink()

    def _say_what_went_wrong(self, trainer: lightning.Trainer, task: EnergyTask) -> None:
        if task.n_left_out:
            path = self.run_dir / BAD_BATCHES
            self.say(f"{task.n_left_out} batches left out, because their loss or gradient was not a number: {path}")
        if 2 * task.n_exploding > task.n_steps:
            self.say(
                f"gradients explode: longer than {EXPLODING:g} times what they are clipped to in {task.n_exploding} "
                f"of {task.n_steps} steps of epoch {trainer.current_epoch + 1}; if errors do not fall, lower "
                "optimiser.lr, or raise optimiser.warmup_steps or optimiser.clip_norm"
            )
        task.n_left_out = task.n_steps = task.n_exploding = 0

    def _out_of_patience(self) -> bool:
        best = self.best
        later = sum(record["epoch"] > best["epoch"] for record in self._records) if best else 0
        return 0 < self.patience <= later

    def _remove_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _line(self, trainer: lightning.Trainer, metrics: dict[str, float], improved: bool) -> str:
        parts = [f"epoch {trainer.current_epoch + 1:>4}/{trainer.max_epochs}"]
        parts.append(f"train {metrics.get('train/energy_mae', math.nan):.4f} eV")
        for name, mad in self.mad.items():
            mae = metrics[f"{name}/energy_mae"]
            # Other splits may hold nearly equal labels, whose deviation says nothing.
            share = f" ({mae / mad:.3f} of MAD)" if mad > 0 and name == self.score.split else ""
            parts.append(f"{name} {mae:.4f} eV{share}")
            if f"{name}/force_mae" in metrics:
                parts.append(f"forces {metrics[f'{name}/force_mae']:.4f} eV/Å")
        parts.append(f"EwT {100 * metrics[f'{self.score.split}/ewt']:.1f} %")
        return "  ".join(parts) + ("  *" if improved else "")
