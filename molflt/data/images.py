"""Periodic images: nearest images, unwrapped molecules, separated fragments, and two adsorbates on one slab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from ase.geometry import complete_cell, find_mic, minkowski_reduce
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist
from scipy.spatial.transform import Rotation
from torch_geometric.data import Data

from molflt.data.quality.extents import check_extents, open_directions
from molflt.errors import InputError
from molflt.vocabulary import TAG_ADSORBATE, TARGETS


def nearest_image(
    positions: np.ndarray, moved: np.ndarray, cell: np.ndarray, pbc: np.ndarray, where: str
) -> np.ndarray:
    """Find the periodic image of ``moved`` nearest to ``positions``, atom by atom.

    Args:
        positions: (n_atoms, 3), Å.
        moved: (n_atoms, 3), Å.
        cell: (3, 3), Å, lattice vectors as rows.
        pbc: (3,), bool.
        where: file and record, for messages.

    Returns:
        (n_atoms, 3), Å: ``positions`` plus the minimum-image displacement, exact for skewed cells.

    Raises:
        InputError: a number is not finite, the periodic lattice vectors are zero or dependent, or the structure is
            invalid: see :mod:`molflt.data.quality.extents`.
    """
    if not (np.isfinite(positions).all() and np.isfinite(moved).all() and np.isfinite(cell).all()):
        raise InputError(f"{where}: positions or cell hold NaN or infinity; correct or remove the record")
    try:
        check_extents(positions, cell, pbc)
        check_extents(moved, np.zeros((3, 3)), np.zeros(3, dtype=bool))
        if not pbc.any():
            return moved
        full = cell.copy()
        full[~pbc] = open_directions(cell, pbc)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    displacements = moved - positions
    if not _are_shortest(displacements, full):
        displacements, _ = shortest_images(displacements, full, pbc)
    return positions + displacements


def shortest_images(vectors: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shortest periodic image of each vector, (n, 3) Å, and its length, (n,) Å.

    ASE's ``find_mic`` accepts a vector shorter than half of every lattice vector without a search, which is right
    only in a reduced cell. Rows of the (3, 3) cell that are not periodic may be zero.
    """
    reduced, _ = minkowski_reduce(complete_cell(cell), pbc)
    images, lengths = find_mic(vectors, reduced, pbc)
    return images, lengths


def _are_shortest(displacements: np.ndarray, cell: np.ndarray) -> bool:
    """True if the lengths alone show that no lattice vector shortens a displacement."""
    # a lattice vector is at least as long as the smallest distance between two planes of the lattice
    spacing = 1.0 / np.sqrt((np.linalg.inv(cell) ** 2).sum(axis=0).max())
    return bool((displacements**2).sum(axis=1).max(initial=0.0) < (0.5 * spacing) ** 2)


_BONDED = 1.6
"""Å. A molecule whose parts are no further apart is connected; a longer bond needs a look at the images."""


