"""Separation training: molecules far from each other, whose energies add up (DESIGN §3, item 11).

What a training set of single molecules never shows, a far field would invent: energies between molecules that do not
touch. So training sees compositions of its structures, too, whose energy is the sum of theirs: two or three at some
distance, eight copies, and one in a periodic cell. Each has other members, places and orientations in every epoch.
That is right to some meV for neutral closed shells. It is wrong for ions, and wherever forces reach further than
:data:`NEAREST`.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation
from torch.utils.data import Dataset
from torch_geometric.data import Data

from molflt.data.neighbours import attach_neighbours
from molflt.training.prepared import PreparedDataset

SHARE = 0.2
"""Compositions for each structure of the training set, unless told otherwise."""
NEAREST, FURTHEST = 5.5, 40.0
"""Å, between the nearest atoms of two molecules."""
_GAPS = (3.5, 10.0)
"""Å, between a copy and the next, where there are many: they nearly touch in some liquids and crystals."""
_KINDS = {"two": 0.4, "three": 0.1, "copies": 0.1, "cell": 0.4}
_MEMBERS = {"two": 2, "three": 3, "copies": 1, "cell": 1}


class SeparatedDataset(Dataset[Data]):
    """A prepared training set, and behind it compositions of its structures.

    The number of atoms of each composition is the same in every epoch, so that batches keep their number; its members
    change places with others of their size.

    Args:
        prepared: structures that are not periodic.
        target: the label that adds up.
        share: compositions for each structure.
        seed: of the compositions.
        epoch: of training.

    Attributes:
        n_atoms: of structures and compositions.
        cached: as that of ``prepared``.
    """

    def __init__(self, prepared: PreparedDataset, target: str, share: float, seed: int, epoch: int) -> None:
        self.prepared, self.target, self.seed, self.epoch = prepared, target, seed, epoch
        self.cached = prepared.cached
        sizes = np.asarray(prepared.structures.n_atoms)
        self._of_size = {int(size): np.flatnonzero(sizes == size) for size in np.unique(sizes)}
        random = np.random.default_rng([seed, len(sizes)])
        kinds = random.choice(list(_KINDS), size=round(share * len(sizes)), p=list(_KINDS.values()))
        self._slots = [(str(kind), random.choice(sizes, size=_MEMBERS[kind])) for kind in kinds]
        totals = [int(members.sum()) * (8 if kind == "copies" else 1) for kind, members in self._slots]
        self.n_atoms = np.concatenate([sizes, np.array(totals, dtype=sizes.dtype)])

    def __len__(self) -> int:
        return len(self.n_atoms)

    def __getitem__(self, index: int) -> Data:
        n = len(self.prepared)
        if index < n:
            return self.prepared[index]
        random = np.random.default_rng([self.seed, self.epoch, index])
        kind, sizes = self._slots[index - n]
        members = [self.prepared.labelled(int(random.choice(self._of_size[int(size)]))) for size in sizes]
        data = (
            apart(members, self.target, random)
            if len(members) > 1
            else repeated(members[0], kind, self.target, random)
        )
        model = self.prepared.model
        return attach_neighbours(data, model.neighbour_cutoff, model.all_pairs_if_isolated)


def apart(members: list[Data], target: str, random: np.random.Generator) -> Data:
    """Structures, each turned at random, in a random direction from those before.

    The distance of the nearest atoms is distributed evenly on a logarithmic scale.
    """
    positions, forces = _turned(members[0], random)
    for member in members[1:]:
        others, others_forces = _turned(member, random)
        gap = float(np.exp(random.uniform(np.log(NEAREST), np.log(FURTHEST))))
        positions = np.concatenate([positions, at_distance(positions, others, _direction(random), gap)])
        forces = np.concatenate([forces, others_forces])
    numbers = torch.cat([member.atomic_numbers for member in members])
    energy = torch.stack([member[target] for member in members]).sum(dim=0)
    return _composition(members[0], numbers, positions, forces, target, energy)


def repeated(member: Data, kind: str, target: str, random: np.random.Generator) -> Data:
    """Eight copies on the corners of a box (``copies``), or one in a periodic box (``cell``)."""
    positions, forces = _turned(member, random)
    box = np.ptp(positions, axis=0) + random.uniform(*_GAPS, size=3)
    if kind == "cell":
        data = _composition(member, member.atomic_numbers, positions, forces, target, member[target])
        data.cell = torch.from_numpy(np.diag(box))[None]
        data.pbc = torch.ones((1, 3), dtype=torch.bool)
        return data
    corners = np.array(list(product((0, 1), repeat=3))) * box
    everywhere = (corners[:, None] + positions).reshape(-1, 3)
    numbers = member.atomic_numbers.repeat(8)
    return _composition(member, numbers, everywhere, np.tile(forces, (8, 1)), target, 8 * member[target])


def at_distance(fixed: np.ndarray, moved: np.ndarray, direction: np.ndarray, gap: float) -> np.ndarray:
    """Positions (n, 3) of ``moved``, shifted along a direction until its nearest atom is ``gap`` away, Å."""
    reach = np.linalg.norm(fixed, axis=1).max() + np.linalg.norm(moved - moved.mean(axis=0), axis=1).max() + gap
    place = moved - moved.mean(axis=0) + reach * direction
    for _ in range(8):
        # A step as long as the excess cannot bring two atoms nearer than the gap.
        place = place - (cdist(fixed, place).min() - gap) * direction
    return place


def _turned(data: Data, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions from their mean and forces, turned at random; forces of nothing are zero."""
    turn = Rotation.random(random_state=random).as_matrix().T
    positions = data.positions.numpy()
    forces = data.forces.numpy() if "forces" in data else np.zeros_like(positions)
    return (positions - positions.mean(axis=0)) @ turn, forces @ turn


def _direction(random: np.random.Generator) -> np.ndarray:
    found = random.normal(size=3)
    return np.asarray(found / np.linalg.norm(found))


def _composition(
    like: Data, numbers: torch.Tensor, positions: np.ndarray, forces: np.ndarray, target: str, energy: torch.Tensor
) -> Data:
    """A structure with the fields of another."""
    data = like.clone()
    data.atomic_numbers, data.positions = numbers, torch.from_numpy(positions)
    data.tags = torch.zeros(len(numbers), dtype=like.tags.dtype)
    data.fixed = torch.zeros(len(numbers), dtype=torch.bool)
    data[target], data.num_nodes = energy, len(numbers)
    if "forces" in like:
        data.forces = torch.from_numpy(forces)
    return data
