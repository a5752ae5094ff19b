"""The data of a run: batches as a pure function of configuration, seed and epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch

from molflt.data.batch import AtomBudgetSampler
from molflt.data.cache import open_large
from molflt.data.dataset import StructureDataset, SubsetDataset
from molflt.data.quality.occurrence import ON_SURFACE
from molflt.data.quality.screen import ALONE, Crew, Screening
from molflt.errors import InputError
from molflt.files import resolve_path
from molflt.training.config import TrainConfig
from molflt.training.loader import Batches, Packed, Requests, as_is
from molflt.training.task import EnergyTask
from molflt.training.training_set import compare, read_training_set
from molflt.training.training_structures import (
    PARTIAL_CHARGES,
    SHARE,
    DimerDataset,
    NeighbourDataset,
    NoisyDataset,
    Prepared,
    SeparatedDataset,
    dimers_of,
)

MOST_WORKERS = 8
"""Processes that make batches for a device, unless told otherwise; one makes some hundred structures a second."""


class EnergyDataModule(lightning.LightningDataModule):
    """The data of a run.

    Batches, noise and order follow from seed and epoch, so a resumed run needs to restore nothing to see what it
    would have seen. Processes that load data live as long as the run: epoch and layout come with what they are asked.

    The processes of a run, its crew, share the preparation of large sets, and the pass over the records of others.
    ``say`` takes lines for the user.

    Attributes:
        training_set: what the training structures and their labels are like.
        forces: whether forces are learnt.
        noisy: whether noise is added to the training structures.
        separation: compositions of distant molecules, or pairs of adsorbates, for each training structure.
        skipped: what cannot be used and was left out, by the name of the set.
        mad: mean absolute deviation of the labels, less reference energies where there are any, eV, by validation
            split.
        warnings: what looks wrong with the labels, structures that are in several sets, and those unlike any that is
            trained on.
        notes: what a model of the training set cannot tell.

    Raises:
        InputError: data that cannot be read, or structures without labels.
    """

    def __init__(self, config: TrainConfig, crew: Crew = ALONE, say: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self.config = config
        data = config.data
        spec = data.labels()
        self.forces = config.loss.forces
        kind = data.standardise
        if kind == "auto":
            kind = "element" if data.target == "energy" or data.references is not None else "structure"

        cache, devices = None if data.cache is None else Path(data.cache), config.trainer.devices

        def screening(path: str) -> Screening:
            options = replace(data.reading(config.model.takes_ions), labels=spec)
            structures = crew.agree(lambda: open_large(resolve_path(path), options, cache, say, devices))
            return Screening(structures, spec, path, self.forces, data.on_bad, compared=True, crew=crew)

        training, validation = screening(data.train), {name: screening(path) for name, path in data.val.items()}
        self.training_set = read_training_set(training, kind, data.references)
        self.train_structures, self._screened = training.usable, training
        self.warnings, self.notes = list(training.doubts), self.training_set.notes()
        self.mad: dict[str, float] = {}
        self.val_structures: dict[str, StructureDataset] = {}
        for name, screened in validation.items():
            self.mad[name], warnings = compare(screened, training, self.training_set, name, decides=not self.mad)
            self.val_structures[name] = screened.usable
            self.warnings += warnings
        self.skipped = {name: screened.skipped for name, screened in {"train": training, **validation}.items()}
        # Of the given geometry's own energy noise would make another.
        self.noisy = bool(config.loss.noisy_nodes) and data.target == "y_relaxed" and self.training_set.relaxed
        if config.loss.noisy_nodes is True and not self.noisy:
            raise InputError(
                f"{data.train}: loss.noisy_nodes=true needs data.target=y_relaxed and relaxed positions in every "
                "training structure; set loss.noisy_nodes=auto or false"
            )
        self.separation = self._separation()
        self.kept = (data.target, "forces") if self.forces else (data.target,)
        if config.loss.charge_weight:
            self.kept = (*self.kept, PARTIAL_CHARGES)
        self._dimers = self._dimers_of(training) if config.loss.interaction_weight else None

    def sample(self, most: int) -> StructureDataset:
        """Choose about so many training structures, some with each element among them."""
        chosen = self._screened.facts.sample(self._screened.places, most)
        return SubsetDataset(self.train_structures, chosen, self.train_structures.n_atoms[chosen])

    @cached_property
    def _prepared(self) -> NeighbourDataset:
        kept = (*self.kept, "positions_relaxed") if self.training_set.relaxed else self.kept
        return NeighbourDataset(self.train_structures, self.config.model, kept)

    @cached_property
    def _prepared_val(self) -> list[NeighbourDataset]:
        return [NeighbourDataset(found, self.config.model, self.kept) for found in self.val_structures.values()]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of the current epoch."""
        assert self.trainer is not None
        loader, task = self._training, self.trainer.lightning_module
        wanted = loader.sampler
        assert isinstance(task, EnergyTask)
        assert isinstance(wanted, Requests)
        wanted.plan = task.plan_of_epoch()
        wanted.set_epoch(self.trainer.current_epoch)
        return loader

    @cached_property
    def prepared(self) -> Prepared:
        """The training structures as the model sees them, with compositions behind them.

        Raises:
            InputError: pairs of adsorbates are asked for, and there are none.
        """
        config = self.config
        if self.noisy:
            noise = (config.loss.noise_std, config.seed, 0)
            found = NoisyDataset(self.train_structures, config.model, self.kept, *noise, self.separation)
            if self.separation and len(found) == len(self.train_structures):
                raise InputError(
                    f"{config.data.train}: no two structures have the same slab with room for both adsorbates, which "
                    "loss.separation is to put side by side; leave it out"
                )
            return found
        if self._dimers is not None:
            return DimerDataset(self._prepared, self._dimers)
        if self.separation:
            return SeparatedDataset(self._prepared, self.separation, config.seed, 0)
        return self._prepared

    @cached_property
    def _training(self) -> DataLoader[Batch]:
        return self._loader(self.prepared, self._sampler(self.prepared.n_atoms, shuffle=True), lasting=True)

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """One loader per validation split, in the order of the configuration."""
        return [self._loader(prepared, self._sampler(prepared.n_atoms, False)) for prepared in self._prepared_val]

    def transfer_batch_to_device(self, batch: Batch | Packed, device: torch.device, dataloader_idx: int) -> Batch:
        """Copy a batch while the device computes."""
        return batch.unpacked(device) if isinstance(batch, Packed) else batch.to(device, non_blocking=True)

    def _separation(self) -> float:
        """Compositions for each training structure.

        Raises:
            InputError: they are asked for where their energies do not add up.
        """
        asked, found = self.config.loss.separation, self.training_set
        if asked == 0:
            return 0.0
        molecules = found.isolated and not found.charged and found.statistics.kind == "element" and not found.relaxed
        adsorbates = self.noisy and found.domain.kinds == [ON_SURFACE] and self.config.model.read_out != "all"
        if asked == "auto":
            return SHARE if molecules and not self.forces and not self.config.data.allow_charged else 0.0
        if not molecules and not adsorbates:
            raise InputError(
                f"{self.config.data.train}: loss.separation needs isolated, neutral structures without relaxed "
                "positions, and reference energies of elements (data.target=energy or data.standardise=element), or "
                "adsorbates with relaxed positions (data.target=y_relaxed), so that energies add up; set "
                "loss.separation=auto or 0"
            )
        return float(asked)

    def _dimers_of(self, training: Screening) -> np.ndarray:
        """Places of dimers among the training structures.

        Raises:
            InputError: there are none, or other structures are to be made of the training set's.
        """
        found = dimers_of(training.facts.compositions(training.places))
        if len(found) and not self.noisy and not self.separation:
            self.notes.append(
                f"Note: {len(found):,} dimers come just before their molecules, so their interaction energies count"
            )
            return found
        why = "go together with neither loss.noisy_nodes nor loss.separation"
        if not len(found):
            why = "need dimers, each just before its two molecules, and there are none"
        raise InputError(f"{self.config.data.train}: interaction energies {why}; set loss.interaction_weight=0")

    def _sampler(self, n_atoms: np.ndarray, shuffle: bool) -> AtomBudgetSampler:
        assert self.trainer is not None
        rank, n_ranks = self.trainer.global_rank, self.trainer.world_size
        if len(n_atoms) < n_ranks:
            raise InputError(f"{len(n_atoms)} structures cannot be shared by {n_ranks} processes; use fewer")
        max_atoms = self.config.data.max_atoms
        if not shuffle:
            # A rank without a validation batch would leave the others waiting for its metrics.
            while len(AtomBudgetSampler(n_atoms, max_atoms, shuffle=False, seed=0)) < n_ranks:
                max_atoms //= 2
        return AtomBudgetSampler(
            n_atoms, max_atoms, shuffle=shuffle, seed=self.config.seed, rank=rank, n_ranks=n_ranks
        )

    def _n_workers(self, cached: bool, lasting: bool) -> int:
        """Choose the number of processes that make batches."""
        # The cache of a process dies with it, and on a CPU a cache leaves little to do.
        if cached and not lasting:
            return 0
        assert self.trainer is not None
        on_gpu = self.trainer.strategy.root_device.type == "cuda"
        if cached and not on_gpu:
            return 0
        if self.config.data.num_workers != "auto":
            return self.config.data.num_workers
        share = len(os.sched_getaffinity(0)) // self.trainer.num_devices
        return min(max(share - 1, 1), MOST_WORKERS) if on_gpu else 0

    def _loader(self, dataset: Prepared, batches: AtomBudgetSampler, lasting: bool = False) -> DataLoader[Batch]:
        model = self.config.model
        reach = math.inf if model.all_pairs_if_isolated else model.neighbour_cutoff
        num_workers = self._n_workers(dataset.cached, lasting)
        return DataLoader(
            Batches(dataset, reach, packed=num_workers > 0),
            batch_size=None,
            sampler=Requests(batches),
            collate_fn=as_is,
            num_workers=num_workers,
            persistent_workers=num_workers > 0 and lasting,
            # From there batches are copied while the device computes.
            pin_memory=torch.cuda.is_available(),
        )
