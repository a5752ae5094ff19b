"""Where a model errs: mean absolute errors of groups of structures, and the worst of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from ase.data import chemical_symbols

from molflt.report.evaluated import DescribedSet

_SIZE_BINS = 8


@dataclass(frozen=True)
class GroupErrors:
    """One mean absolute error per group and set.

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


def by_element(sets: Sequence[DescribedSet]) -> GroupErrors:
    """Over the structures that contain an element; the hardest element first."""
    return _hardest_first(_grouped(sets, lambda s: [[chemical_symbols[z] for z in zs] for zs in s.elements]))


def by_adsorbate(sets: Sequence[DescribedSet]) -> GroupErrors | None:
    """Over the structures with an adsorbate; the hardest first. None unless some set names its adsorbates."""
    named = [s for s in sets if s.adsorbates is not None]
    if not named:
        return None
    return _hardest_first(_grouped(named, lambda s: [[name] for name in s.adsorbates or []]))


def by_size(sets: Sequence[DescribedSet]) -> GroupErrors:
    """Over ranges of numbers of atoms, each with about as many structures as the others; the smallest first."""
    edges = size_edges(np.concatenate([s.sizes for s in sets]))

    def groups(s: DescribedSet) -> Iterable[list[str]]:
        return [[_range_name(edges, k)] for k in np.searchsorted(edges, s.sizes, side="right") - 1]

    order = [_range_name(edges, k) for k in range(len(edges) - 1)]
    return _arranged(_grouped(sets, groups), order)


def size_edges(sizes: np.ndarray) -> np.ndarray:
    """Whole numbers e_0 < e_1 < ...: group k has e_k atoms or more and fewer than e_{k+1}."""
    inner = np.quantile(sizes, np.linspace(0, 1, _SIZE_BINS + 1)[1:-1], method="higher")
    edges: np.ndarray = np.unique(np.concatenate([[sizes.min()], inner, [sizes.max() + 1]]).astype(np.int64))
    return edges


def worst(described: DescribedSet, n: int = 10) -> np.ndarray:
    """Places of the structures with the largest errors in the described ones, the worst first."""
    order: np.ndarray = np.argsort(-np.abs(described.error), kind="stable")[:n]
    return order


def _range_name(edges: np.ndarray, k: int) -> str:
    low, high = int(edges[k]), int(edges[k + 1]) - 1
    return str(low) if low == high else f"{low}–{high}"


def _grouped(sets: Sequence[DescribedSet], groups: Callable[[DescribedSet], Iterable[list[str]]]) -> GroupErrors:
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, np.ndarray] = {}
    for k, described in enumerate(sets):
        for names, error in zip(groups(described), np.abs(described.error), strict=True):
            for name in names:
                sums.setdefault(name, np.zeros(len(sets)))[k] += error
                counts.setdefault(name, np.zeros(len(sets), dtype=np.int64))[k] += 1
    n = np.stack([counts[name] for name in counts], axis=1)
    total = np.stack([sums[name] for name in counts], axis=1)
    mae = np.where(n > 0, total / np.maximum(n, 1), np.nan)
    return GroupErrors(list(counts), [s.name for s in sets], mae, n)


def _hardest_first(found: GroupErrors) -> GroupErrors:
    pooled = np.nansum(found.mae * found.n, axis=0) / found.n.sum(axis=0)
    order = sorted(range(len(found.groups)), key=lambda k: (-pooled[k], found.groups[k]))
    return _arranged(found, [found.groups[k] for k in order])


def _arranged(found: GroupErrors, groups: list[str]) -> GroupErrors:
    place = [found.groups.index(name) for name in groups if name in found.groups]
    return GroupErrors([found.groups[k] for k in place], found.sets, found.mae[:, place], found.n[:, place])
