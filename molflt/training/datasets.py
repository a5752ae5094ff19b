"""Structures on their way to the model: noise, neighbour lists, a cache, statistics of the labels."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from molflt.data.neighbours import attach_neighbours
from molflt.data.progress import track
from molflt.data.sources import StructureDataset
from molflt.errors import InputError
from molflt.model.standardiser import StandardiserKind, Statistics, fit_statistics
from molflt.vocabulary import MAX_ATOMIC_NUMBER, TARGETS

CACHED_ATOMS = 300_000
"""A set of up to so many atoms keeps its neighbour lists in memory: about half a gigabyte at 6 Å."""


def with_labels(data: Any, kept: Collection[str]) -> Any:
    """A copy of a structure with only these of its labels and relaxed positions.

    Whatever else a file happens to hold, perhaps for some structures only, need not fit into a batch.
    """
    data = copy.copy(data)
    for name in (*TARGETS, "positions_relaxed"):
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


def label_statistics(
    structures: StructureDataset, target: str, kind: StandardiserKind, source: str
) -> tuple[Statistics, list[int], bool]:
    """One pass over a training set.

    Returns:
        Statistics of the label, the atomic numbers present, and whether every structure has relaxed positions.

    Raises:
        InputError: structures without the label, with their count and the first names.
    """
    energies, compositions = [], []
    unlabelled: list[str] = []
    square, count, relaxed = 0.0, 0, True
    for data in track((structures[i] for i in range(len(structures))), "reading labels", len(structures)):
        if target not in data:
            unlabelled.append(data.name)
            continue
        energies.append(float(data[target]))
        compositions.append(torch.bincount(data.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1))
        if "positions_relaxed" in data:
            free = (data.positions_relaxed - data.positions)[~data.fixed]
            square += float((free * free).sum())
            count += free.numel()
        else:
            relaxed = False
    if unlabelled:
        raise InputError(
            f"{source}: {len(unlabelled)} of {len(structures)} structures have no label '{target}' "
            f"(first: {', '.join(unlabelled[:3])}); choose another data.target or remove them"
        )
    composition = torch.stack(compositions)
    squared_displacement = square / count if relaxed and count else 0.0
    statistics = fit_statistics(kind, torch.tensor(energies, dtype=torch.float64), composition, squared_displacement)
    return statistics, torch.nonzero(composition.sum(dim=0)).squeeze(1).tolist(), relaxed


def labels(structures: StructureDataset, target: str, source: str) -> np.ndarray:
    """(n_structures,) eV: the label of every structure.

    Raises:
        InputError: as :func:`label_statistics`.
    """
    read = track((structures[i] for i in range(len(structures))), "reading labels", len(structures))
    found = [float(structure[target]) if target in structure else None for structure in read]
    missing = [i for i, value in enumerate(found) if value is None]
    if missing:
        names = ", ".join(structures[i].name for i in missing[:3])
        raise InputError(
            f"{source}: {len(missing)} of {len(found)} structures have no label '{target}' (first: {names}); "
            "choose labelled data or remove them"
        )
    return np.asarray(found, dtype=np.float64)
