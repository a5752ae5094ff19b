"""The data sets of the accuracy benchmark, and how each is divided."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from molflt.data.labels import LabelSpec, Target
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.progress import track
from molflt.data.reading import ReadOptions
from molflt.data.record import to_record
from molflt.errors import InputError
from scripts.benchmarks import fg_splits

N_FOLDS = 5
MATBENCH_SEED = 18012019
"""Of matbench's KFold(5, shuffle=True)."""


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Attributes:
        file: below MOLFLT_DATA; empty for the bundled FG set.
        n_folds: 1 for a fixed division.
        epochs: of the common budget.
        max_atoms: of a batch.
        cutoff: Å, of the local RPE.
        unit: of the errors that are reported.
        model: what differs from the common model.
        standardise: of the label, as in the configuration.
        rule: of the FG set, what is held out: a name of :data:`fg_splits.RULES`; empty for its ``val``.
        optimiser: of molflt's rows, but for those that name another.
    """

    file: str
    n_folds: int
    epochs: int
    max_atoms: int
    cutoff: float
    unit: str
    model: dict[str, Any] = field(default_factory=dict)
    standardise: str = "element"
    rule: str = ""
    optimiser: str = "adamw"


_FG_MODEL = {"auxiliary_head": True, "n_layers": 3, "n_rbf": 24}
FG = DataSet("", 1, 40, 768, 5.0, "eV", _FG_MODEL, "auto", optimiser="muon")
DATA_SETS = {
    "qm7": DataSet("qm7/qm7_train.extxyz.gz", 1, 60, 384, 4.0, "eV"),
    "fg": FG,
    "perovskites": DataSet("perovskites/perovskites.extxyz.gz", N_FOLDS, 80, 320, 4.0, "eV per cell"),
    "atoms": DataSet("adsorption/atomic_adsorption_882.extxyz.gz", N_FOLDS, 60, 256, 5.0, "eV"),
}
DATA_SETS |= {f"fg-{rule}": replace(FG, rule=rule) for rule in fg_splits.RULES}
QM7_TRAIN = 5000


@dataclass(frozen=True)
class Split:
    """Files of a division.

    Attributes:
        train: to train on.
        held_out: by name; the first is the one that is reported first.
        target: label.
    """

    train: str
    held_out: dict[str, str]
    target: Target


def shared(file: str) -> Path:
    """A file below the folder MOLFLT_DATA.

    Raises:
        InputError: the variable is not set.
    """
    if "MOLFLT_DATA" not in os.environ:
        raise InputError(f"MOLFLT_DATA is not set: it is the folder that has {file}")
    return Path(os.environ["MOLFLT_DATA"]) / file


def available(name: str) -> bool:
    """Return true if the data set is there."""
    file = DATA_SETS[name].file
    return not file or ("MOLFLT_DATA" in os.environ and shared(file).exists())


def split(name: str, fold: int, folder: Path, most: int | None = None) -> Split:
    """Write the files of a division of all structures or of the first; kept if they are there.

    The FG set and its ``val`` are there, and taken whole.
    """
    data = DATA_SETS[name]
    if not data.file and not data.rule:
        return Split("bundled:fg/train.lmdb", {"val": "bundled:fg/val.lmdb"}, "y_relaxed")
    label = f"{name}-{fold}" if most is None else f"{name}-{fold}-{most}"
    train, test = folder / f"{label}-train.lmdb", folder / f"{label}-test.lmdb"
    if data.rule:
        training, held_out = fg_splits.divide(data.rule)
        parts = fg_splits.judged(data.rule, held_out)
        files = {part: folder / f"{label}-{part.replace(' ', '')}.lmdb" for part in parts}
        for path, structures in ((train, training), *((files[part], parts[part]) for part in parts)):
            if not path.exists():
                write(path, structures, range(len(structures))[:most])
        return Split(str(train), {part: str(path) for part, path in files.items()}, "y_relaxed")
    write_missing(data, (train, test), lambda n: divide(n, fold, data.n_folds), most)
    return Split(str(train), {"test": str(test)}, "energy")


def write_missing(
    data: DataSet,
    paths: tuple[Path, Path],
    parts: Callable[[int], tuple[np.ndarray, np.ndarray]],
    most: int | None = None,
) -> None:
    """Write those of the two files of a division that are not there: to train on, and held out.

    ``parts`` makes the indices of either from the number of structures: all of the file, or the first ``most``.
    """
    if all(path.exists() for path in paths):
        return
    frames = read(shared(data.file), most)
    for path, chosen in zip(paths, parts(len(frames)), strict=True):
        if not path.exists():
            write(path, frames, chosen)


@cache
def read(path: Path, most: int | None) -> list[Data]:
    """The structures of a file, once for all folds."""
    found = open_dataset(path, ReadOptions(labels=LabelSpec(target="energy")))
    count = len(found) if most is None else min(most, len(found))
    return [found[i] for i in track(range(count), f"reading {path.name}", total=count)]


def divide(n: int, fold: int, n_folds: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and held out.

    Folds are those of scikit-learn's KFold(5, shuffle=True, random_state=18012019), as in matbench; one fold is 5,000
    of a shuffle by the same generator (of fewer structures two thirds), and the rest.
    """
    order = np.arange(n)
    np.random.RandomState(MATBENCH_SEED).shuffle(order)
    if n_folds == 1:
        n_train = QM7_TRAIN if n > QM7_TRAIN else 2 * n // 3
        return order[:n_train], order[n_train:]
    sizes = np.full(n_folds, n // n_folds)
    sizes[: n % n_folds] += 1
    start = int(sizes[:fold].sum())
    held_out = np.sort(order[start : start + sizes[fold]])
    return np.setdiff1d(np.arange(n), held_out), held_out


def write(path: Path, frames: Sequence[Data], chosen: Iterable[int]) -> None:
    """Some structures as LMDB."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lmdb(path, (to_record(frames[i]) for i in chosen), progress=False)
