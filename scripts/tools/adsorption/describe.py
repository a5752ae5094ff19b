"""Statistics of the bundled adsorption data and how far simple baselines get.

Example:
    python -m scripts.tools.adsorption.describe data/adsorption
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from ase.data import atomic_numbers
from rich.console import Console
from rich.table import Table
from torch_geometric.data import Data

from molflt.data.lmdb_dataset import LmdbDataset
from scripts.tools.adsorption.systems import ADSORBATES, FACETS, HELD_OUT_ADSORBATE, METALS, SPLITS

RIDGE = 1.0
SHELLS = (2.5, 3.5, 5.0)
"""Å: the local features count metal atoms within these distances of the adsorbate's lowest atom."""


def targets(data: Sequence[Data]) -> np.ndarray:
    """(n,) ``y_relaxed``, eV."""
    return np.array([float(structure.y_relaxed) for structure in data])


def by_adsorbate(data: Sequence[Data]) -> np.ndarray:
    """(n, n_adsorbates) one-hot; all zero for the held-out adsorbate."""
    return np.array([[structure.adsorbate == name for name in ADSORBATES] for structure in data], dtype=float)


def composition(data: Sequence[Data]) -> np.ndarray:
    """(n, 1 + n_metals + n_facets): one, the fractions of the metals and the facet."""
    rows = []
    for structure in data:
        metals = structure.atomic_numbers.numpy()[structure.tags.numpy() < 2]
        fractions = [(metals == atomic_numbers[metal]).mean() for metal in METALS]
        facet = structure.name.split("(")[1].split(")")[0]
        rows.append([1.0, *fractions, *(facet == name for name in FACETS)])
    return np.array(rows, dtype=float)


def surroundings(data: Sequence[Data]) -> np.ndarray:
    """(n, n_metals · n_shells): how many atoms of each metal are near the adsorbate in the initial structure."""
    rows = []
    for structure in data:
        z, tags = structure.atomic_numbers.numpy(), structure.tags.numpy()
        positions, cell = structure.positions.numpy(), structure.cell.numpy()[0]
        adsorbate = positions[tags == 2]
        lowest = adsorbate[adsorbate[:, 2].argmin()]
        shifts = np.array([[i, j, 0] for i in range(-2, 3) for j in range(-2, 3)]) @ cell
        distance = np.linalg.norm(positions[tags < 2, None] + shifts - lowest, axis=-1)
        smooth = [(1.0 / (1.0 + np.exp((distance - shell) / 0.2))).sum(axis=1) for shell in SHELLS]
        metals = z[tags < 2]
        rows.append([count[metals == atomic_numbers[metal]].sum() for count in smooth for metal in METALS])
    return np.array(rows)


def features(data: Sequence[Data], *, local: bool) -> np.ndarray:
    """Every adsorbate gets coefficients of its own, and there are common ones."""
    rest = composition(data)
    if local:
        rest = np.concatenate([rest, surroundings(data)], axis=1)
    own = by_adsorbate(data)[:, :, None] * rest[:, None, :]
    return np.concatenate([own.reshape(len(rest), -1), rest], axis=1)


def ridge(train: Sequence[Data], data: Sequence[Data], *, local: bool) -> np.ndarray:
    """Predictions of a ridge regression on standardised features, eV."""
    x, mean = features(train, local=local), targets(train).mean()
    scale = x.std(axis=0) + 1e-9
    centre = x.mean(axis=0)
    x = (x - centre) / scale
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (targets(train) - mean))
    return mean + (features(data, local=local) - centre) / scale @ weights


def adsorbate_means(train: Sequence[Data], data: Sequence[Data]) -> np.ndarray:
    """The training mean of every adsorbate, eV; the overall mean for the held-out one."""
    y, names = targets(train), np.array([structure.adsorbate for structure in train])
    known = {name: y[names == name].mean() for name in set(names)}
    return np.array([known.get(structure.adsorbate, y.mean()) for structure in data])


def main(folder: Annotated[Path, typer.Argument(help="Folder with the LMDB files.")]) -> None:
    """Describe the data: targets by split and adsorbate, and baselines (MAE in eV, share of the MAD)."""
    splits = {split: list(LmdbDataset(folder / f"{split}.lmdb")) for split in SPLITS}
    train = splits["train"]
    console = Console(width=120)
    table = Table("split", "systems", "atoms", "mean", "std", "MAD", "adsorbate mean", "ridge", "ridge, local")
    for split, data in splits.items():
        y = targets(data)
        mad = np.abs(y - y.mean()).mean()
        predictions = (
            adsorbate_means(train, data),
            ridge(train, data, local=False),
            ridge(train, data, local=True),
        )
        errors = [np.abs(prediction - y).mean() for prediction in predictions]
        sizes = [int(structure.num_nodes) for structure in data]
        table.add_row(
            split,
            str(len(data)),
            f"{min(sizes)}-{max(sizes)}, mean {np.mean(sizes):.0f}",
            *(f"{value:.3f}" for value in (y.mean(), y.std(), mad)),
            *(f"{error:.3f} ({error / mad:.1%})" for error in errors),
        )
    console.print(table)
    table = Table("adsorbate", "systems", "mean", "std", "lowest", "highest", "median displacement")
    everything = [structure for data in splits.values() for structure in data]
    for name in (*ADSORBATES, HELD_OUT_ADSORBATE):
        chosen = [structure for structure in everything if structure.adsorbate == name]
        y = targets(chosen)
        moved = [float((s.positions_relaxed - s.positions)[s.tags == 2].norm(dim=1).max().item()) for s in chosen]
        values = (y.mean(), y.std(), y.min(), y.max(), np.median(moved))
        table.add_row(name, str(len(chosen)), *(f"{value:.2f}" for value in values))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
