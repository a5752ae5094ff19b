"""Pilots of the long range: learn what no neighbour can tell, and carry it to larger sizes.

*far-dipoles*: two rigid pairs of ions ±1 (Na and Cl), 2.4 Å long, with at least 6 Å of vacuum between the nearest
ions of the two; the local cutoff is 4 Å. The energy is the Coulomb energy between the pairs. Without a far field this
cannot be learned, however long one trains: neighbours, and hence all invariant features of an atom, are the same in
every structure, and the prediction is one constant, whose error is the mean absolute deviation. Models are trained on
pairs with their centres up to 10 Å apart, and tested farther apart than that.

*ions*: train on clusters of 24 ions, predict clusters of 24, 48, 96 and 192 of the same density. The energy is
that of smeared charges, Σ_{i<j} q_i q_j erf(d_ij/2)/d_ij with d in Å, in eV. The neighbour list ends at 4 Å, so a
model without a far field is blind to nearly all of it.

    python -m scripts.benchmarks.pilots far-dipoles --out runs/far-dipoles --seeds 0 1 2
    python -m scripts.benchmarks.pilots ions --out runs/ions
    python -m scripts.tools.tables                                          # the tables of the page

A finished run is not repeated, and an interrupted one resumes after its last epoch; give other settings another
--out. Writes the mean absolute error for each test set, eV, into docs/results/PILOT.csv, with the mean absolute
deviation of its labels, and draws docs/figures/PILOT.png.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import erf

from molflt.attention.far.coulomb import COULOMB
from molflt.data.labels import LabelSpec
from molflt.data.oc20.writer import write_lmdb
from molflt.data.open import open_dataset
from molflt.data.progress import track
from molflt.data.quality.screen import Screening, labels
from molflt.model.file import load_model
from molflt.prediction.metrics import energy_metrics
from molflt.prediction.predict import predict
from molflt.training.config import TrainConfig
from molflt.training.run import train
from scripts import results

SODIUM, CHLORINE = 11, 17
LENGTH, VACUUM, FARTHEST = 2.4, 6.0, 12.0
"""Å: of a dipole; between the nearest ions of the two, at least; between the centres, at most."""
NEAR = 10.0
"""Å: the largest distance of centres that far-dipoles are trained on."""
CLUSTER, SIDE, CLOSEST = 24, 16.0, 1.8
"""Ions of a training cluster, and Å: its box, and the least distance between two ions."""


@dataclass(frozen=True)
class Ions:
    """Positions (n, 3) in Å, charges (n,) in units of e, and the energy in eV to learn."""

    positions: NDArray[np.float64]
    charges: NDArray[np.float64]
    energy: float


def direction(random: np.random.Generator) -> NDArray[np.float64]:
    """A unit vector, all directions alike."""
    vector = random.normal(size=3)
    return vector / np.linalg.norm(vector)


def two_dipoles(random: np.random.Generator) -> Ions:
    """Two dipoles in any orientation, their centres at most FARTHEST apart."""
    charges = np.array([1.0, -1.0, 1.0, -1.0])
    while True:
        centre = random.uniform(VACUUM, FARTHEST) * direction(random)
        first, second = LENGTH / 2 * direction(random), LENGTH / 2 * direction(random)
        positions = np.stack([first, -first, centre + second, centre - second])
        between = np.linalg.norm(positions[:2, None] - positions[None, 2:], axis=-1)
        if between.min() > VACUUM:
            return charged_pairs(positions, charges)


def dipoles_at(random: np.random.Generator, distance: float) -> Ions:
    """Two dipoles with their centres ``distance`` Å apart; if that is NEAR, up to so far."""
    while True:
        ions = two_dipoles(random)
        between = ions.positions[2:].mean(axis=0)
        if distance > NEAR:
            moved = ions.positions.copy()
            moved[2:] += between * (distance / np.linalg.norm(between) - 1)
            return charged_pairs(moved, ions.charges)
        if np.linalg.norm(between) <= NEAR:
            return ions


def charged_pairs(positions: NDArray[np.float64], charges: NDArray[np.float64]) -> Ions:
    """Two pairs of ions and the energy that one pair has in the field of the other."""
    between = np.linalg.norm(positions[:2, None] - positions[None, 2:], axis=-1)
    return Ions(positions, charges, COULOMB * float((charges[:2, None] * charges[None, 2:] / between).sum()))


def cluster(random: np.random.Generator, n: int) -> Ions:
    """Ions placed at random, as many positive as negative ones."""
    side = SIDE * (n / CLUSTER) ** (1 / 3)
    positions = np.zeros((0, 3))
    while len(positions) < n:
        candidate = random.uniform(0, side, 3)
        if np.all(np.linalg.norm(positions - candidate, axis=1) > CLOSEST):
            positions = np.vstack([positions, candidate])
    charges = random.permutation(np.repeat([1.0, -1.0], n // 2))
    i, j = np.triu_indices(n, 1)
    distance = np.linalg.norm(positions[i] - positions[j], axis=1)
    return Ions(positions, charges, float((charges[i] * charges[j] * erf(distance / 2) / distance).sum()))


@dataclass(frozen=True)
class Pilot:
    """A question, as data.

    Attributes:
        make: a structure of some size from a generator of random numbers.
        sizes: of the test sets, the first one that of the structures to train on as well.
        axis: what the sizes are.
        epochs: of training.
        lr: peak learning rate.
        n_train: structures to train on.
        n_test: structures of a test set.
        max_atoms: of a batch.
    """

    make: Callable[..., Ions]
    sizes: tuple[int, ...]
    axis: str
    epochs: int
    lr: float
    n_train: int
    n_test: int
    max_atoms: int


ATTENTIONS: dict[str, dict[str, Any]] = {
    "molflt": {},
    "softmax": {"mechanism": "softmax"},
    "no far field": {"mechanism": "local"},
    "molflt, charges": {"charges": 1},
    "no far field, charges": {"mechanism": "local", "charges": 1},
}
"""Configurations by name; ``charges`` is the model's own."""
PILOTS = {
    "far-dipoles": Pilot(
        dipoles_at, (10, 12, 15, 20, 30, 40), "Å between the centres", 20, 5e-3, 2000, 500, max_atoms=256
    ),
    "ions": Pilot(cluster, (24, 48, 96, 192), "ions", 30, 2e-3, 3000, 200, max_atoms=768),
}


