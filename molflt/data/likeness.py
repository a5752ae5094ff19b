"""Which structures of two sets are the same or nearly so: a leak, where one set is to judge what the other taught."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree
from torch_geometric.data import Data

from molflt.data.datasets import StructureDataset
from molflt.data.neighbours import near_pairs
from molflt.vocabulary import MAX_ATOMIC_NUMBER

REACH = 5.0
"""Å; distances up to here are compared."""
SAME = 0.02
"""Å; distances that differ by less are the same."""
TOLERANCE = 0.03
"""Distance of two sketches up to which their structures are compared."""
_TRIED = 4
_WEIGHTS = np.stack([0.5 + np.modf(np.arange(MAX_ATOMIC_NUMBER + 1) * x)[0] for x in (0.618034, 0.414214)])


@dataclass(frozen=True)
class Sketch:
    """What is kept of a structure, which turning, moving, wrapping and reordering its atoms leave as it is.

    Attributes:
        composition: its elements and how many atoms there are of each.
        values: (9,) Å or without a unit; they move by about 0.01 when every atom moves by 0.01 Å.
    """

    composition: bytes
    values: np.ndarray


def sketch(data: Data) -> Sketch:
    """The sketch of a structure, from smooth sums over the distances of each atom's neighbours, images included.

    Raises:
        InputError: the structure is none: see :mod:`molflt.data.extents`.
    """
    numbers = data.atomic_numbers.numpy()
    pairs, distances = near_pairs(data, REACH)
    envelope = (1 - (distances / REACH) ** 2) ** 2
    values = [0.0]
    if not bool(data.pbc.any()):
        points = data.positions.numpy()
        values = [float(np.sqrt(((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()))]
    for weight, power in zip(_WEIGHTS[:, numbers], (0, 3), strict=True):
        near = weight[pairs[:, 1]] * envelope * (1 - distances / REACH) ** power
        sums = np.bincount(pairs[:, 0], near, len(numbers))
        # The extremes are of few atoms: an adsorbate that has moved changes them, and not a mean over the slab.
        values += [float(np.mean(weight * sums)), float(np.std(weight * sums)), float(sums.min()), float(sums.max())]
    composition = np.concatenate(np.unique(numbers, return_counts=True)).astype(np.int32).tobytes()
    return Sketch(composition, np.array(values, dtype=np.float32))


def nearly_identical(first: Data, second: Data) -> bool:
    """Whether all distances are the same to :data:`SAME` Å, sorted for each pair of elements, up to :data:`REACH`."""
    lists = []
    for data in (first, second):
        pairs, distances = near_pairs(data, REACH)
        numbers = data.atomic_numbers.numpy()
        kinds = numbers[pairs[:, 0]] * (MAX_ATOMIC_NUMBER + 1) + numbers[pairs[:, 1]]
        lists.append({kind: np.sort(distances[kinds == kind]) for kind in np.unique(kinds)})
    for kind in lists[0].keys() | lists[1].keys():
        a, b = (found.get(kind, np.empty(0)) for found in lists)
        # What is at the very end of the reach may be beyond it in the other.
        n = min(len(a), len(b))
        beyond = np.concatenate([a[n:], b[n:]])
        if np.abs(a[:n] - b[:n]).max(initial=0.0) > SAME or beyond.min(initial=REACH) < REACH - SAME:
            return False
    return True


def alike(
    known: Sequence[Sketch], asked: Sequence[Sketch], known_data: StructureDataset, asked_data: StructureDataset
) -> list[tuple[int, int]]:
    """Pairs of places: of a structure asked about, and of one that is known and identical or nearly so.

    Sketches, in the order of their structures, say which to look at; time grows as n log n, and memory as n.
    """
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for place, one in enumerate(known):
        places[one.composition].append(place)
    wanted: defaultdict[bytes, list[int]] = defaultdict(list)
    for place, one in enumerate(asked):
        if one.composition in places:
            wanted[one.composition].append(place)
    found = []
    for composition, asking in wanted.items():
        candidates = places[composition]
        tree = cKDTree([known[k].values for k in candidates])
        points = [asked[k].values for k in asking]
        _, near = tree.query(points, k=range(1, _TRIED + 1), distance_upper_bound=TOLERANCE)
        for a, row in zip(asking, near, strict=True):
            for k in (candidates[k] for k in row if k < len(candidates)):
                if nearly_identical(known_data[k], asked_data[a]):
                    found.append((a, k))
                    break
    return sorted(found)
