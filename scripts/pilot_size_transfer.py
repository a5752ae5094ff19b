"""The long-range pilot: train on clusters of 24 ions, predict clusters of 48, 96 and 192 of the same density.

The energy is that of smeared charges, Σ_{i<j} q_i q_j erf(d_ij/2)/d_ij with d in Å, q = ±1 (Na and Cl), in eV. The
neighbour list ends at 4 Å, so that a model without a far field is blind to nearly all of it.
Prints, and writes to FOLDER/size_transfer.json, the mean absolute error at each size for each attention.

    python scripts/pilot_size_transfer.py --out runs/size --epochs 15
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from long_range import Ions, arguments, compare, write_ions
from scipy.special import erf

TRAIN_SIZE, SIZES = 24, (24, 48, 96, 192)
N_TEST = 200
SIDE, CLOSEST = 16.0, 1.8
"""Å: the box of 24 ions, and the least distance between two."""

ATTENTIONS: dict[str, dict[str, Any]] = {
    "molflt": {},
    "molflt, all channels": {"far_dim": 96},
    "molflt, sigma_max=6": {"sigma_max": 6.0},
    "molflt, free budget r=8 l=8": {
        "frequencies": "sampled",
        "spectrum": "free",
        "n_frequencies": 8,
        "l_max": 8,
    },
    "flt": {"far_rank": "m", "frequencies": "sampled"},
    "softmax (global normaliser)": {"mechanism": "softmax"},
    "no far field": {"far_field": False},
}


def cluster(n: int, random: np.random.Generator) -> Ions:
    """As many positive as negative ions, placed at random."""
    side = SIDE * (n / TRAIN_SIZE) ** (1 / 3)
    positions = np.zeros((0, 3))
    while len(positions) < n:
        candidate = random.uniform(0, side, 3)
        if np.all(np.linalg.norm(positions - candidate, axis=1) > CLOSEST):
            positions = np.vstack([positions, candidate])
    charges = random.permutation(np.repeat([1.0, -1.0], n // 2))
    i, j = np.triu_indices(n, 1)
    distance = np.linalg.norm(positions[i] - positions[j], axis=1)
    return Ions(positions, charges, float((charges[i] * charges[j] * erf(distance / 2) / distance).sum()))


def write_clusters(path: Path, n: int, count: int, seed: int) -> None:
    """An LMDB file of ``count`` clusters; the same seed gives the same file."""
    random = np.random.default_rng([seed, n])
    write_ions(path, (cluster(n, random) for _ in range(count)), count, f"{n} ions")


def main() -> None:
    """Command line."""
    options = arguments(__doc__, ATTENTIONS, epochs=15, n_train=3000)
    train_file = options.out / "train.lmdb"
    write_clusters(train_file, TRAIN_SIZE, options.train, seed=1)
    tests = {str(n): options.out / f"{n}.lmdb" for n in SIZES}
    for n in SIZES:
        write_clusters(tests[str(n)], n, N_TEST, seed=2)
    compare(options, ATTENTIONS, train_file, tests, max_atoms=768, record="size_transfer.json")


if __name__ == "__main__":
    main()
