"""Structures on their way to the model: noise, neighbour lists, a cache, statistics of the labels."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from torch.utils.data import Dataset

from molflt.data.labels import LabelSpec
from molflt.data.neighbours import attach_neighbours
from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.model.standardiser import StandardiserKind, Statistics, fit_statistics
from molflt.training.screening import Screening
from molflt.vocabulary import LABELS, MAX_ATOMIC_NUMBER

CACHED_ATOMS = 300_000
"""A set of up to so many atoms keeps its neighbour lists in memory: about half a gigabyte at 6 Å."""


def with_labels(data: Any, kept: Collection[str]) -> Any:
    """A copy of a structure with only these of its labels and relaxed positions.

    Whatever else a file happens to hold, perhaps for some structures only, need not fit into a batch.
    """
    data = copy.copy(data)
    for name in LABELS:
        if name in data and name not in kept:
            del data[name]
    return data


class PreparedDataset(Dataset[Any]):
    """Structures with neighbour lists, kept once computed when the set is small enough.

    Args:
        structures: what to prepare.
        cutoff: Å.
        all_pairs_if_isolated: see :func:`molflt.data.neighbours.attach_neighbours`.
        kept: the labels wanted, see :func:`with_labels`.
    """

    def __init__(
        self, structures: StructureDataset, cutoff: float, all_pairs_if_isolated: bool, kept: Collection[str]
    ) -> None:
        self.structures = structures
        self.kept = kept
        self.cutoff = cutoff
        self.all_pairs_if_isolated = all_pairs_if_isolated
        self.cached = int(structures.n_atoms.sum()) <= CACHED_ATOMS
        self._cache: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Any:
        if index in self._cache:
            return self._cache[index]
        data = with_labels(self.structures[index], self.kept)
        data = attach_neighbours(data, self.cutoff, self.all_pairs_if_isolated)
        if self.cached:
            self._cache[index] = data
        return data


class NoisyDataset(Dataset[Any]):
    """Structures moved to a random point between given and relaxed, plus Gaussian noise (Noisy Nodes).

    Godwin et al. 2021, arXiv 2106.07971, §4. The displacement left to the relaxed positions stays the target of the
    auxiliary head; the energy stays that of the relaxed structure. The noise of a structure in an epoch depends
    on seed, epoch and index alone. Fixed atoms stay where they are.

    Args:
        structures: with relaxed positions.
        noise_std: Å.
        seed: of the noise.
        epoch: of training.
        cutoff: Å.
        all_pairs_if_isolated: see :func:`molflt.data.neighbours.attach_neighbours`.
        kept: the labels wanted besides the relaxed positions, see :func:`with_labels`.
    """

    def __init__(
        self,
        structures: StructureDataset,
        noise_std: float,
        seed: int,
        epoch: int,
        cutoff: float,
        all_pairs_if_isolated: bool,
        kept: Collection[str],
    ) -> None:
        self.kept = (*kept, "positions_relaxed")
        self.structures = structures
        self.noise_std = noise_std
        self.seed = seed
        self.epoch = epoch
        self.cutoff = cutoff
        self.all_pairs_if_isolated = all_pairs_if_isolated

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Any:
        data = with_labels(self.structures[index], self.kept)
        random = np.random.default_rng([self.seed, self.epoch, index])
        along = random.uniform()
        noise = torch.from_numpy(random.normal(scale=self.noise_std, size=tuple(data.positions.shape)))
        moved = data.positions + along * (data.positions_relaxed - data.positions) + noise
        data.positions = torch.where(data.fixed[:, None], data.positions, moved)
        return attach_neighbours(data, self.cutoff, self.all_pairs_if_isolated)


@dataclass(frozen=True)
class TrainingSet:
    """What one pass over a training set tells.

    Attributes:
        statistics: of the label.
        elements: atomic numbers present.
        relaxed: whether every structure has relaxed positions.
        force_std: eV/Å, root mean square component of the forces on atoms free to move; 1 without forces.
        mean_n_atoms: atoms per structure.
        isolated: whether no structure is periodic.
    """

    statistics: Statistics
    elements: list[int]
    relaxed: bool
    force_std: float
    mean_n_atoms: float
    isolated: bool


def read_training_set(
    screening: Screening, kind: StandardiserKind, references: dict[str, float] | None = None
) -> TrainingSet:
    """One pass over a training set.

    Args:
        screening: the structures, of which it is the pass.
        kind: of standardisation.
        references: given reference energies, in the unit of the label; None fits them for kind ``element``.

    Raises:
        InputError: from the screening; elements without a given reference energy.
    """
    target = screening.labels.target
    energies, compositions = [], []
    square, count, relaxed, isolated = 0.0, 0, True, True
    force_square, force_count = 0.0, 0
    for data in screening:
        if screening.forces:
            free_forces = data.forces[~data.fixed]
            force_square += float((free_forces * free_forces).sum())
            force_count += free_forces.numel()
        isolated = isolated and not bool(data.pbc.any())
        energies.append(float(data[target]))
        compositions.append(torch.bincount(data.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1))
        if "positions_relaxed" in data:
            free = (data.positions_relaxed - data.positions)[~data.fixed]
            square += float((free * free).sum())
            count += free.numel()
        else:
            relaxed = False
    composition = torch.stack(compositions)
    elements = torch.nonzero(composition.sum(dim=0)).squeeze(1).tolist()
    squared_displacement = square / count if relaxed and count else 0.0
    given = (
        None if references is None else _given_references(references, elements, screening.labels, screening.source)
    )
    statistics = fit_statistics(
        kind, torch.tensor(energies, dtype=torch.float64), composition, squared_displacement, given
    )
    force_std = (force_square / force_count) ** 0.5 if force_count else 0.0
    mean_n_atoms = float(composition.sum()) / len(composition)
    return TrainingSet(statistics, elements, relaxed, force_std or 1.0, mean_n_atoms, isolated)


def labels(screening: Screening) -> np.ndarray:
    """(n_structures,) eV: the label of every structure that can be used, in a pass over the set.

    Raises:
        InputError: from the screening.
    """
    return np.array([float(data[screening.labels.target]) for data in screening], dtype=np.float64)


def _given_references(
    references: dict[str, float], elements: list[int], labels: LabelSpec, source: str
) -> dict[int, float]:
    given = {atomic_numbers[symbol]: energy * labels.energy_factor for symbol, energy in references.items()}
    absent = [chemical_symbols[z] for z in elements if z not in given]
    if absent:
        raise InputError(
            f"{source}: holds {', '.join(absent)}, for which data.references has no energy; add it, or leave "
            "data.references out to have them fitted"
        )
    return {z: given[z] for z in elements}
