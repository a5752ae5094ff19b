"""One training run, from configuration to model files."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.strategies import DDPStrategy

from molflt.attention.config import FarFieldKeys
from molflt.data.dataset import fingerprint
from molflt.data.quality.occurrence import ON_SURFACE
from molflt.data.quality.screen import write_skipped
from molflt.errors import InputError, does_not_fit, out_of_memory
from molflt.files import alone, resolve_path
from molflt.model.compiled import compile_model, is_wanted
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel, ModelMetadata, TrainingData
from molflt.prediction.members import BEST, member_paths
from molflt.prediction.model import Model, load
from molflt.training.config import TrainConfig
from molflt.training.data_module import EnergyDataModule
from molflt.training.fine_tuning import load_initial, take_over
from molflt.training.launch import (
    cluster_plugins,
    connect,
    explain_lost_loader,
    explain_lost_process,
    interrupts,
    is_first_process,
)
from molflt.training.recorder import RunRecorder, Score
from molflt.training.run_dir import (
    CHECKPOINT,
    LAST,
    OCCUPIED,
    DurableCheckpoints,
    check_run_dir,
    check_same_beginning,
    clear_leftovers,
    find_checkpoint,
    read_records,
    write_config,
)
from molflt.training.task import EnergyTask


@dataclass(frozen=True)
class Run:
    """The outcome of a run.

    Attributes:
        folder: the run directory, of an ensemble that of all members.
        best: energy MAE of the first validation split at the best epoch, eV; of an ensemble, that of the members'
            mean.
        best_epoch: counted from one.
        mad: mean absolute deviation of that split's labels, eV.
        best_force_mae: likewise of force components, eV/Å; None where forces are not learnt.
        warnings: what looks wrong with the labels, and structures that are in several sets.
    """

    folder: Path
    best: float
    best_epoch: int
    mad: float
    best_force_mae: float | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def best_model(self) -> Path:
        """The best model file, or the directory of an ensemble."""
        file = self.folder / BEST
        return file if file.exists() else self.folder

    @property
    def model(self) -> Model:
        """The best model, loaded."""
        return load(self.folder)

    @property
    def records(self) -> list[dict[str, Any]]:
        """The metrics of every validated epoch, as in metrics.jsonl, member after member."""
        folders = [path.parent for path in member_paths(self.folder)]
        return [record for folder in folders for record in read_records(folder)]


def train(
    config: TrainConfig,
    run_dir: str | Path,
    resume: bool = False,
    say: Callable[[str], None] = print,
    callbacks: list[Callback] | None = None,
) -> Run:
    """Train one model; :func:`molflt.train` explains the arguments.

    Raises:
        InputError: as :func:`molflt.train`; or another number of processes than is configured.
        ConnectionError: another process of the run has ended; the run can be resumed.
        ChildProcessError: a loader process was killed; the run can be resumed.
        KeyboardInterrupt: Ctrl-C; the run can be resumed.
    """
    run_dir, callbacks, first = Path(run_dir), callbacks or [], is_first_process()
    n_processes = config.trainer.devices * config.trainer.num_nodes
    with alone(run_dir, OCCUPIED) if first else nullcontext(), explain_lost_process(n_processes):
        say = say if first else lambda _: None
        config, initial = load_initial(config, say)
        if first:
            check_run_dir(run_dir, config, resume)
            clear_leftovers(run_dir)
        checkpoint, damaged = find_checkpoint(run_dir) if resume else (None, [])
        for path in damaged:
            say(f"{path}: is damaged; resuming from {checkpoint}, one epoch before")
        _quiet_lightning()
        lightning.seed_everything(config.seed, workers=True, verbose=False)
        trainer = _trainer(config, run_dir, callbacks)
        data = EnergyDataModule(config, connect(trainer.strategy), say)
        model, metadata = _model(config, data, initial, say)
        if checkpoint:
            check_same_beginning(run_dir, metadata)
        say(
            f"{model.n_parameters():,} parameters; {len(data.train_structures):,} structures to train on; "
            f"{', '.join(f'{name} {len(s):,}' for name, s in data.val_structures.items())}; run in {run_dir}"
        )
        if n_compositions := len(data.prepared) - len(data.train_structures) if data.separation else 0:
            what = "pairs of adsorbates on one slab" if data.noisy else "combinations of separated molecules"
            say(f"augmentation: {n_compositions:,} {what}; loss.separation=0 disables it")
        if config.loss.force_weight == "auto":
            weight = data.training_set.force_weight("auto", config.loss.squared)
            say(
                f"loss.force_weight={weight:g}, because compositions and cells "
                f"{'are all the same' if data.training_set.alike else 'differ'}"
            )
        split, mad = next(iter(data.mad.items()))
        kind = config.trainer.best_by
        if kind == "auto":
            kind = "both" if data.forces else "energy"
        score = Score(kind, split, mad, data.training_set.force_std)
        recorder = RunRecorder(config.trainer, run_dir, metadata, data.mad, score, say)
        # Before the checkpoints, which are last.
        trainer.callbacks.insert(len(callbacks), recorder)  # type: ignore[attr-defined]
        task = EnergyTask(config, model, list(data.val_structures), data.training_set)
        _compile(config, task, say)
        if first:
            # Only now: a run that failed on its data leaves the directory free for the next try.
            write_config(run_dir, config)
            if skipped := write_skipped(run_dir, data.skipped):
                say(skipped)
            for line in (*data.notes, *(f"Warning: {warning}" for warning in data.warnings)):
                say(line)
        with interrupts(trainer), explain_lost_loader(), _memory(task, config.data.max_atoms):
            trainer.fit(task, datamodule=data, ckpt_path=checkpoint, weights_only=True if checkpoint else None)
        if first:
            recorder.check_models(LAST)
        best = recorder.best
        assert best is not None
        mae, force_mae = best[f"{split}/energy_mae"], best.get(f"{split}/force_mae")
        return Run(run_dir, mae, best["epoch"], mad, force_mae, data.warnings)


def _model(
    config: TrainConfig, data: EnergyDataModule, initial: LoadedModel | None, say: Callable[[str], None]
) -> tuple[EnergyModel, ModelMetadata]:
    """The model as it begins, fitted to what the training set is like."""
    found = data.training_set
    model_config = config.model.model_copy(deep=True)
    if model_config.auxiliary_head and not found.relaxed:
        if config.data.target == "y_relaxed":
            say("no relaxed positions in the training set: training without the displacement head")
        model_config.auxiliary_head = False
    if model_config.read_out == "auto":
        adsorption = config.data.target == "y_relaxed" and found.domain.kinds == [ON_SURFACE]
        # A trained model that leaves it open has been trained on all atoms.
        model_config.read_out = "contact" if adsorption and initial is None else "all"
    attention = model_config.attention
    if isinstance(attention, FarFieldKeys) and initial is None:
        if found.isolated and attention.isolated_atoms is None:
            attention.isolated_atoms = found.mean_n_atoms
        if attention.sigma_max is None:
            attention.sigma_max = attention.widest_seen(found.diameter) if found.isolated else attention.widest
    model = EnergyModel(model_config, config.seed)
    model.encoder.checkpoint_recycles = config.trainer.checkpoint_recycles
    statistics, origin = found.statistics, None
    if initial is not None:
        device = torch.device(_accelerator(config.trainer.accelerator))
        statistics, origin = take_over(model, initial, config, data, device, say)
    elif model_config.read_out == "contact":
        # A mean for each structure would be counted once, however large the adsorbate.
        statistics = replace(statistics, mean=0.0)
    if data.separation and (statistics.mean or (data.noisy and model_config.read_out != "contact")):
        say(f"{config.init.model} gives structures or slabs a mean, which does not add up: no loss.separation")
        data.separation = 0.0
    model.standardiser.load_statistics(statistics)
    training_data = TrainingData(
        path=config.data.train,
        fingerprint=fingerprint(resolve_path(config.data.train)),
        n_structures=len(data.train_structures),
    )
    return model, ModelMetadata(
        config=model_config,
        seed=config.seed,
        target=config.data.target,
        elements=found.elements,
        standardiser=asdict(statistics),
        labels=config.data.labels(),
        training_data=training_data,
        domain=found.domain,
        fine_tuned_from=origin,
        validation={},
        epoch=-1,
    )


def _compile(config: TrainConfig, task: EnergyTask, say: Callable[[str], None]) -> None:
    choice = config.trainer.compile
    if not is_wanted(choice, torch.device(_accelerator(config.trainer.accelerator))):
        return
    if not task.forces:
        compile_model(task.model, say)
    elif choice == "on":
        say("trainer.compile=on: forces are trained by a second derivative, which torch.compile lacks: not compiled")


@contextmanager
def _memory(task: EnergyTask, max_atoms: int) -> Iterator[None]:
    """Say in plain words that a batch does not fit into memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        batch = task.current
        if not out_of_memory(error) or batch is None:
            raise
        if batch.num_graphs == 1:
            raise InputError(does_not_fit(batch.name[0], batch.num_nodes)) from error
        raise InputError(
            f"out of memory with a batch of {batch.num_graphs} structures ({batch.num_nodes:,} atoms); lower "
            f"data.max_atoms, which is {max_atoms:,}"
        ) from error


