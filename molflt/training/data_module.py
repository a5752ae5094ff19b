"""Training and validation batches as a pure function of configuration, seed and epoch."""

from __future__ import annotations

from typing import Any

import lightning
import numpy as np
from torch.utils.data import DataLoader

from molflt.data.batching import AtomBudgetSampler, collate
from molflt.data.sources import StructureDataset, fingerprint, open_dataset
from molflt.errors import InputError
from molflt.training.config import TrainConfig
from molflt.training.config_file import resolve_path
from molflt.training.datasets import NoisyDataset, PreparedDataset, labels, read_training_set
from molflt.training.screening import Screening

NOISY_NODES_FROM = 10_000
"""Structures from which on ``noisy_nodes: auto`` is on."""


class EnergyDataModule(lightning.LightningDataModule):
    """The data of a run.

    The training loader is made anew every epoch: batches, noise and order follow from (seed, epoch), so a resumed
    run needs to restore nothing to see what it would have seen.

    Attributes:
        training_set: what the training structures and their labels are like.
        forces: whether forces are learnt.
        noisy: whether training inputs are noised.
        skipped: what cannot be used and was left out, by the name of the set.
        mad: mean absolute deviation of the labels, eV, by validation split.

    Raises:
        InputError: data that cannot be read, or structures without labels.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.config = config
        data = config.data
        self.train_path = resolve_path(data.train)
        spec = data.labels()
        self.forces = config.loss.force_weight > 0
        kind = data.standardise
        if kind == "auto":
            kind = "element" if data.target == "energy" or data.references is not None else "structure"

        def screening(path: str) -> Screening:
            structures = open_dataset(resolve_path(path), labels=spec, on_bad=data.on_bad)
            return Screening(structures, spec, path, self.forces, data.on_bad)

        training, validation = screening(data.train), {name: screening(path) for name, path in data.val.items()}
        self.training_set = read_training_set(training, kind, data.references)
        self.train_structures = training.usable
        self.mad, self.val_structures = {}, {}
        for name, screened in validation.items():
            values = labels(screened)
            self.mad[name] = float(np.abs(values - values.mean()).mean())
            self.val_structures[name] = screened.usable
        self.skipped = {name: screened.skipped for name, screened in {"train": training, **validation}.items()}
        auto = config.loss.noisy_nodes == "auto"
        wanted = len(self.train_structures) >= NOISY_NODES_FROM if auto else bool(config.loss.noisy_nodes)
        if config.loss.noisy_nodes is True and not self.training_set.relaxed:
            raise InputError(
                f"{data.train}: loss.noisy_nodes=true needs relaxed positions in every training structure; "
                "set loss.noisy_nodes=auto or false"
            )
        # Forces on a noised geometry are not those of the label.
        self.noisy = wanted and self.training_set.relaxed and not self.forces
        self.kept = (data.target, "forces") if self.forces else (data.target,)
        self._prepared: PreparedDataset | None = None
        self._prepared_val: list[PreparedDataset] = []

    def train_fingerprint(self) -> str:
        """Content fingerprint of the training file."""
        return fingerprint(self.train_path)

    def train_dataloader(self) -> DataLoader[Any]:
        """Batches of the current epoch."""
        assert self.trainer is not None
        epoch = self.trainer.current_epoch
        sampler = self._sampler(self.train_structures, shuffle=True)
        sampler.set_epoch(epoch)
        if self.noisy:
            config = self.config
            noisy = NoisyDataset(
                self.train_structures,
                config.loss.noise_std,
                config.seed,
                epoch,
                config.model.neighbour_cutoff,
                config.model.all_pairs_if_isolated,
                self.kept,
            )
            return self._loader(noisy, sampler, self.config.data.num_workers)
        if self._prepared is None:
            kept = (*self.kept, "positions_relaxed") if self.training_set.relaxed else self.kept
            self._prepared = self._prepare(self.train_structures, kept)
        return self._loader(self._prepared, sampler, self._workers(self._prepared))

    def val_dataloader(self) -> list[DataLoader[Any]]:
        """One loader per validation split, in the order of the configuration."""
        # Lightning asks again every epoch; the neighbour lists are kept.
        if not self._prepared_val:
            self._prepared_val = [self._prepare(structures, self.kept) for structures in self.val_structures.values()]
        return [
            self._loader(prepared, self._sampler(prepared.structures, shuffle=False), self._workers(prepared))
            for prepared in self._prepared_val
        ]

    def _prepare(self, structures: StructureDataset, kept: tuple[str, ...]) -> PreparedDataset:
        model = self.config.model
        return PreparedDataset(structures, model.neighbour_cutoff, model.all_pairs_if_isolated, kept)

    def _sampler(self, structures: StructureDataset, shuffle: bool) -> AtomBudgetSampler:
        assert self.trainer is not None
        rank, n_ranks = self.trainer.global_rank, self.trainer.world_size
        if len(structures) < n_ranks:
            raise InputError(f"{len(structures)} structures cannot be shared by {n_ranks} processes; use fewer")
        max_atoms = self.config.data.max_atoms
        if not shuffle:
            # A rank without a validation batch would leave the others waiting for its metrics.
            while len(AtomBudgetSampler(structures.n_atoms, max_atoms, shuffle=False, seed=0)) < n_ranks:
                max_atoms //= 2
        return AtomBudgetSampler(
            structures.n_atoms, max_atoms, shuffle=shuffle, seed=self.config.seed, rank=rank, n_ranks=n_ranks
        )

    def _workers(self, prepared: PreparedDataset) -> int:
        # A cache in a worker dies with it.
        return 0 if prepared.cached else self.config.data.num_workers

    def _loader(self, dataset: Any, sampler: AtomBudgetSampler, num_workers: int) -> DataLoader[Any]:
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=num_workers)
