"""Statistics of the bundled FG set, and simple baselines: the tables of its data card.

Example:
    python -m scripts.tools.fg.describe
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from molflt.data.oc20.lmdb import LmdbDataset
from molflt.files import resolve_path
from molflt.vocabulary import TAG_ADSORBATE
from scripts import results

RIDGE = 1.0


@dataclass(frozen=True)
class Table:
    """Properties of structures that the baselines know.

    Attributes:
        energies: (n,) ``y_relaxed``, eV.
        metals, molecules, groups: of every structure.
        composition: (n, n_elements) adsorbate's atoms of every element.
    """

    energies: np.ndarray
    metals: np.ndarray
    molecules: np.ndarray
    groups: np.ndarray
    composition: np.ndarray


def table(structures: Sequence[Data], elements: Sequence[int]) -> Table:
    """Tabulate structures of the FG set; the elements are the columns of the composition."""
    adsorbates = [data.atomic_numbers[data.tags == TAG_ADSORBATE] for data in structures]
    return Table(
        np.array([float(data.y_relaxed) for data in structures]),
        *(np.array([data[key] for data in structures]) for key in ("metal", "molecule", "group")),
        np.array([[int((z == element).sum()) for element in elements] for z in adsorbates], dtype=float),
    )


def mean(train: Table, other: Table) -> np.ndarray:
    """Mean of the training energies, eV."""
    return np.full(len(other.energies), train.energies.mean())


def mean_of_molecule(train: Table, other: Table) -> np.ndarray:
    """Mean over the metals that a molecule was trained on, else the mean of all, eV."""
    known = {name: train.energies[train.molecules == name].mean() for name in np.unique(train.molecules)}
    return np.array([known.get(name, train.energies.mean()) for name in other.molecules])


def ridge(train: Table, other: Table) -> np.ndarray:
    """Ridge regression on metal × (1, composition of the adsorbate), standardised, eV."""
    metals = np.unique(train.metals)

    def features(of: Table) -> np.ndarray:
        what = np.column_stack([np.ones(len(of.energies)), of.composition])
        of_metal = (of.metals[:, None] == metals)[:, :, None] * what[:, None, :]
        return np.column_stack([of_metal.reshape(len(what), -1), what])

    x = features(train)
    centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    x = (x - centre) / scale
    mean = train.energies.mean()
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (train.energies - mean))
    return np.asarray(mean + (features(other) - centre) / scale @ weights)


def nearest(train: Table, other: Table) -> np.ndarray:
    """Training structure on the same metal with the nearest composition, eV; mean of ties."""
    found = []
    for metal, molecule, composition in zip(other.metals, other.molecules, other.composition, strict=True):
        distance = np.abs(train.composition - composition).sum(axis=1)
        # A molecule is nearest to itself, but on the metal in question it may be in another conformation only.
        distance = distance + (train.molecules != molecule) * 0.5 + (train.metals != metal) * 1e3
        found.append(train.energies[distance == distance.min()].mean())
    return np.array(found)


BASELINES: dict[str, Callable[[Table, Table], np.ndarray]] = {
    "mean": mean,
    "mean of the molecule": mean_of_molecule,
    "ridge on metal × composition": ridge,
    "nearest neighbour: same metal, nearest composition": nearest,
}


def errors(train: Sequence[Data], other: Sequence[Data]) -> dict[str, float]:
    """Mean absolute error of each baseline on structures of the FG set, fitted to others; eV."""
    z = torch.cat([data.atomic_numbers[data.tags == TAG_ADSORBATE] for data in (*train, *other)])
    known, judged = (table(some, sorted(set(z.tolist()))) for some in (train, other))
    return {name: float(np.abs(of(known, judged) - judged.energies).mean()) for name, of in BASELINES.items()}


def main() -> None:
    """Print the tables."""
    structures = {name: list(LmdbDataset(resolve_path(f"bundled:fg/{name}.lmdb"))) for name in ("train", "val")}
    everything = [data for part in structures.values() for data in part]
    cells = []
    for name, part in structures.items():
        y, sizes = np.array([float(data.y_relaxed) for data in part]), [int(data.num_nodes) for data in part]
        spread = (y.mean(), y.std(), np.abs(y - y.mean()).mean(), y.min(), y.max())
        cells.append(
            [f"`{name}.lmdb`", f"{len(y):,}", f"{min(sizes)} to {max(sizes)}", *(f"{v:.3f}" for v in spread)]
        )
    print(results.markdown(["file", "structures", "atoms", "mean", "std", "MAD", "lowest", "highest"], cells))
    cells = []
    for group in np.unique([data.group for data in everything]):
        mine = [data for data in everything if data.group == group]
        formulas = Counter(data.molecule for data in mine)
        y = np.array([float(data.y_relaxed) for data in mine])
        sizes = [int((data.tags == TAG_ADSORBATE).sum()) for data in mine]
        counts = [f"{len(mine):,}", str(len(formulas)), f"{min(sizes)} to {max(sizes)}"]
        cells.append([group, *counts, f"{y.mean():.2f}", f"{y.std():.2f}"])
    print(results.markdown(["group", "structures", "molecules", "atoms of it", "mean", "std"], cells))


if __name__ == "__main__":
    main()
