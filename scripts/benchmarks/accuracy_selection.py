"""Try settings where choosing is honest: on a fifth of the structures that the accuracy benchmark trains on.

Writes the division and a configuration of the benchmark's trainer; `molflt train` with overrides does the rest. Sets
with folds are divided within the first. What the benchmark holds out is not touched.

    python -m scripts.benchmarks.accuracy_selection --out runs/selection --data qm7
    molflt train runs/selection/qm7.yaml --out runs/selection/base trainer.max_epochs=20
    molflt train runs/selection/qm7.yaml --out runs/selection/recycled trainer.max_epochs=20 model.n_recycles=2
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from molflt.files import atomic_file
from molflt.training.yaml import to_yaml
from scripts import results
from scripts.benchmarks.accuracy_data import DATA_SETS, Split, available, divide, write_missing
from scripts.benchmarks.accuracy_rows import VARIANTS, run_config


def selection_split(name: str, folder: Path, n_train: int | None = None) -> Split:
    """Write a division of the structures to train on, unless it is there: four fifths, or fewer, and a fifth."""
    data, label = DATA_SETS[name], name if n_train is None else f"{name}-{n_train}"
    train, val = folder / f"{label}-train.lmdb", folder / f"{label}-val.lmdb"

    def parts(n: int) -> tuple[np.ndarray, np.ndarray]:
        order = divide(n, 0, data.n_folds)[0]
        if data.n_folds > 1:
            # Those of a fold are in the order of the file.
            order = np.random.RandomState(0).permutation(order)
        first, second = np.split(order, [len(order) * 4 // 5])
        return first[:n_train], second

    write_missing(data, (train, val), parts)
    return Split(str(train), {"val": str(val)}, "energy")


def main() -> None:
    """Write division and configuration."""
    parser = results.parser(__doc__, "the division and the configuration")
    names = [name for name, data in DATA_SETS.items() if data.file]
    parser.add_argument("--data", choices=names, default="qm7")
    parser.add_argument("--row", choices=list(VARIANTS), default="flt", help="of the benchmark, to start from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n-train", type=int, help="of the four fifths to take; default: all")
    options = parser.parse_args()
    if not available(options.data):
        parser.error(f"MOLFLT_DATA is not set or has no {DATA_SETS[options.data].file}")
    with results.input_errors(parser):
        split = selection_split(options.data, options.out, options.n_train)
    config = run_config(options.row, options.data, split, options.seed, DATA_SETS[options.data].epochs)
    path = Path(f"{split.train.removesuffix('-train.lmdb')}.yaml")
    with atomic_file(path) as temporary:
        temporary.write_text(to_yaml(config), encoding="utf-8")
    print(f"molflt train {path} --out {options.out / 'base'}")


if __name__ == "__main__":
    main()