def unwrap(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Unwrap a molecule of (n_atoms, 3) Å across the boundaries of its (3, 3) cell.

    Atoms are joined one by one along the shortest distances between images; the first stays where it is.
    """
    n = len(positions)
    if n < 2 or not pbc.any():
        return positions
    if pbc.all() and _are_shortest(np.ptp(positions, axis=0)[None], cell):
        return positions
    # Paths of up to n bonds between the first atom and each; divided by n, their numbers stay finite.
    if np.linalg.matrix_power((cdist(positions, positions) < _BONDED) / n, n)[0].all():
        return positions
    i, j = np.triu_indices(n, 1)
    vectors = positions[j] - positions[i]
    vectors, lengths = shortest_images(vectors, cell, pbc)
    tree = minimum_spanning_tree(csr_array((lengths, (i, j)), shape=(n, n)))
    order, before = breadth_first_order(tree, 0, directed=False)
    step = np.zeros((n, n, 3))
    step[i, j], step[j, i] = vectors, -vectors
    found = positions.copy()
    for atom in order[1:]:
        found[atom] = found[before[atom]] + step[before[atom], atom]
    return found


def separate_fragments(members: Sequence[Data], gaps: Sequence[float], random: np.random.Generator) -> Data:
    """Combine isolated structures at given distances, with random rotations and directions.

    ``gaps``, in Å, are the distances of each member but the first from the nearest atom of those before.
    """
    positions, forces = _turned(members[0], random)
    for member, gap in zip(members[1:], gaps, strict=True):
        others, others_forces = _turned(member, random)
        positions = np.concatenate([positions, at_distance(positions, others, _direction(random), gap)])
        forces = np.concatenate([forces, others_forces])
    return _composition(members, positions, forces)


def in_cell(member: Data, gaps: np.ndarray, random: np.random.Generator) -> Data:
    """Put an isolated structure in a periodic box, (3,) Å from its images along the edges."""
    positions, forces = _turned(member, random)
    data = _composition([member], positions, forces)
    data.cell = torch.from_numpy(np.diag(np.ptp(positions, axis=0) + gaps))[None]
    data.pbc = torch.ones((1, 3), dtype=torch.bool)
    return data


BESIDE = (3.2, 5.5)
"""Å, from an adsorbate to the next on one slab: with no bond between them, and within reach of a local model."""
_SAME_PLACE = 0.2
"""Å by which an atom of a slab may miss the place of the next when a lattice translation takes it there."""


def translations(slab: Data) -> np.ndarray:
    """Lattice translations of a slab within its cell, (n, 3) Å; the first is zero. An adsorbate is left out."""
    chosen, pbc = (slab.tags != TAG_ADSORBATE).numpy(), slab.pbc[0].numpy()
    positions, numbers = slab.positions.numpy()[chosen], slab.atomic_numbers.numpy()[chosen]
    cell = complete_cell(slab.cell[0].numpy())
    found = positions[numbers == numbers[0]] - positions[0]
    moved, at = (_wrapped(each, np.linalg.inv(cell), pbc) for each in (positions + found[:, None], positions))
    _, nearest = KDTree(at, boxsize=pbc.astype(float)).query(moved)
    missed = moved - at[nearest]
    missed = np.linalg.norm((missed - np.round(missed) * pbc) @ cell, axis=-1)
    return np.asarray(found[((missed < _SAME_PLACE) & (numbers[nearest] == numbers)).all(axis=1)])


def _wrapped(positions: np.ndarray, inverse: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Fractional coordinates from 0 to 1 where the structure is periodic."""
    fractions = positions @ inverse
    # Rounding may take a small negative number to 1.
    return np.asarray(np.where(pbc, fractions % 1.0 % 1.0, fractions))


@dataclass(frozen=True)
class OneSlab:
    """The slab of a structure with its own adsorbate and that of another structure beside it.

    Attributes:
        first: structure with the slab.
        second: structure with the same slab.
        moves: (n, 3) Å, lattice translations of the slab, from :func:`translations`.
        doubled: make the cell twice as long, along the shorter lattice vector in the surface.
    """

    first: Data
    second: Data
    moves: np.ndarray
    doubled: bool

    @cached_property
    def own(self) -> Data:
        """The slab with its own adsorbate, in the cell of both."""
        data = self.first.clone()
        if self.doubled:
            shorter = int(data.cell[0, :2].norm(dim=1).argmin())
            _append(data, self.first, self.first.tags != TAG_ADSORBATE, self.first.cell[0, shorter])
            data.cell[0, shorter] *= 2
        return data

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return len(self.own.tags) + int((self.second.tags == TAG_ADSORBATE).sum())

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Translations of the second adsorbate, (n, 3) Å, and its distance from the first after each, (n,) Å."""
        cell = self.own.cell[0].numpy()
        copied = (self.own.cell - self.first.cell)[0].sum(dim=0).numpy()
        moves = np.concatenate([self.moves, self.moves + copied]) if self.doubled else self.moves
        own, others = (data.positions.numpy()[data.tags == TAG_ADSORBATE] for data in (self.first, self.second))
        between = others[:, None] + moves[:, None, None] - own
        _, lengths = shortest_images(between.reshape(-1, 3), cell, self.first.pbc[0].numpy())
        return moves, lengths.reshape(len(moves), -1).min(axis=1)

    @property
    def fits(self) -> bool:
        """True if the second adsorbate has a place :data:`BESIDE` the first."""
        return bool(_beside(self.places[1]).any())

    def filled(self, random: np.random.Generator) -> Data:
        """Put the second adsorbate at one of the places, at random, or else as far from the first as it goes.

        Energies are added.
        """
        moves, gaps = self.places
        beside = _beside(gaps)
        fitting = np.flatnonzero(beside if beside.any() else gaps == gaps.max())
        data, move = self.own.clone(), torch.from_numpy(moves[random.choice(fitting)])
        _append(data, self.second, self.second.tags == TAG_ADSORBATE, move)
        for target in TARGETS:
            if target in data:
                data[target] = self.first[target] + self.second[target]
        return data


def _append(data: Data, other: Data, chosen: torch.Tensor, shift: torch.Tensor) -> None:
    """Add atoms of another structure."""
    for name in ("atomic_numbers", "tags", "fixed"):
        data[name] = torch.cat([data[name], other[name][chosen]])
    for name in {"positions", "positions_relaxed"} & set(data.keys()):
        data[name] = torch.cat([data[name], (other[name][chosen] + shift).to(data[name].dtype)])
    data.num_nodes = len(data.tags)


def _beside(gaps: np.ndarray) -> np.ndarray:
    return (gaps >= BESIDE[0]) & (gaps <= BESIDE[1])


def at_distance(fixed: np.ndarray, moved: np.ndarray, direction: np.ndarray, gap: float) -> np.ndarray:
    """Shift ``moved``, (n, 3), along a direction until its nearest atom is ``gap`` Å away."""
    reach = np.linalg.norm(fixed, axis=1).max() + np.linalg.norm(moved - moved.mean(axis=0), axis=1).max() + gap
    place = moved - moved.mean(axis=0) + reach * direction
    for _ in range(8):
        # A step as long as the excess cannot bring two atoms closer than the gap.
        place = place - (cdist(fixed, place).min() - gap) * direction
    return place


def _turned(data: Data, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rotate centred positions and forces at random; forces are zero if missing."""
    turn = Rotation.random(random_state=random).as_matrix().T
    positions = data.positions.numpy()
    forces = data.forces.numpy() if "forces" in data else np.zeros_like(positions)
    return (positions - positions.mean(axis=0)) @ turn, forces @ turn


def _direction(random: np.random.Generator) -> np.ndarray:
    found = random.normal(size=3)
    return np.asarray(found / np.linalg.norm(found))


def _composition(members: Sequence[Data], positions: np.ndarray, forces: np.ndarray) -> Data:
    """Combine fields as in the first member, with the sum of the energies."""
    data = members[0].clone()
    data.atomic_numbers = torch.cat([member.atomic_numbers for member in members])
    data.positions = torch.from_numpy(positions)
    data.tags = torch.cat([member.tags for member in members])
    data.fixed = torch.cat([member.fixed for member in members])
    data.num_nodes = len(positions)
    for target in TARGETS:
        if target in data:
            data[target] = torch.stack([member[target] for member in members]).sum(dim=0)
    if any("charge" in member for member in members):
        data.charge = sum((member.charge for member in members if "charge" in member), torch.zeros(1).double())
    if "forces" in data:
        data.forces = torch.from_numpy(forces)
    return data
