"""The data of a run: training and validation batches as a pure function of configuration, seed and epoch."""

from __future__ import annotations

import copy
from collections.abc import Collection

import lightning
import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data

from molflt.bundled import resolve_path
from molflt.data.batching import AtomBudgetSampler, collate
from molflt.data.likeness import alike
from molflt.data.neighbours import attach_neighbours, whole
from molflt.data.reading import Reading
from molflt.data.screening import Screening, labels
from molflt.data.sources import StructureDataset, fingerprint, open_dataset
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.training.config import TrainConfig
from molflt.training.training_set import read_training_set
from molflt.vocabulary import LABELS, TAG_ADSORBATE

CACHED_ATOMS = 300_000
"""A set of up to so many atoms keeps its neighbour lists in memory: about half a gigabyte at 6 Å."""
_EXAMPLES = 3
_ON_THE_WAY = 0.5
"""The share of structures that is not as given."""
_SHIFT, _TURN = 0.2, 10.0
"""Å and degrees, standard deviations of the motion of the whole adsorbate at its strongest."""


class PreparedDataset(Dataset[Data]):
    """Structures with neighbour lists, which are kept once computed when the set is small enough.

    Args:
        structures: what to prepare; they are left as they are.
        model: whose neighbours are wanted.
        kept: the labels wanted; others, and relaxed positions, are dropped. Whatever else a file happens to hold,
            perhaps for some structures only, need not fit into a batch.
    """

    def __init__(self, structures: StructureDataset, model: ModelConfig, kept: Collection[str]) -> None:
        self.structures, self.model, self.kept = structures, model, kept
        self.cached = int(structures.n_atoms.sum()) <= CACHED_ATOMS
        self._cache: dict[int, Data] = {}

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Data:
        if index in self._cache:
            return self._cache[index]
        data = self._moved(self._labelled(index), index)
        data = attach_neighbours(data, self.model.neighbour_cutoff, self.model.all_pairs_if_isolated)
        if self.cached:
            self._cache[index] = data
        return data

    def _labelled(self, index: int) -> Data:
        """A copy of a structure with the labels wanted."""
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
    epoch and index alone. Fixed atoms stay where they are.

    Args:
        structures: with relaxed positions.
        model: see :class:`PreparedDataset`.
        kept: see :class:`PreparedDataset`; the relaxed positions are kept as well.
        noise_std: Å.
        seed: of the noise.
        epoch: of training.
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
            arms = whole(moved[adsorbate].numpy(), data.cell[0].numpy(), data.pbc[0].numpy())
            arms = arms - arms.mean(axis=0)
            turn = Rotation.from_rotvec(random.normal(scale=strength * _TURN, size=3), degrees=True)
            shift = random.normal(scale=strength * _SHIFT, size=3)
            moved[adsorbate] += torch.from_numpy(turn.apply(arms) - arms + shift)
        moved += torch.from_numpy(random.normal(scale=self.noise_std, size=tuple(moved.shape)))
        data.positions = torch.where(data.fixed[:, None], data.positions, moved)
        return data


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

    Attributes:
        training_set: what the training structures and their labels are like.
        forces: whether forces are learnt.
        noisy: whether noise is added to the training structures.
        skipped: what cannot be used and was left out, by the name of the set.
        mad: mean absolute deviation of the labels, less reference energies where there are any, eV, by validation
            split.
        warnings: what looks wrong with the labels, and structures that are in several sets.

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
            structures = open_dataset(resolve_path(path), data.tags, spec, data.on_bad, Reading(data.allow_charged))
            return Screening(structures, spec, path, self.forces, data.on_bad, compared=True)

        training, validation = screening(data.train), {name: screening(path) for name, path in data.val.items()}
        self.training_set = read_training_set(training, kind, data.references)
        self.train_structures = training.usable
        self.warnings = list(training.doubts)
        self.mad, self.val_structures = {}, {}
        for name, screened in validation.items():
            # Of totals, what an energy for each element leaves: the rest is no merit of a model.
            values = labels(screened, self.training_set.statistics.references)
            self.mad[name] = float(np.abs(values - values.mean()).mean())
            self.val_structures[name] = screened.usable
            self.warnings += [*screened.doubts, *_leak(training, screened, name)]
        self.skipped = {name: screened.skipped for name, screened in {"train": training, **validation}.items()}
        # Of the given geometry's own energy noise would make another.
        self.noisy = bool(config.loss.noisy_nodes) and data.target == "y_relaxed" and self.training_set.relaxed
        if config.loss.noisy_nodes is True and not self.noisy:
            raise InputError(
                f"{data.train}: loss.noisy_nodes=true needs data.target=y_relaxed and relaxed positions in every "
                "training structure; set loss.noisy_nodes=auto or false"
            )
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
        sampler = self._sampler(self.train_structures, shuffle=True)
        sampler.set_epoch(epoch)
        if self.noisy:
            noise = (config.loss.noise_std, config.seed, epoch)
            return self._loader(NoisyDataset(self.train_structures, config.model, self.kept, *noise), sampler)
        if self._prepared is None:
            kept = (*self.kept, "positions_relaxed") if self.training_set.relaxed else self.kept
            self._prepared = PreparedDataset(self.train_structures, config.model, kept)
        return self._loader(self._prepared, sampler)

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """One loader per validation split, in the order of the configuration."""
        # Lightning asks again every epoch; the neighbour lists are kept.
        if not self._prepared_val:
            self._prepared_val = [
                PreparedDataset(structures, self.config.model, self.kept)
                for structures in self.val_structures.values()
            ]
        return [self._loader(prepared, self._sampler(prepared.structures, False)) for prepared in self._prepared_val]

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

    def _loader(self, dataset: PreparedDataset, sampler: AtomBudgetSampler) -> DataLoader[Batch]:
        # A cache in a worker process would die with it.
        num_workers = 0 if dataset.cached else self.config.data.num_workers
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=num_workers)
