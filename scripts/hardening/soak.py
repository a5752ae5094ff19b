"""Search for leaks of memory and files through an hour of molflt's Python interface.

Half of the time goes into predictions, of molecules of changing size and number and now and then of a file, by a
model that stays loaded; the other half into cycles of training a small model, loading it and evaluating it. Slopes
are medians over pairs of samples (Theil and Sen), without the first third, in which caches fill. More than the limits
below, per call or per cycle, is a failure.

    python -m scripts.hardening.soak --minutes 60

Prints a table; exits with 1 where something grows. On Linux.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from ase.build import molecule

import molflt
from molflt.data.oc20.writer import write_lmdb
from molflt.prediction.evaluate import evaluate
from molflt.prediction.members import load_members
from molflt.training.config import TrainConfig
from molflt.training.run import train
from scripts import results
from scripts.benchmarks import measuring

NAMES = ("H2O", "CH3OH", "C6H6", "CH3CH2OCH3", "CO2")
SAMPLE_SECONDS = 0.5
FEWEST = 5
"""Samples that a slope needs."""


LIMITS = {"predict": 2.0, "train and evaluate": 512.0}
"""KiB of resident memory that a call may keep: a structure of the first takes some 10, a model of the second with its
optimiser 1,500."""
FILES = 0.01
"""Descriptors that a call may leave open."""


@dataclass
class Series:
    """Samples of one kind of work.

    Attributes:
        name: of the work.
        calls: done at each sample.
        memory: KiB resident.
        files: descriptors open.
    """

    name: str
    calls: list[int] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)

    def sample(self, calls: int) -> None:
        """Take a sample."""
        gc.collect()
        # So that what is left is what is held.
        measuring.return_free_memory()
        self.calls.append(calls)
        self.memory.append(measuring.resident("VmRSS") / 1024)
        self.files.append(len(os.listdir("/proc/self/fd")))

    def growth(self) -> tuple[float, float]:
        """KiB and descriptors per call."""
        return slope(self.calls, self.memory), slope(self.calls, self.files)

    def complaints(self, most: float) -> list[str]:
        """A line for memory that grows by more than ``most`` KiB a call, and one for files."""
        if len(self.calls) < FEWEST:
            return [f"{self.name}: {len(self.calls)} samples are too few; give more --minutes"]
        memory, files = self.growth()
        found = []
        if memory > most:
            found.append(f"{self.name}: memory grows by {memory:.2f} KiB a call; the limit is {most:g}")
        if files > FILES:
            found.append(f"{self.name}: {files:.3f} descriptors a call stay open; the limit is {FILES:g}")
        return found


def slope(x: list[int], y: list[float]) -> float:
    """Median of the slopes between all pairs of at most 400 points, without the first third."""
    kept = np.unique(np.linspace(len(x) // 3, len(x) - 1, 400).astype(int))
    a, b = np.asarray(x, dtype=float)[kept], np.asarray(y, dtype=float)[kept]
    i, j = np.triu_indices(len(a), 1)
    return float(np.median((b[j] - b[i]) / (a[j] - a[i])))


def soak(name: str, work: Callable[[int], None], seconds: float) -> Series:
    """Work for some seconds, each time with the number of calls before, and sample on the way."""
    series, end, due, calls = Series(name), time.monotonic() + seconds, 0.0, 0
    while time.monotonic() < end:
        work(calls)
        calls += 1
        if time.monotonic() >= due:
            series.sample(calls)
            due = time.monotonic() + SAMPLE_SECONDS
    return series


class Work:
    """Calls that are repeated, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        chance = np.random.default_rng(0)
        for name, size in {"train": 12, "val": 6}.items():
            records = []
            for k in range(size):
                atoms = molecule(NAMES[k % len(NAMES)])
                positions = atoms.get_positions() + chance.normal(scale=0.05, size=(len(atoms), 3))
                records.append({"pos": positions, "atomic_numbers": atoms.numbers, "energy": float(chance.normal())})
            write_lmdb(folder / f"{name}.lmdb", records, progress=False)
        self._config = TrainConfig.model_validate(
            {
                "data": {
                    "train": str(folder / "train.lmdb"),
                    "val": str(folder / "val.lmdb"),
                    "target": "energy",
                    "standardise": "structure",
                },
                "model": {"dim": 64, "n_heads": 4, "n_layers": 2, "ffn_dim": 128, "n_rbf": 16, "cutoff": 4.0},
                "trainer": {"max_epochs": 1, "accelerator": "cpu"},
            }
        )
        train(self._config, folder / "run", say=lambda line: None)
        self._model = molflt.load(folder / "run")

    def predict(self, calls: int) -> None:
        """One call, of one to eight molecules, or of a file."""
        if calls % 10 == 0:
            self._model.predict([str(self._folder / "val.lmdb")])
        else:
            self._model.predict([molecule(NAMES[(calls + k) % len(NAMES)]) for k in range(1 + calls % 8)])

    def train_and_evaluate(self, calls: int) -> None:
        """One run in a new folder, loaded and evaluated; then it is removed."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            train(self._config, Path(folder) / "run", say=lambda line: None)
            evaluate(load_members(Path(folder) / "run"), str(self._folder / "val.lmdb"))


def main() -> None:
    """Soak and print."""
    parser = results.command(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="in all (default 60)")
    options = parser.parse_args()
    if not Path("/proc/self/status").exists():
        sys.exit("soak.py reads /proc, which this platform has not")
    with tempfile.TemporaryDirectory(prefix="molflt-soak-") as folder:
        work, half = Work(Path(folder)), 30 * options.minutes
        done = [soak("predict", work.predict, half), soak("train and evaluate", work.train_and_evaluate, half)]
    heads = ("first / MiB", "last / MiB", "KiB a call", "limit", "files a call")
    print(f"{'work':<20}{'calls':>9}" + "".join(f"{head:>13}" for head in heads))
    complaints = []
    for series in done:
        complaints += series.complaints(LIMITS[series.name])
        memory, files = series.growth() if len(series.calls) >= FEWEST else (np.nan, np.nan)
        first, last = series.memory[0] / 1024, series.memory[-1] / 1024
        numbers = (first, last, memory, LIMITS[series.name], files)
        print(f"{series.name:<20}{series.calls[-1]:>9,}" + "".join(f"{number:>13.4g}" for number in numbers))
    if complaints:
        sys.exit("\n".join(complaints))


if __name__ == "__main__":
    main()
