"""The data of a run: training and validation batches as a pure function of configuration, seed and epoch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data

from molflt.attention.layout import Plan
from molflt.data.batch import AtomBudgetSampler, collate
from molflt.data.dataset import fingerprint
from molflt.data.open import open_dataset
from molflt.data.quality.domain import GEOMETRIC, outside
from molflt.data.quality.leaks import alike
from molflt.data.quality.occurrence import Reason
from molflt.data.quality.screen import ALONE, Crew, Screening, label_of
from molflt.errors import InputError, listed
from molflt.files import resolve_path
from molflt.model.standardiser import mean_absolute_deviation
from molflt.training.config import TrainConfig
from molflt.training.prepared import SHARE, NoisyDataset, PreparedDataset, SeparatedDataset
from molflt.training.task import EnergyTask
from molflt.training.training_set import TrainingSet, read_training_set

_EXAMPLES = 3
_CLOSELY = 1_000
"""Structures of a validation set up to which their geometry is compared with that of the training set."""
_USUAL = 0.05
"""Share of a validation set like the one trained on that may be outside the domain by its geometry."""


def _validation(screening: Screening, found: TrainingSet) -> tuple[np.ndarray, list[tuple[str, list[Reason]]]]:
    """Labels of a validation set in eV, less reference energies, and why some of its structures are outside."""
    label = label_of(screening.labels.target, found.statistics.references)
    closely = len(screening.structures) <= _CLOSELY

    def look(_: int, data: Data) -> tuple[float, str, list[Reason]]:
        return label(data), str(data.name), outside(found.domain, found.elements, data, closely)

    looks = screening.each(look)
    values = np.array([value for value, _, _ in looks], dtype=np.float64)
    return values, [(name, reasons) for _, name, reasons in looks if reasons]


def _strange(found: list[tuple[str, list[Reason]]], n: int, name: str, decides: bool) -> list[str]:
    """A warning about structures of a validation set, of ``n``, that are outside the domain of the training set."""
    by_geometry = all(reason.rule in GEOMETRIC for _, reasons in found for reason in reasons)
    if by_geometry and len(found) <= _USUAL * n:
        return []
    lines = [f"{record}: {'; '.join(reason.text for reason in reasons)}" for record, reasons in found]
    choice = f", and {name} decides which epoch is best" if decides else ""
    what = f"{name}: {len(found):,} of {n:,} structures have something that training never saw"
    return [listed(f"{what}; their errors mean little{choice}", lines, most=_EXAMPLES)]


def _leak(training: Screening, validation: Screening, name: str) -> list[str]:
    """A warning about structures of a validation set that are in the training set as well."""
    known, asked = training.usable, validation.usable
    found = alike(training.sketches, validation.sketches, known, asked)
    if not found:
        return []
    pairs = [f"{asked[a].name} ({known[k].name})" for a, k in found[:_EXAMPLES]]
    n = len(validation.sketches)
    more = ", ..." if len(found) > _EXAMPLES else ""
    return [
        f"{name}: {len(found):,} of {n:,} structures are in the training set as well, or nearly identical to one "
        f"there: {', '.join(pairs)}{more}. Errors on them are those of training, not of prediction; take them out of "
        "one of the sets"
    ]


class EnergyDataModule(lightning.LightningDataModule):
    """The data of a run.

    The training loader is made anew every epoch. Batches, noise and order follow from seed and epoch, so a resumed
    run needs to restore nothing to see what it would have seen.

    The processes of a run, its crew, share the pass over the records before the first epoch.

    Attributes:
        training_set: what the training structures and their labels are like.
        forces: whether forces are learnt.
        noisy: whether noise is added to the training structures.
        separation: compositions of distant molecules for each training structure.
        skipped: what cannot be used and was left out, by the name of the set.
        mad: mean absolute deviation of the labels, less reference energies where there are any, eV, by validation
            split.
        warnings: what looks wrong with the labels, structures that are in several sets, and those unlike any that is
            trained on.
        notes: what a model of the training set cannot tell.

    Raises:
        InputError: data that cannot be read, or structures without labels.
    """

    def __init__(self, config: TrainConfig, crew: Crew = ALONE) -> None:
        super().__init__()
        self.config = config
        data = config.data
        self.train_path = resolve_path(data.train)
        spec = data.labels()
        self.forces = config.loss.forces
        kind = data.standardise
        if kind == "auto":
            kind = "element" if data.target == "energy" or data.references is not None else "structure"

        def screening(path: str) -> Screening:
            options = replace(data.reading(config.model.takes_ions), labels=spec)
            structures = crew.agree(lambda: open_dataset(resolve_path(path), options))
            return Screening(structures, spec, path, self.forces, data.on_bad, compared=True, crew=crew)

        training, validation = screening(data.train), {name: screening(path) for name, path in data.val.items()}
        self.training_set = read_training_set(training, kind, data.references)
        self.train_structures = training.usable
        self.warnings, self.notes = list(training.doubts), self.training_set.notes()
        self.mad, self.val_structures = {}, {}
        for name, screened in validation.items():
            # Of totals, what an energy for each element leaves: the rest is no merit of a model.
            values, strange = _validation(screened, self.training_set)
            self.mad[name] = mean_absolute_deviation(values)
            self.val_structures[name] = screened.usable
            self.warnings += _strange(strange, len(values), name, decides=len(self.mad) == 1)
            # The first process says it, and no other need look.
            self.warnings += [*screened.doubts, *(_leak(training, screened, name) if crew.rank == 0 else ())]
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
        self._prepared: PreparedDataset | None = None
        self._prepared_val: list[PreparedDataset] = []

    def train_fingerprint(self) -> str:
        """Content fingerprint of the training file."""
        return fingerprint(self.train_path)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of the current epoch."""
        assert self.trainer is not None
        epoch, config = self.trainer.current_epoch, self.config
        dataset: PreparedDataset | SeparatedDataset
        if self.noisy:
            noise = (config.loss.noise_std, config.seed, epoch)
            dataset = NoisyDataset(self.train_structures, config.model, self.kept, *noise)
        else:
            if self._prepared is None:
                kept = (*self.kept, "positions_relaxed") if self.training_set.relaxed else self.kept
                self._prepared = PreparedDataset(self.train_structures, config.model, kept)
            dataset = self._prepared
            if self.separation:
                dataset = SeparatedDataset(dataset, self.separation, config.seed, epoch)
        sampler = self._sampler(dataset.n_atoms, shuffle=True)
        sampler.set_epoch(epoch)
        task = self.trainer.lightning_module
        assert isinstance(task, EnergyTask)
        return self._loader(dataset, sampler, task.plan_of_epoch())

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """One loader per validation split, in the order of the configuration."""
        # Lightning asks again every epoch; the neighbour lists are kept.
        if not self._prepared_val:
            self._prepared_val = [
                PreparedDataset(structures, self.config.model, self.kept)
                for structures in self.val_structures.values()
            ]
        return [self._loader(prepared, self._sampler(prepared.n_atoms, False)) for prepared in self._prepared_val]

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Copy a batch while the device computes."""
        return batch.to(device, non_blocking=True)

    def _separation(self) -> float:
        """Compositions for each training structure.

        Raises:
            InputError: they are asked for where their energies do not add up.
        """
        asked, found = self.config.loss.separation, self.training_set
        if asked == 0:
            return 0.0
        additive = found.isolated and not found.charged and found.statistics.kind == "element" and not found.relaxed
        if asked == "auto":
            return SHARE if additive and not self.forces and not self.config.data.allow_charged else 0.0
        if not additive:
            raise InputError(
                f"{self.config.data.train}: loss.separation needs isolated, neutral structures without relaxed "
                "positions, and reference energies of elements (data.target=energy or data.standardise=element), so "
                "that energies add up; set loss.separation=auto or 0"
            )
        return float(asked)

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

    def _loader(
        self, dataset: PreparedDataset | SeparatedDataset, sampler: AtomBudgetSampler, plan: Plan | None = None
    ) -> DataLoader[Batch]:
        # A cache in a worker process would die with it.
        num_workers = 0 if dataset.cached else self.config.data.num_workers
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=partial(collate, plan=plan),
            num_workers=num_workers,
            # From there batches are copied while the device computes.
            pin_memory=torch.cuda.is_available(),
        )