def write_ions(path: Path, structures: Iterable[Ions], count: int, what: str) -> None:
    """Write an LMDB file of ions, Na where the charge is positive, else Cl; kept if there."""
    if path.exists():
        return
    records = (
        {
            "pos": ions.positions.astype(np.float32),
            "cell": np.zeros((1, 3, 3), dtype=np.float32),
            "pbc": np.zeros((1, 3), dtype=bool),
            "atomic_numbers": np.where(ions.charges > 0, SODIUM, CHLORINE).astype(np.uint8),
            "tags": np.full(len(ions.charges), 2, dtype=np.uint8),
            "natoms": len(ions.charges),
            "sid": index,
            "y_relaxed": ions.energy,
        }
        for index, ions in enumerate(track(structures, what, total=count))
    )
    write_lmdb(path, records, progress=False)


def config(
    train_file: Path, val_file: Path, attention: Mapping[str, Any], seed: int, epochs: int, max_atoms: int, lr: float
) -> TrainConfig:
    """The same model and trainer for every attention of a pilot; a local cutoff of 4 Å."""
    attention = dict(attention)
    charges = attention.pop("charges", 0)
    return TrainConfig.model_validate(
        {
            "seed": seed,
            "data": {
                "train": str(train_file),
                "val": {"val": str(val_file)},
                "standardise": "element",
                "max_atoms": max_atoms,
            },
            "model": {
                "dim": 96,
                "n_heads": 8,
                "n_layers": 3,
                "ffn_dim": 192,
                "cutoff": 4.0,
                "n_rbf": 16,
                "auxiliary_head": False,
                "charges": charges,
                # Moments of the neighbours see no further than these; here the far field is judged.
                "attention": {
                    **({} if attention.get("mechanism") == "softmax" else {"moment_channels": 0}),
                    **attention,
                },
            },
            "optimiser": {"lr": lr},
            # Ions feel each other from afar.
            "loss": {"separation": 0},
            "trainer": {"max_epochs": epochs},
        }
    )


