"""One training run, from configuration to model files."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import Logger

from molflt.atomic_file import atomic_file
from molflt.errors import InputError
from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import ModelMetadata, TrainingData
from molflt.training.config import TrainConfig
from molflt.training.config_file import load_config, to_yaml
from molflt.training.data_module import EnergyDataModule
from molflt.training.recorder import RunRecorder
from molflt.training.task import EnergyTask

CHECKPOINT = "last.ckpt"


@dataclass
class TrainResult:
    """What a run came to.

    Attributes:
        best_model: path of the best model.
        best: energy MAE of the first validation split, eV.
        best_epoch: counted from zero.
        mad: mean absolute deviation of that split's labels, eV.
    """

    best_model: Path
    best: float
    best_epoch: int
    mad: float


def train(
    config: TrainConfig,
    run_dir: str | Path,
    resume: bool = False,
    say: Callable[[str], None] = print,
    callbacks: list[Callback] | None = None,
) -> TrainResult:
    """Train a model.

    Args:
        config: everything about the run.
        run_dir: gets config.yaml, metrics.csv, metrics.jsonl, best.safetensors, last.safetensors and last.ckpt.
        resume: continue the run in ``run_dir`` from its last finished epoch, as if it had never stopped; start it
            if there is none.
        say: prints a line.
        callbacks: further Lightning callbacks.

    Raises:
        InputError: unusable data, or a run directory that holds another run.
    """
    run_dir = Path(run_dir)
    checkpoint = _claim_run_dir(run_dir, config, resume)
    _quiet_lightning()
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    data = EnergyDataModule(config)
    model_config = config.model.model_copy(deep=True)
    if model_config.auxiliary_head and not data.relaxed:
        say("no relaxed positions in the training set: training without the displacement head")
        model_config.auxiliary_head = False
    model = EnergyModel(model_config, config.seed)
    model.standardiser.load_statistics(data.statistics)
    metadata = ModelMetadata(
        config=model_config,
        seed=config.seed,
        target=config.data.target,
        elements=data.elements,
        standardiser=asdict(data.statistics),
        training_data=TrainingData(
            path=config.data.train, fingerprint=data.train_fingerprint(), n_structures=len(data.train_structures)
        ),
        validation={},
        epoch=-1,
    )
    say(
        f"{model.n_parameters():,} parameters; {len(data.train_structures):,} structures to train on; "
        f"{', '.join(f'{name} {len(s):,}' for name, s in data.val_structures.items())}; run in {run_dir}"
    )
    recorder = RunRecorder(run_dir, metadata, data.mad, say)
    trainer = _trainer(config, run_dir, recorder, callbacks or [])
    task = EnergyTask(config, model, list(data.val_structures))
    trainer.fit(task, datamodule=data, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
    if trainer.interrupted:
        raise KeyboardInterrupt
    if recorder.best_epoch < 0:
        raise InputError("no epoch was validated: trainer.max_epochs is smaller than trainer.val_every")
    mad = data.mad[next(iter(data.mad))]
    return TrainResult(run_dir / "best.safetensors", recorder.best, recorder.best_epoch, mad)


def _claim_run_dir(run_dir: Path, config: TrainConfig, resume: bool) -> str | None:
    """Check that the directory is free, or holds this very run; return the checkpoint to continue from."""
    saved = run_dir / "config.yaml"
    if saved.exists():
        if not resume:
            raise InputError(
                f"{run_dir}: holds a run already; continue it with '--resume auto' or choose another '--out'"
            )
        before = load_config(saved)
        changed = _changed_keys(before.model_dump(), config.model_dump())
        if changed:
            raise InputError(
                f"{run_dir}: was started with another configuration ({', '.join(changed)}); resume with the same "
                "one, or choose another '--out'"
            )
    elif run_dir.exists() and any(run_dir.iterdir()):
        raise InputError(f"{run_dir}: is not empty and not a run of molflt; choose another '--out'")
    else:
        with atomic_file(saved) as path:
            path.write_text(to_yaml(config, "The configuration of this run; 'molflt train' with it repeats the run."))
    checkpoint = run_dir / CHECKPOINT
    return str(checkpoint) if checkpoint.exists() else None


def _changed_keys(before: dict[str, Any], after: dict[str, Any], prefix: str = "") -> list[str]:
    changed = []
    for key in dict.fromkeys([*before, *after]):
        a, b = before.get(key), after.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changed += _changed_keys(a, b, f"{prefix}{key}.")
        elif a != b:
            changed.append(f"{prefix}{key}: {a} then, {b} now")
    return changed


def _trainer(config: TrainConfig, run_dir: Path, recorder: RunRecorder, extra: list[Callback]) -> lightning.Trainer:
    settings = config.trainer
    interactive = sys.stderr.isatty()
    callbacks: list[Callback] = [*extra, recorder]
    if settings.patience:
        callbacks.append(EarlyStopping(recorder.monitor, patience=settings.patience, check_on_train_epoch_end=True))
    callbacks.append(
        ModelCheckpoint(run_dir, "last", save_on_train_epoch_end=True, enable_version_counter=False, save_top_k=1)
    )
    if interactive:
        callbacks.append(RichProgressBar(leave=False))
    return lightning.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        precision=settings.precision,
        max_epochs=settings.max_epochs,
        max_steps=settings.max_steps,
        check_val_every_n_epoch=settings.val_every,
        num_sanity_val_steps=0,
        gradient_clip_val=config.optimiser.clip_norm or None,
        deterministic=settings.deterministic,
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        callbacks=callbacks,
        logger=_loggers(settings.loggers, run_dir),
        enable_progress_bar=interactive,
        enable_model_summary=False,
        enable_checkpointing=True,
    )


def _loggers(names: Sequence[str], run_dir: Path) -> list[Logger] | bool:
    loggers: list[Logger] = []
    for name in names:
        try:
            if name == "tensorboard":
                from lightning.pytorch.loggers import TensorBoardLogger

                loggers.append(TensorBoardLogger(run_dir, name="tensorboard", version=""))
            else:
                from lightning.pytorch.loggers import WandbLogger

                loggers.append(WandbLogger(save_dir=run_dir, project="molflt"))
        except ModuleNotFoundError as error:
            raise InputError(f"trainer.loggers: {name} is not installed; pip install 'molflt[{name}]'") from error
    return loggers or False


def _quiet_lightning() -> None:
    """Its notices about hardware, workers and tips would bury what a run says."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for pattern in (
        ".*does not have many workers.*",
        ".*Checkpoint directory.*exists.*",
        ".*number of training batches.*",
        ".*LeafSpec.*",
    ):
        warnings.filterwarnings("ignore", pattern)
    torch.set_float32_matmul_precision("high")
