"""What the figures of the comparisons share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from molflt.files import atomic_file


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


def plot_curves(axes: Axes, label: str, curves: Sequence[Sequence[tuple[int, float]]]) -> None:
    """Mean and range over the seeds of curves of (step, value) with the same steps."""
    steps = [step for step, _ in curves[0]]
    values = np.array([[value for _, value in curve] for curve in curves])
    axes.plot(steps, values.mean(axis=0), label=label)
    axes.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.2)
