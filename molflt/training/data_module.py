"""The data of a run: batches as a pure function of configuration, seed and epoch.

Structures get neighbour lists, noise, and compositions of distant ones beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property, partial

import lightning
import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data

from molflt.attention.layout import Plan
from molflt.data.batch import AtomBudgetSampler, collate
from molflt.data.dataset import StructureDataset
from molflt.data.images import in_cell, separate_fragments, unwrap
from molflt.data.neighbours import attach_neighbours
from molflt.data.open import open_dataset
from molflt.data.quality.screen import ALONE, Crew, Screening
from molflt.errors import InputError
from molflt.files import resolve_path
from molflt.model.config import ModelConfig
from molflt.training.config import TrainConfig
from molflt.training.task import EnergyTask
from molflt.training.training_set import compare, read_training_set
from molflt.vocabulary import LABELS, TAG_ADSORBATE

CACHED_ATOMS = 300_000
"""A set of up to so many atoms keeps its neighbour lists in memory: about half a gigabyte at 6 Å."""
_ON_THE_WAY = 0.5
"""The share of structures that is not as given."""
_SHIFT, _TURN = 0.2, 10.0
"""Å and degrees, standard deviations of the motion of the whole adsorbate at its strongest."""
SHARE = 0.2
"""Compositions for each structure of the training set, unless told otherwise."""
NEAREST, FURTHEST = 5.5, 40.0
"""Å, between the nearest atoms of two molecules."""
_GAPS = (3.5, 10.0)
"""Å, between a structure in a cell and its images."""
_MEMBERS, _SHARES = (2, 3, 1), (0.5, 0.1, 0.4)
"""How many structures a composition has, and how often; one alone is put in a cell."""


class PreparedDataset(Dataset[Data]):
    """Structures with neighbour lists, which are kept when the set is small enough.

    Args:
        structures: what to prepare; they are left as they are.
        model: whose neighbours are wanted.
        kept: the labels wanted; others, and relaxed positions, are dropped. Whatever else a file happens to hold,
            perhaps for some structures only, need not fit into a batch.
    """

    def __init__(self, structures: StructureDataset, model: ModelConfig, kept: Collection[str]) -> None:
        self.structures, self.model, self.kept = structures, model, kept
        self.n_atoms = np.asarray(structures.n_atoms)
        self.cached = int(self.n_atoms.sum()) <= CACHED_ATOMS
        self._cache: dict[int, Data] = {}

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Data:
        if index in self._cache:
            return self._cache[index]
        data = self._moved(self.labelled(index), index)
        data = attach_neighbours(data, self.model.neighbour_cutoff, self.model.all_pairs_if_isolated)
        if self.cached:
            self._cache[index] = data
        return data

    def labelled(self, index: int) -> Data:
        """Copy a structure with the labels wanted."""
        data = copy.copy(self.structures[index])
        for name in LABELS:
            if name in data and name not in self.kept:
                del data[name]
        return data

    def _moved(self, data: Data, index: int) -> Data:
        """The structure with the positions that the model is to see."""
        return data


class NoisyDataset(PreparedDataset):
    """Structures as given and on their way to the relaxed positions, with noise (Noisy Nodes).

    Godwin et al. 2021, arXiv 2106.07971, §4. Of a structure every second epoch, at random, has the given positions;
    the others have a point between given and relaxed. Then the adsorbate is shifted and turned as a whole a little,
    and every atom gets Gaussian noise. The displacement left to the relaxed positions stays the target of the
    auxiliary head, and the energy stays that of the relaxed structure. The noise of a structure depends on seed,
    epoch and index alone. Fixed atoms stay where they are, and the relaxed positions are kept. ``noise_std`` is in Å.
    """

    def __init__(
        self,
        structures: StructureDataset,
        model: ModelConfig,
        kept: Collection[str],
        noise_std: float,
        seed: int,
        epoch: int,
    ) -> None:
        super().__init__(structures, model, (*kept, "positions_relaxed"))
        self.noise_std, self.seed, self.epoch = noise_std, seed, epoch
        self.cached = False

    def _moved(self, data: Data, index: int) -> Data:
        random = np.random.default_rng([self.seed, self.epoch, index])
        along = random.uniform() if random.uniform() < _ON_THE_WAY else 0.0
        moved = data.positions + along * (data.positions_relaxed - data.positions)
        adsorbate = torch.nonzero((data.tags == TAG_ADSORBATE) & ~data.fixed).squeeze(1)
        if 0 < len(adsorbate) < len(moved):
            strength = random.uniform()
            arms = unwrap(moved[adsorbate].numpy(), data.cell[0].numpy(), data.pbc[0].numpy())
            arms = arms - arms.mean(axis=0)
            turn = Rotation.from_rotvec(random.normal(scale=strength * _TURN, size=3), degrees=True)
            shift = random.normal(scale=strength * _SHIFT, size=3)
            moved[adsorbate] += torch.from_numpy(turn.apply(arms) - arms + shift)
        moved += torch.from_numpy(random.normal(scale=self.noise_std, size=tuple(moved.shape)))
        data.positions = torch.where(data.fixed[:, None], data.positions, moved)
        return data


class SeparatedDataset(Dataset[Data]):
    """A prepared training set, and behind it compositions of its structures (DESIGN §4).

    A far field would invent energies between molecules that do not touch, which single molecules never show. So
    training sees compositions, too, whose energy is the sum of theirs: two or three structures at some distance, and
    one in a periodic cell. Each has other members, places and orientations in every epoch. That is right to some meV
    for neutral closed shells; it is wrong for ions, and wherever forces reach further than :data:`NEAREST`.

    The number of atoms of each composition is the same in every epoch, so that batches keep their number; its members
    change places with others of their size.

    Args:
        prepared: structures that are not periodic.
        share: compositions for each structure.
        seed: of the compositions.
        epoch: from one to the next, the members change places.
    """

    def __init__(self, prepared: PreparedDataset, share: float, seed: int, epoch: int) -> None:
        self.prepared, self.seed, self.epoch = prepared, seed, epoch
        self.cached = prepared.cached
        sizes = prepared.n_atoms
        self._of_size = {int(size): np.flatnonzero(sizes == size) for size in np.unique(sizes)}
        random = np.random.default_rng([seed, len(sizes)])
        members = random.choice(_MEMBERS, size=round(share * len(sizes)), p=_SHARES)
        self._slots = [random.choice(sizes, size=n) for n in members]
        self.n_atoms = np.concatenate([sizes, np.array([slot.sum() for slot in self._slots], dtype=sizes.dtype)])

    def __len__(self) -> int:
        return len(self.n_atoms)

    def __getitem__(self, index: int) -> Data:
        n = len(self.prepared)
        if index < n:
            return self.prepared[index]
        random = np.random.default_rng([self.seed, self.epoch, index])
        sizes = self._slots[index - n]
        members = [self.prepared.labelled(int(random.choice(self._of_size[int(size)]))) for size in sizes]
        if len(members) == 1:
            data = in_cell(members[0], random.uniform(*_GAPS, size=3), random)
        else:
            # Evenly on a logarithmic scale.
            gaps = np.exp(random.uniform(np.log(NEAREST), np.log(FURTHEST), size=len(members) - 1))
            data = separate_fragments(members, gaps.tolist(), random)
        model = self.prepared.model
        return attach_neighbours(data, model.neighbour_cutoff, model.all_pairs_if_isolated)


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

    @cached_property
    def _prepared(self) -> PreparedDataset:
        kept = (*self.kept, "positions_relaxed") if self.training_set.relaxed else self.kept
        return PreparedDataset(self.train_structures, self.config.model, kept)

    @cached_property
    def _prepared_val(self) -> list[PreparedDataset]:
        return [PreparedDataset(found, self.config.model, self.kept) for found in self.val_structures.values()]

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of the current epoch."""
        assert self.trainer is not None
        epoch, config = self.trainer.current_epoch, self.config
        dataset: PreparedDataset | SeparatedDataset
        if self.noisy:
            noise = (config.loss.noise_std, config.seed, epoch)
            dataset = NoisyDataset(self.train_structures, config.model, self.kept, *noise)
        else:
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
