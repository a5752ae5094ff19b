"""Which structures a parity plot shows, and how far its axes reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from molflt.prediction.evaluation import Evaluation

MOST_POINTS = 5000
"""Structures in one parity plot; of more, a random sample is shown."""
MOST_ERROR_BARS = 300


def shown(sets: Sequence[Evaluation]) -> list[np.ndarray]:
    """Places of the structures to show of each set, in proportion to its size; the same for the same sets."""
    total = sum(map(len, sets))
    if total <= MOST_POINTS:
        return [np.arange(len(s)) for s in sets]
    random = np.random.default_rng(0)
    sizes = [max(1, len(s) * MOST_POINTS // total) for s in sets]
    return [np.sort(random.choice(len(s), size, replace=False)) for s, size in zip(sets, sizes, strict=True)]


def limits(sets: Sequence[Evaluation]) -> tuple[float, float]:
    """EV: both energies of every structure, with a margin."""
    both = np.concatenate([x for s in sets for x in (s.expected, s.predicted)])
    low, high = float(both.min()), float(both.max())
    margin = 0.04 * (high - low) or 0.1
    return low - margin, high + margin