_LIGHTNINGS = {"devices", "num_nodes", "precision", "max_epochs", "max_steps", "deterministic"}
"""Keys of the configuration that Lightning's trainer has, too."""


def _trainer(config: TrainConfig, run_dir: Path, callbacks: list[Callback]) -> lightning.Trainer:
    settings = config.trainer
    name = CHECKPOINT.removesuffix(".ckpt")
    checkpoints = ModelCheckpoint(run_dir, name, save_on_train_epoch_end=True, enable_version_counter=False)
    accelerator = _accelerator(settings.accelerator)
    available = torch.cuda.device_count() if accelerator == "cuda" else os.cpu_count() or 1
    if settings.devices > available:
        kind = "GPUs" if accelerator == "cuda" else "cores"
        raise InputError(f"trainer.devices={settings.devices}: this machine has {available} {kind}")
    several = settings.devices * settings.num_nodes > 1
    plugins, loggers = cluster_plugins(settings), [_logger(name, run_dir) for name in settings.loggers]
    try:
        return lightning.Trainer(
            # Buffers (statistics, frequencies) are the same everywhere and never change. Broadcasting them at every
            # forward pass would need as many validation batches on every rank.
            strategy=DDPStrategy(broadcast_buffers=False) if several else "auto",
            plugins=[*plugins, DurableCheckpoints()],
            default_root_dir=run_dir,
            accelerator=accelerator,
            **settings.model_dump(include=_LIGHTNINGS),
            # Forces are derivatives, for which inference mode keeps no record.
            inference_mode=not config.loss.forces,
            check_val_every_n_epoch=settings.val_every,
            num_sanity_val_steps=0,
            gradient_clip_val=config.optimiser.clip_norm or None,
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
            callbacks=[*callbacks, checkpoints],
            logger=loggers or False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    except (MisconfigurationException, ValueError) as error:
        raise InputError(f"trainer: {str(error).splitlines()[0]}") from error


def _accelerator(name: str) -> str:
    """Choose CUDA or CPU: Lightning's ``auto`` takes Apple's GPUs, without double precision."""
    if name == "gpu" and not torch.cuda.is_available():
        raise InputError("trainer.accelerator=gpu: this machine has no usable CUDA GPU; use auto or cpu")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _logger(name: str, run_dir: Path) -> Logger:
    try:
        if name == "tensorboard":
            return TensorBoardLogger(run_dir, name="tensorboard", version="")
        return WandbLogger(save_dir=run_dir, project="molflt")
    except ModuleNotFoundError as error:
        raise InputError(f"trainer.loggers: {name} is not installed; pip install 'molflt[{name}]'") from error


def _quiet_lightning() -> None:
    """Silence its notices about hardware, workers and tips, which would bury what a run says."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for pattern in (
        ".*does not have many workers.*",
        ".*Checkpoint directory.*exists.*",
        ".*number of training batches.*",
        ".*LeafSpec.*",
        # Metrics are summed across ranks before they are logged.
        ".*sync_dist=True.*",
        ".*Grad strides do not match.*",
        # Its successor is unknown to torch before 2.13.
        ".*broadcast_buffers.*",
    ):
        warnings.filterwarnings("ignore", pattern)
    # That a process was lost is all it says.
    logging.getLogger("lightning.fabric.strategies.launchers.subprocess_script").setLevel(logging.INFO)
