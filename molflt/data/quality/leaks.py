"""Contacts of a structure, and identical or nearly identical structures of two sets: leaks."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
from ase.data import covalent_radii
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree
from torch_geometric.data import Data

from molflt.data.dataset import StructureDataset
from molflt.data.neighbours import near_pairs, neighbour_list
from molflt.vocabulary import MAX_ATOMIC_NUMBER

FURTHEST = 4.0
"""Å, largest distance of contacts."""
_BOND, _NEAR, _BEYOND = 1.25, 1.3, 0.5
"""Neighbours are closer than 1.25 times the sum of covalent radii; distances matter to 1.3 times that plus 0.5 Å."""
BIN = 0.02
"""Å, bin width of the distances in codes."""
N_BINS = 1000
"""A code is (atomic number · 128 + atomic number) · N_BINS + bin, the smaller number first."""
_ROUNDS = 4
"""Bonds over which the graphs of two molecules are distinguished."""


class Contacts(NamedTuple):
    """Pairs of near atoms, once each.

    Attributes:
        elements: (2, n_pairs) int64, atomic numbers, the smaller first.
        distances: (n_pairs,) Å.
        codes: (n_pairs,) int64 of both, see :data:`N_BINS`.
        nearest: the smallest code of each pair of elements up to 4 Å, ascending.
        counts: (n_atoms,) int64, neighbours of each atom.
        bonds: (2, n_bonds) int64, neighbours in either order.
        gap: Å, the largest distance between a part of the structure and the rest; infinite beyond 4 Å.
        rupture: the same of parts with an odd number of electrons, over the sum of covalent radii; 0 without any, and
            of what is periodic.
    """

    elements: np.ndarray
    distances: np.ndarray
    codes: np.ndarray
    nearest: np.ndarray
    counts: np.ndarray
    bonds: np.ndarray
    gap: float
    rupture: float

    @classmethod
    def of(cls, data: Data) -> Contacts:
        """Examine a structure, whose neighbour list is not needed.

        Raises:
            InputError: as :func:`molflt.data.neighbours.neighbour_list`.
        """
        edges, offsets = neighbour_list(data.positions, data.cell, data.pbc, FURTHEST)
        positions, numbers = data.positions.numpy(), data.atomic_numbers.numpy()
        i, j = edges.numpy()
        apart = positions[i] - positions[j] - offsets.numpy() @ data.cell[0].numpy()
        distances = np.linalg.norm(apart, axis=1)
        radii = covalent_radii[numbers]
        both = radii[i] + radii[j]
        bonds = edges.numpy()[:, distances < _BOND * both]
        counts = np.bincount(bonds[0], minlength=len(numbers))
        # The nearest of several images; an atom's own images are dropped.
        order = np.lexsort((distances, i * len(numbers) + j))
        order = order[i[order] != j[order]]
        i_j = i[order] * len(numbers) + j[order]
        first = order[np.diff(i_j, prepend=-1) != 0]
        shape = (len(numbers), len(numbers))
        rows, columns = (atoms[first].astype(np.int32) for atoms in (i, j))
        tree = minimum_spanning_tree(csr_array((distances[first], (rows, columns)), shape=shape)).data
        gap = float(tree.max(initial=0.0)) if len(tree) == len(numbers) - 1 else math.inf
        n_parts, part = connected_components(csr_array((np.ones(len(bonds[0])), bonds), shape=shape), directed=False)
        across, apart_from_rest = part[i] != part[j], np.full(n_parts, math.inf)
        np.minimum.at(apart_from_rest, part[i][across], (distances / both)[across])
        odd = (np.bincount(part, numbers) % 2 == 1) & (n_parts > 1) & (not bool(data.pbc.any()))
        rupture = float(apart_from_rest[odd].max(initial=0.0))
        near = (i <= j) & (distances < np.minimum(_NEAR * both + _BEYOND, FURTHEST))
        pairs = np.sort(numbers[np.stack([i, j])], axis=0)
        codes = (pairs[0] * 128 + pairs[1]) * N_BINS + (distances / BIN).astype(np.int64)
        nearest = first_of_each(np.unique(codes))
        return cls(pairs[:, near], distances[near], codes[near], nearest, counts, bonds, gap, rupture)

    def graph(self, atomic_numbers: np.ndarray) -> int:
        """Hash a molecular graph, independent of atom order and geometry (Weisfeiler and Leman)."""
        colours = _mixed(atomic_numbers.astype(np.uint64))
        for _ in range(_ROUNDS):
            around = np.zeros_like(colours)
            np.add.at(around, self.bonds[0], colours[self.bonds[1]])
            colours = _mixed(colours * np.uint64(3) + around)
        return int.from_bytes(hashlib.blake2b(np.sort(colours).tobytes(), digest_size=7).digest(), "little")


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Map numbers to pseudo-random ones, one to one (the finaliser of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def first_of_each(codes: np.ndarray) -> np.ndarray:
    """Smallest distance of each pair of elements; codes are ascending."""
    return codes[np.diff(codes // N_BINS, prepend=-1) != 0]


REACH = 5.0
"""Å; largest compared distance."""
SAME = 0.02
"""Å; distances that differ by less are the same."""
TOLERANCE = 0.03
"""Largest distance of two sketches whose structures are compared."""
_TRIED = 4
_WEIGHTS = np.stack([0.5 + np.modf(np.arange(MAX_ATOMIC_NUMBER + 1) * x)[0] for x in (0.618034, 0.414214)])


class Sketches(NamedTuple):
    """Descriptors of structures, invariant under rotation, translation, wrapping and reordering.

    Attributes:
        compositions: (n,) anything that tells compositions apart.
        values: (n, 9) Å or without a unit; they move by about 0.01 when every atom moves by 0.01 Å.
    """

    compositions: np.ndarray
    values: np.ndarray


def sketch(data: Data) -> np.ndarray:
    """(9,) smooth sums over the distances of each atom's neighbours, images included; for a valid structure."""
    numbers = data.atomic_numbers.numpy()
    pairs, distances = near_pairs(data, REACH, checked=True)
    share = distances / REACH
    fade, envelope = 1 - share, np.square(1 - share * share)
    values = [0.0]
    if not bool(data.pbc.any()):
        points = data.positions.numpy()
        values = [float(np.sqrt(((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()))]
    i, j = pairs.T
    for weight, shape in zip(_WEIGHTS[:, numbers], (envelope, envelope * fade * fade * fade), strict=True):
        sums = np.bincount(i, weight[j] * shape, len(numbers)) + np.bincount(j, weight[i] * shape, len(numbers))
        # Extremes depend on few atoms: an adsorbate that has moved changes them, but no mean over the slab.
        values += [float(np.mean(weight * sums)), float(np.std(weight * sums)), float(sums.min()), float(sums.max())]
    return np.array(values, dtype=np.float32)


def nearly_identical(first: Data, second: Data) -> bool:
    """True if all distances up to :data:`REACH`, by elements, agree to :data:`SAME` Å."""
    lists = []
    for data in (first, second):
        pairs, distances = near_pairs(data, REACH)
        numbers = data.atomic_numbers.numpy()
        lighter, heavier = np.sort(numbers[pairs], axis=1).T
        kinds = lighter * (MAX_ATOMIC_NUMBER + 1) + heavier
        lists.append({kind: np.sort(distances[kinds == kind]) for kind in np.unique(kinds)})
    for kind in lists[0].keys() | lists[1].keys():
        a, b = (found.get(kind, np.empty(0)) for found in lists)
        # A distance at the very end of the reach may be beyond it in the other.
        n = min(len(a), len(b))
        beyond = np.concatenate([a[n:], b[n:]])
        if np.abs(a[:n] - b[:n]).max(initial=0.0) > SAME or beyond.min(initial=REACH) < REACH - SAME:
            return False
    return True


def alike(
    known: Sketches, asked: Sketches, known_data: StructureDataset, asked_data: StructureDataset
) -> list[tuple[int, int]]:
    """Find pairs of indices: a structure asked about, and a known one nearly identical to it.

    Sketches, in the order of their structures, select candidates; time grows as n log n, and memory as n.
    """
    places, wanted = (_by_composition(one.compositions) for one in (known, asked))
    found = []
    for composition in wanted.keys() & places.keys():
        candidates, asking = places[composition], wanted[composition]
        tree = cKDTree(known.values[candidates])
        _, near = tree.query(asked.values[asking], k=range(1, _TRIED + 1), distance_upper_bound=TOLERANCE)
        for a, row in zip(asking.tolist(), near, strict=True):
            for k in (int(candidates[k]) for k in row if k < len(candidates)):
                if nearly_identical(known_data[k], asked_data[a]):
                    found.append((a, k))
                    break
    return sorted(found)


def _by_composition(compositions: np.ndarray) -> dict[int, np.ndarray]:
    """Indices of the structures of each composition."""
    order = np.argsort(compositions, kind="stable")
    ordered = compositions[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(order)])
    return dict(zip(ordered[first].tolist(), np.split(order, first)[1:], strict=True))
