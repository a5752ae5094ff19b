"""The errors of an evaluation by group: by element, by adsorbate, by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from ase.data import chemical_symbols

from molflt.prediction.evaluation import Evaluation

_SIZE_RANGES = 8


@dataclass(frozen=True)
class GroupErrors:
    """One mean absolute error for each group of structures in each set.

    Attributes:
        groups: their names, in the order of display.
        sets: names of the sets.
        mae: (n_sets, n_groups) eV; NaN where a set has no such structure.
        n: (n_sets, n_groups) structures.
    """

    groups: list[str]
    sets: list[str]
    mae: np.ndarray
    n: np.ndarray

    def arranged(self, groups: Sequence[str]) -> GroupErrors:
        """The groups in another order; names that are no groups are passed over."""
        place = [self.groups.index(name) for name in groups if name in self.groups]
        return GroupErrors([self.groups[k] for k in place], self.sets, self.mae[:, place], self.n[:, place])

    def hardest_first(self) -> GroupErrors:
        """The group with the largest error over all sets first."""
        pooled = np.nansum(self.mae * self.n, axis=0) / self.n.sum(axis=0)
        order = sorted(range(len(self.groups)), key=lambda k: (-pooled[k], self.groups[k]))
        return self.arranged([self.groups[k] for k in order])


def by_element(sets: Sequence[Evaluation]) -> GroupErrors:
    """Errors of the structures that contain an element; the hardest element first."""
    return _grouped(sets, lambda s: [[chemical_symbols[z] for z in zs] for zs in s.table.elements]).hardest_first()


def by_adsorbate(sets: Sequence[Evaluation]) -> GroupErrors | None:
    """Errors of the structures with an adsorbate; the hardest first.

    Sets with a structure that names no adsorbate are left out; None where that leaves nothing.
    """
    named = [s for s in sets if all(s.table.adsorbates)]
    if not named:
        return None
    return _grouped(named, lambda s: [[name] for name in s.table.adsorbates]).hardest_first()


def by_size(sets: Sequence[Evaluation]) -> GroupErrors:
    """Errors over ranges of numbers of atoms that hold about equally many structures; the smallest first."""
    edges = size_edges(np.concatenate([s.table.sizes for s in sets]))
    pairs = zip(edges[:-1].tolist(), (edges[1:] - 1).tolist(), strict=True)
    ranges = [str(low) if low == high else f"{low}–{high}" for low, high in pairs]

    def groups(s: Evaluation) -> Iterable[list[str]]:
        return [[ranges[k]] for k in np.searchsorted(edges, s.table.sizes, side="right") - 1]

    return _grouped(sets, groups).arranged(ranges)


def size_edges(sizes: np.ndarray) -> np.ndarray:
    """Whole numbers e_0 < e_1 < ...: group k has e_k atoms or more, and fewer than e_{k+1}."""
    inner = np.quantile(sizes, np.linspace(0, 1, _SIZE_RANGES + 1)[1:-1], method="higher")
    edges: np.ndarray = np.unique(np.concatenate([[sizes.min()], inner, [sizes.max() + 1]]).astype(np.int64))
    return edges


def _grouped(sets: Sequence[Evaluation], groups: Callable[[Evaluation], Iterable[list[str]]]) -> GroupErrors:
    """Groups in the order in which they occur; ``groups`` names those of each structure."""
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for k, evaluation in enumerate(sets):
        for names, error in zip(groups(evaluation), np.abs(evaluation.error), strict=True):
            for name in names:
                sums.setdefault(name, np.zeros(len(sets)))[k] += error
                counts.setdefault(name, np.zeros(len(sets), dtype=np.int64))[k] += 1
    n = np.stack([counts[name] for name in counts], axis=1)
    total = np.stack([sums[name] for name in counts], axis=1)
    mae = np.where(n > 0, total / np.maximum(n, 1), np.nan)
    return GroupErrors(list(counts), [s.name for s in sets], mae, n)
