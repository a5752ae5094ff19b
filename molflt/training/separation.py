"""Separation training: molecules far from each other, whose energies add up (DESIGN §4).

What a training set of single molecules never shows, a far field would invent: energies between molecules that do not
touch. So training sees compositions of its structures, too, whose energy is the sum of theirs: two or three at some
distance, and one in a periodic cell. Each has other members, places and orientations in every epoch.
That is right to some meV for neutral closed shells. It is wrong for ions, and wherever forces reach further than
:data:`NEAREST`.
"""

from __future__ import annotations

import numpy as np
from torch.utils.data import Dataset
from torch_geometric.data import Data

from molflt.data.images import in_cell, separate_fragments
from molflt.data.neighbours import attach_neighbours
from molflt.training.prepared import PreparedDataset

SHARE = 0.2
"""Compositions for each structure of the training set, unless told otherwise."""
NEAREST, FURTHEST = 5.5, 40.0
"""Å, between the nearest atoms of two molecules."""
_GAPS = (3.5, 10.0)
"""Å, between a structure in a cell and its images."""
_MEMBERS, _SHARES = (2, 3, 1), (0.5, 0.1, 0.4)
"""How many structures a composition has, and how often; one alone is put in a cell."""


class SeparatedDataset(Dataset[Data]):
    """A prepared training set, and behind it compositions of its structures.

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
