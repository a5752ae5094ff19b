"""Structures as a model sees them in training: with neighbours and noise, and compositions of several."""

from __future__ import annotations

import copy
from collections.abc import Collection
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch.utils.data import Dataset
from torch_geometric.data import Data

from molflt.data.dataset import StructureDataset
from molflt.data.extras import extra_of
from molflt.data.images import OneSlab, in_cell, separate_fragments, translations, unwrap
from molflt.data.neighbours import attach_neighbours
from molflt.data.progress import track
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.vocabulary import LABELS, TAG_ADSORBATE

PARTIAL_CHARGES = "partial_charges"
"""Array in the data, e."""
SIGN = "interaction_sign"
"""Of a structure's energy in an interaction energy: 1, -1 or 0."""
CACHED_ATOMS = 300_000
"""A set of up to so many atoms keeps its neighbour lists in memory: about half a gigabyte at 6 Å."""
_ON_THE_WAY = 0.5
"""The share of structures that is not as given."""
_SHIFT, _TURN = 0.2, 10.0
"""Å and degrees, standard deviations of the motion of the whole adsorbate at its strongest."""
SHARE = 0.2
"""Compositions, or pairs of adsorbates, for each structure of the training set, unless told otherwise."""
_MOST_SEARCHED, _PARTNERS = 5_000, 5
"""Structures among which pairs are looked for, and how many are tried with one."""
NEAREST, FURTHEST = 5.5, 40.0
"""Å, between the nearest atoms of two molecules."""
_GAPS = (3.5, 10.0)
"""Å, between a structure in a cell and its images."""
_MEMBERS, _SHARES = (2, 3, 1), (0.5, 0.1, 0.4)
"""How many structures a composition has, and how often; one alone is put in a cell."""


class NeighbourDataset(Dataset[Data]):
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
        self.epoch = 0
        self._cache: dict[int, Data] = {}

    def __len__(self) -> int:
        return len(self.structures)

    def __getitem__(self, index: int) -> Data:
        if index in self._cache:
            return self._cache[index]
        data = self._moved(self.labelled(index), index)
        data = attach_neighbours(data, self.model.neighbour_cutoff, self.model.all_pairs_if_isolated, checked=True)
        if self.cached:
            self._cache[index] = data
        return data

    def labelled(self, index: int) -> Data:
        """Copy a structure with the labels wanted."""
        data = copy.copy(self.structures[index])
        for name in LABELS:
            if name in data and name not in self.kept:
                del data[name]
        if PARTIAL_CHARGES in self.kept:
            stored = extra_of(data).arrays.get(PARTIAL_CHARGES)
            if stored is None or stored.shape != (data.num_nodes,):
                raise InputError(
                    f"{data.name}: no array '{PARTIAL_CHARGES}' with the partial charge of each atom, in e"
                )
            data[PARTIAL_CHARGES] = torch.from_numpy(np.asarray(stored, dtype=np.float64))
        return data

    def _moved(self, data: Data, index: int) -> Data:
        """The structure with the positions that the model is to see."""
        return data


class _Pair(NamedTuple):
    """Places of two structures with the same slab, its lattice translations, and whether the pair needs two cells."""

    first: int
    second: int
    moves: np.ndarray
    doubled: bool
    n_atoms: int


def _pairs(structures: StructureDataset, share: float, seed: int) -> list[_Pair]:
    """Find pairs of adsorbates that fit on one slab, at random."""
    random = np.random.default_rng([seed, len(structures)])
    groups: dict[tuple[bytes, ...], dict[int, Data]] = {}
    for k in random.permutation(len(structures))[:_MOST_SEARCHED].tolist():
        data = structures[k]
        slab = data.tags != TAG_ADSORBATE
        if slab.any() and not slab.all():
            parts = data.atomic_numbers[slab], data.cell.round(decimals=1) + 0.0, data.positions[slab].round() + 0.0
            groups.setdefault(tuple(part.numpy().tobytes() for part in parts), {})[k] = data
    found: list[_Pair] = []
    for group in track([group for group in groups.values() if len(group) > 1], "pairs of adsorbates"):
        moves = translations(next(iter(group.values())))
        for first in random.choice(list(group), size=round(share * len(group))).tolist():
            others = [k for k in random.choice(list(group), size=_PARTNERS).tolist() if k != first]
            for doubled, second in product((False, True), others):
                both = OneSlab(group[first], group[second], moves, doubled)
                if both.fits:
                    found.append(_Pair(first, second, moves, doubled, both.n_atoms))
                    break
    return found


