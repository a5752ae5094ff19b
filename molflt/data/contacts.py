"""Which atoms of a structure are close to each other, at what distances, and which hang together."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from ase.data import covalent_radii
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch_geometric.data import Data

from molflt.data.neighbours import neighbour_list

FURTHEST = 4.0
"""Å."""
_BOND, _NEAR, _BEYOND = 1.25, 1.3, 0.5
"""Neighbours are closer than 1.25 times the sum of covalent radii; distances matter to 1.3 times that plus 0.5 Å."""
BIN = 0.02
"""Å, of the distances in codes."""
N_BINS = 1000
"""A code is (atomic number · 128 + atomic number) · N_BINS + bin, the smaller number first."""
_ROUNDS = 4
"""Bonds over which the graphs of two molecules are told apart."""


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
    """

    elements: np.ndarray
    distances: np.ndarray
    codes: np.ndarray
    nearest: np.ndarray
    counts: np.ndarray
    bonds: np.ndarray
    gap: float

    @classmethod
    def of(cls, data: Data) -> Contacts:
        """Look at a structure, whose neighbour list is not needed.

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
        # Of several images the nearest; an atom is in no need of its own.
        order = np.lexsort((distances, i * len(numbers) + j))
        order = order[i[order] != j[order]]
        i_j = i[order] * len(numbers) + j[order]
        first = order[np.diff(i_j, prepend=-1) != 0]
        shape = (len(numbers), len(numbers))
        rows, columns = (atoms[first].astype(np.int32) for atoms in (i, j))
        tree = minimum_spanning_tree(csr_array((distances[first], (rows, columns)), shape=shape)).data
        gap = float(tree.max(initial=0.0)) if len(tree) == len(numbers) - 1 else math.inf
        near = (i <= j) & (distances < np.minimum(_NEAR * both + _BEYOND, FURTHEST))
        pairs = np.sort(numbers[np.stack([i, j])], axis=0)
        codes = (pairs[0] * 128 + pairs[1]) * N_BINS + (distances / BIN).astype(np.int64)
        return cls(pairs[:, near], distances[near], codes[near], first_of_each(np.unique(codes)), counts, bonds, gap)

    def graph(self, atomic_numbers: np.ndarray) -> bytes:
        """The same for every order of the atoms and every geometry of the same graph (Weisfeiler and Leman)."""
        colours = _mixed(atomic_numbers.astype(np.uint64))
        for _ in range(_ROUNDS):
            around = np.zeros_like(colours)
            np.add.at(around, self.bonds[0], colours[self.bonds[1]])
            colours = _mixed(colours * np.uint64(3) + around)
        return np.sort(colours).tobytes()


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers made of others, one of each, as if drawn at random (the finaliser of SplitMix64)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def first_of_each(codes: np.ndarray) -> np.ndarray:
    """Of each pair of elements the smallest distance; codes are ascending."""
    return codes[np.diff(codes // N_BINS, prepend=-1) != 0]