def judge(
    attention: str,
    seed: int,
    epochs: int,
    lr: float,
    pilot: Pilot,
    train_file: Path,
    tests: Mapping[str, Path],
    out: Path,
) -> list[dict[str, Any]]:
    """Train, or go on, and measure on each test file: mean absolute error and deviation, eV."""
    val = next(iter(tests.values()))
    chosen = config(train_file, val, ATTENTIONS[attention], seed, epochs, pilot.max_atoms, lr)
    run = out / f"{train_file.stem}-{list(ATTENTIONS).index(attention)}-{seed}"
    train(chosen, run, resume=True, say=print)
    loaded = load_model(run / "best.safetensors")
    rows = []
    for label, path in tests.items():
        data = open_dataset(path)
        prediction = predict(loaded, data)
        metrics = energy_metrics(prediction.energies, labels(Screening(data, LabelSpec(target="y_relaxed"), label)))
        rows.append({"test": label, "mae": metrics.energy_mae, "mad": metrics.mad})
    return rows


def write_data(name: str, pilot: Pilot, folder: Path) -> tuple[Path, dict[str, Path]]:
    """Write the file to train on and the test sets by name; kept if they are there."""

    def write(part: str, count: int, seed: int, size: int) -> Path:
        path, random = folder / f"{name}-{part}-{count}.lmdb", np.random.default_rng([seed, size])
        write_ions(path, (pilot.make(random, size) for _ in range(count)), count, f"{name}, {part}")
        return path

    return write("train", pilot.n_train, 1, pilot.sizes[0]), {
        str(n): write(str(n), pilot.n_test, 2, n) for n in pilot.sizes
    }


def figure(rows: list[results.Row], axis: str) -> Figure:
    """Error against the size or distance of the tests, mean over the seeds, with a constant's."""
    drawn = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = drawn.subplots()
    tests = sorted({float(row["test"]) for row in rows})

    def line(value: str, chosen: list[results.Row], **style: Any) -> None:
        means = [np.mean([float(row[value]) for row in chosen if float(row["test"]) == test]) for test in tests]
        axes.plot(tests, means, **style)

    for name in dict.fromkeys(row["attention"] for row in rows):
        line("mae", [row for row in rows if row["attention"] == name], marker="o", label=name)
    line("mad", rows, color="black", linestyle="--", label="mean absolute deviation")
    axes.axvline(tests[0], color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel=f"{axis}; trained on the first", ylabel="mean absolute error / eV", xscale="log", yscale="log")
    axes.set_xticks(tests, [f"{test:g}" for test in tests])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return drawn


def main() -> None:
    """Every run that is asked for and not finished, and the figure."""
    parser = results.parser(__doc__, "data and runs", kept=results.DOCS / "results" / "PILOT.csv")
    parser.add_argument("pilot", choices=list(PILOTS))
    parser.add_argument("--epochs", type=int, help="default: that of the pilot")
    parser.add_argument("--lr", type=float, help="peak learning rate; default: that of the pilot")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--attention", nargs="+", choices=list(ATTENTIONS), default=list(ATTENTIONS))
    options = parser.parse_args()
    pilot = PILOTS[options.pilot]
    if options.quick:
        pilot = replace(pilot, sizes=pilot.sizes[:2], n_train=8, n_test=4, epochs=1)
    kept = options.results.with_stem(options.results.stem.replace("PILOT", options.pilot))
    names = options.attention[: 1 if options.quick else None]
    points = [
        {"attention": name, "seed": seed, "epochs": options.epochs or pilot.epochs, "lr": options.lr or pilot.lr}
        for name, seed in product(names, options.seeds)
    ]
    with results.input_errors(parser):
        train_file, tests = write_data(options.pilot, pilot, options.out)
        files = {"train_file": train_file, "tests": tests, "out": options.out}
        results.sweep(kept, points, partial(judge, pilot=pilot, **files))
    results.save(figure(results.read(kept), pilot.axis), results.figure_path(kept))


if __name__ == "__main__":
    main()
