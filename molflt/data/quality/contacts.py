"""Contacts of the atoms of a structure, and what they contribute to the domain of a training set."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import numpy as np
from ase.data import chemical_symbols, covalent_radii
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree
from torch_geometric.data import Data

from molflt.data.neighbours import neighbour_list
from molflt.data.quality.occurrence import Sight

FURTHEST = 4.0
"""Å, largest distance of contacts."""
_BOND, _NEAR, _BEYOND = 1.25, 1.3, 0.5
"""Neighbours are closer than 1.25 times the sum of covalent radii; distances matter to 1.3 times that plus 0.5 Å."""
_BONDS = 8
"""Fewest bonds over which their strain is averaged: that of one, as in H2 and F2, tells which elements it is of."""
BIN = 0.02
"""Å, bin width of the distances in codes."""
N_BINS = 1000
"""A code is (atomic number · 128 + atomic number) · N_BINS + bin, the smaller number first."""
_ELEMENT = 1000
"""The code of an environment that counts neighbours is atomic number · _ELEMENT + neighbours."""
NONMETALS = (1, 2, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 34, 35, 36, 53, 54)
"""Atomic numbers; all others count as metals."""
_MOST_OF_EACH = np.array([*len(NONMETALS) * (7,), 1])
"""Numbers of neighbours that are told apart: of each nonmetal, and of metals."""
_THREE_BITS = 3 * np.arange(len(NONMETALS) + 2)
"""Places in the code of a nonmetal's environment: of these numbers, then of its own element."""
_NONMETAL = 1 << int(_THREE_BITS[-1])
"""The least of these codes; those of metals are smaller."""
_ROUNDS = 4
"""Bonds over which the graphs of two molecules are distinguished."""


class Contacts(NamedTuple):
    """Pairs of near atoms, once each.

    Attributes:
        elements: (2, n_pairs) int64, atomic numbers, the smaller first.
        distances: (n_pairs,) Å.
        codes: (n_pairs,) int64 of both, see :data:`N_BINS`.
        nearest: the smallest code of each pair of elements up to 4 Å, ascending.
        bonds: (2, n_bonds) int64, neighbours in either order.
        gap: Å, the largest distance between a part of the structure and the rest; infinite beyond 4 Å.
        rupture: the same of parts with an odd number of electrons, over the sum of covalent radii; 0 without any, and
            of what is periodic.
        strain: the mean over bonds of ln(length/sum of covalent radii); NaN with fewer than eight bonds.
    """

    elements: np.ndarray
    distances: np.ndarray
    codes: np.ndarray
    nearest: np.ndarray
    bonds: np.ndarray
    gap: float
    rupture: float
    strain: float

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
        bound = distances < _BOND * both
        bonds = edges.numpy()[:, bound]
        strain = float(np.log((distances / both)[bound]).mean()) if bound.sum() >= 2 * _BONDS else math.nan
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
        return cls(pairs[:, near], distances[near], codes[near], nearest, bonds, gap, rupture, strain)

    def environments(self, atomic_numbers: np.ndarray) -> np.ndarray:
        """Codes of the atoms, one of each, ascending: of nonmetals with what is bonded to them, of metals a count."""
        nonmetal = atomic_numbers[:, None] == np.array(NONMETALS)
        metal = ~nonmetal.any(axis=1)
        bonded = np.zeros((len(metal), len(_MOST_OF_EACH)), dtype=np.int64)
        np.add.at(bonded, self.bonds[0], np.column_stack([nonmetal, metal])[self.bonds[1]])
        around = np.column_stack([np.minimum(bonded, _MOST_OF_EACH), nonmetal.argmax(axis=1) + 1])
        counted = atomic_numbers * _ELEMENT + bonded.sum(axis=1).clip(max=_ELEMENT - 1)
        return np.unique(np.where(metal, counted, (around << _THREE_BITS).sum(axis=1)))

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


def described(environment: int) -> str:
    """Describe the code of an environment in words."""
    if environment < _NONMETAL:
        element, count = divmod(environment, _ELEMENT)
        return f"{chemical_symbols[element]} with {count} neighbour{'s' * (count != 1)}"
    symbols = [*(chemical_symbols[z] for z in NONMETALS), "a metal"]
    around = [symbol for k, symbol in enumerate(symbols) for _ in range(environment >> 3 * k & 7)]
    return f"{symbols[environment // _NONMETAL - 1]} bonded to {', '.join(around) or 'nothing'}"


def filled(environments: np.ndarray) -> np.ndarray:
    """Add all numbers of neighbours between the fewest and the most of an element; codes are ascending."""
    counted = environments[environments < _NONMETAL]
    last = np.flatnonzero(np.diff(counted // _ELEMENT, append=-1))
    ends = zip(counted[np.append(0, last[:-1] + 1)], counted[last], strict=True) if len(counted) else ()
    return np.concatenate([*(np.arange(low, high + 1) for low, high in ends), environments[len(counted) :]])


def first_of_each(codes: np.ndarray) -> np.ndarray:
    """Smallest distance of each pair of elements; codes are ascending."""
    return codes[np.diff(codes // N_BINS, prepend=-1) != 0]


class Look(NamedTuple):
    """Contribution of one structure to the domain of its set.

    Attributes:
        sight: its features without the geometry.
        distances: codes of pair of elements and distance; None if the structure is not examined closely.
        nearest: likewise, of the smallest distance of each pair.
        environments: see :meth:`Contacts.environments`.
        graph: the same for all geometries of a molecule.
        gap: Å, between a part and the rest.
        rupture: the same of a part of a molecule with an odd number of electrons, over the sum of covalent radii.
        strain: see :class:`Contacts`.
    """

    sight: Sight
    distances: np.ndarray | None = None
    nearest: np.ndarray | None = None
    environments: np.ndarray | None = None
    graph: int = 0
    gap: float = 0.0
    rupture: float = 0.0
    strain: float = math.nan


def examine(data: Data, sight: Sight) -> Look:
    """Examine the geometry of one structure.

    Raises:
        InputError: as :func:`molflt.data.neighbours.neighbour_list`.
    """
    geometry, numbers = Contacts.of(data), data.atomic_numbers.numpy()
    return Look(
        sight,
        np.unique(geometry.codes),
        geometry.nearest,
        geometry.environments(numbers),
        geometry.graph(numbers),
        geometry.gap,
        geometry.rupture,
        geometry.strain,
    )
