"""Identical or nearly identical structures of two sets: leaks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial import cKDTree
from torch_geometric.data import Data

from molflt.data.dataset import StructureDataset
from molflt.data.neighbours import near_pairs
from molflt.vocabulary import MAX_ATOMIC_NUMBER

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