class NoisyDataset(NeighbourDataset):
    """Structures as given and on their way to the relaxed positions, with noise (Noisy Nodes).

    Godwin et al. 2021, arXiv 2106.07971, §4. Of a structure every second epoch, at random, has the given positions;
    the others have a point between given and relaxed. Then the adsorbate is shifted and turned as a whole a little,
    and every atom gets Gaussian noise. The displacement left to the relaxed positions stays the target of the
    auxiliary head, and the energy stays that of the relaxed structure. The noise of a structure depends on seed,
    epoch and index alone. Fixed atoms stay where they are, and the relaxed positions are kept.

    Behind them are **pairs** of adsorbates on one slab. An atom's share of an adsorption energy depends on its
    surroundings, and no adsorbate has larger ones than the largest in training: beyond, the errors of all shares add
    up. So training sees adsorbates in each other's company, too, not bonded, with the sum of their energies. What two
    of them 3.2 to 5.5 Å apart exchange is neglected. A pair has another place and other noise in every epoch.

    Args:
        noise_std: standard deviation of the noise, Å.
        share: pairs for each structure; fewer are made where few structures have the same slab.
    """

    def __init__(
        self,
        structures: StructureDataset,
        model: ModelConfig,
        kept: Collection[str],
        noise_std: float,
        seed: int,
        epoch: int,
        share: float = 0.0,
    ) -> None:
        super().__init__(structures, model, (*kept, "positions_relaxed"))
        self.noise_std, self.seed, self.epoch = noise_std, seed, epoch
        self.cached = False
        self._pairs = _pairs(structures, share, seed) if share else []
        self.n_atoms = np.append(self.n_atoms, np.array([pair.n_atoms for pair in self._pairs], dtype=int))

    def __len__(self) -> int:
        return len(self.n_atoms)

    def __getitem__(self, index: int) -> Data:
        if index < len(self.structures):
            return super().__getitem__(index)
        pair = self._pairs[index - len(self.structures)]
        first, second = (self._moved(self.labelled(k), k) for k in (pair.first, pair.second))
        random = np.random.default_rng([self.seed, self.epoch, index])
        data = OneSlab(first, second, pair.moves, pair.doubled).filled(random)
        return attach_neighbours(data, self.model.neighbour_cutoff, self.model.all_pairs_if_isolated)

    def _moved(self, data: Data, index: int) -> Data:
        random = np.random.default_rng([self.seed, self.epoch, index])
        along = random.uniform() if random.uniform() < _ON_THE_WAY else 0.0
        given, fixed = data.positions.numpy(), data.fixed.numpy()
        moved = given + along * (data.positions_relaxed.numpy() - given)
        adsorbate = np.flatnonzero((data.tags.numpy() == TAG_ADSORBATE) & ~fixed)
        if 0 < len(adsorbate) < len(moved):
            strength = random.uniform()
            arms = unwrap(moved[adsorbate], data.cell[0].numpy(), data.pbc[0].numpy())
            arms = arms - arms.mean(axis=0)
            turn = Rotation.from_rotvec(random.normal(scale=strength * _TURN, size=3), degrees=True).as_matrix()
            shift = random.normal(scale=strength * _SHIFT, size=3)
            moved[adsorbate] += arms @ turn.T - arms + shift
        moved += random.normal(scale=self.noise_std, size=moved.shape)
        moved[fixed] = given[fixed]
        data.positions = torch.from_numpy(moved)
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

    def __init__(self, prepared: NeighbourDataset, share: float, seed: int, epoch: int) -> None:
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


class DimerDataset(Dataset[list[Data]]):
    """A prepared training set whose dimers are in one batch with their molecules.

    Its elements are lists: a dimer, 1 by its :data:`SIGN`, with the two molecules behind it, -1, or one other
    structure, 0. So the error of an interaction energy is a sum over a batch.

    Args:
        prepared: structures, of which a dimer comes just before its two molecules.
        dimers: their places, from :func:`dimers_of`.
    """

    def __init__(self, prepared: NeighbourDataset, dimers: np.ndarray) -> None:
        self.prepared, self.cached, self.epoch = prepared, prepared.cached, 0
        first = np.ones(len(prepared) + 1, dtype=bool)
        first[dimers + 1] = first[dimers + 2] = False
        self._starts = np.flatnonzero(first)
        self.n_atoms = np.add.reduceat(prepared.n_atoms, self._starts[:-1])

    def __len__(self) -> int:
        return len(self.n_atoms)

    def __getitem__(self, index: int) -> list[Data]:
        members = [copy.copy(self.prepared[k]) for k in range(self._starts[index], self._starts[index + 1])]
        for data, sign in zip(members, (0,) if len(members) == 1 else (1, -1, -1), strict=True):
            data[SIGN] = data.positions.new_full((1,), sign)
        return members


Prepared = NeighbourDataset | SeparatedDataset | DimerDataset


def dimers_of(compositions: np.ndarray) -> np.ndarray:
    """Places of structures that have the atoms of the next two together, of (n_structures, n_elements) counts."""
    found: list[int] = []
    for place in np.flatnonzero((compositions[:-2] == compositions[1:-1] + compositions[2:]).all(axis=1)).tolist():
        if not found or place > found[-1] + 2:
            found.append(place)
    return np.array(found, dtype=np.int64)
