"""The long-range pilot across a vacuum: two dipoles so far apart that no local branch sees one from the other.

Each fragment is a rigid pair of ions ±1 (Na and Cl) 2.4 Å apart; between the nearest ions of the two lie at least 6 Å
of vacuum, and the local cutoff is 4 Å. The energy is the Coulomb energy between the fragments,
14.3996 eV Å Σ q_i q_j / d_ij.

Without the Fourier RPE this cannot be learned, however long one trains: every fragment is the same pair at the same
distance, so neighbours and hence all invariant features of an atom are the same in every structure, the content
attention sums the same numbers, and the prediction is one constant. What a constant can reach is the mean absolute
deviation, printed below the errors. Batches are large because the signal is small: what the atoms of all structures
have in common makes noise of the gradient in small ones. For the same reason little is learned at first, and a short
schedule compares how early a model begins, not how far it comes.

    python scripts/pilot_dipoles.py --out runs/dipoles --attention molflt softmax      # 5 minutes each, one core
    python scripts/pilot_dipoles.py --out runs/slower --lr 0.001 --seeds 0 1 2
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from long_range import Ions, arguments, compare, write_ions
from numpy.typing import NDArray

COULOMB = 14.3996
"""eV Å, e²/(4πε₀)."""
LENGTH, CLOSEST, FARTHEST = 2.4, 6.0, 12.0
"""Å: of a dipole; between the nearest ions of the two, at least; between the centres, at most."""
N_TEST = 500

ATTENTIONS: dict[str, dict[str, Any]] = {
    "molflt": {},
    "molflt, all channels": {"far_dim": 96},
    "softmax": {"mechanism": "softmax"},
    "performer": {"mechanism": "kernelised"},
    "no far field": {"far_field": False},
}


def direction(random: np.random.Generator) -> NDArray[np.float64]:
    """A unit vector, all directions alike."""
    vector = random.normal(size=3)
    return vector / np.linalg.norm(vector)


def two_dipoles(random: np.random.Generator) -> Ions:
    """Two dipoles in any orientation, their centres at a distance between the vacuum's width and FARTHEST."""
    charges = np.array([1.0, -1.0, 1.0, -1.0])
    while True:
        centre = random.uniform(CLOSEST, FARTHEST) * direction(random)
        first, second = LENGTH / 2 * direction(random), LENGTH / 2 * direction(random)
        positions = np.stack([first, -first, centre + second, centre - second])
        between = np.linalg.norm(positions[:2, None] - positions[None, 2:], axis=-1)
        if between.min() > CLOSEST:
            energy = COULOMB * float((charges[:2, None] * charges[None, 2:] / between).sum())
            return Ions(positions, charges, energy)


def write_dipoles(path: Path, count: int, seed: int) -> None:
    """An LMDB file of ``count`` pairs of dipoles; the same seed gives the same file."""
    random = np.random.default_rng(seed)
    write_ions(path, (two_dipoles(random) for _ in range(count)), count, "dipoles")


def main() -> None:
    """Command line."""
    options = arguments(__doc__, ATTENTIONS, epochs=120, n_train=5000)
    train_file, tests = options.out / "train.lmdb", {"test": options.out / "test.lmdb"}
    write_dipoles(train_file, options.train, seed=1)
    write_dipoles(tests["test"], N_TEST, seed=2)
    compare(options, ATTENTIONS, train_file, tests, max_atoms=1024, record="dipoles.json")


if __name__ == "__main__":
    main()
