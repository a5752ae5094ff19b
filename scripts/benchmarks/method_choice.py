"""What the choice of a numerical method for the far field is worth, and the costs that it is made by.

    python -m scripts.benchmarks.method_choice --out docs/results --fit molflt/attention/far/costs.json
    python -m scripts.benchmarks.method_choice --out docs/results

The first measures stacks of attention layers by every method, keeps all times in FOLDER/method_fit.csv, and writes
the seconds of each kind of work that explain them best. With ``MOLFLT_COSTS=FILE`` they are used. The second
measures, for structures of 16 to 16,384 atoms, every way that the choice could have taken, and writes
FOLDER/method_choice.csv: the regret of a choice is its time over that of the fastest way. A way that should take more
than four times as long as the choice is left out.

What is measured is four layers of width 256, of which the far field carries 64 channels, with all that they share:
geometry to output, and back to all weights when training. On one thread the time is the processor's, which other
programs lengthen little; on more threads it is the wall clock's, and the machine should be idle. Every row is on disk
before the next is measured, and a second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from scipy.optimize import nnls
from torch_geometric.data import Data

from molflt.attention.build import Sizes, build_attention
from molflt.attention.config import SpectrumName
from molflt.attention.far.choice import ORDERS, Order, work_of
from molflt.attention.far.costs import DIRECTIONS, THREADS, VARIABLE, Costs, Direction, Threads, Work, costs
from molflt.attention.far.method import FrequencyMethod
from molflt.attention.geometry import geometry_of_batch
from molflt.attention.near import GaussianDistanceBasis, local_neighbourhood
from molflt.attention.registry import attention_config
from molflt.data.ase_io import from_atoms
from molflt.data.reading import Reading
from molflt.files import atomic_file
from scripts import results
from scripts.benchmarks import structures
from scripts.benchmarks.measuring import duration

CUTOFF, N_RBF, THICKNESS = 6.0, 48, 10.0
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
KINDS = ("isolated", "slab", "bulk")
SPECTRA: tuple[SpectrumName, ...] = ("gaussians", "both")

AT_MOST = 4.0
"""A way is measured if it should take no more than so many times what the choice should."""

POINT = ("kind", "atoms", "spectrum", "threads", "direction", "method", "order")
PASSES = {"forward": "forward", "train": "forward and backward"}
CHOICE_COLUMNS = (*POINT, "seconds", "expected", "chosen")
FIT_COLUMNS = (*POINT, "dim", "layers", "seconds")


@dataclass(frozen=True)
class Shape:
    """The widths of a stack of layers."""

    dim: int = 256
    n_heads: int = 8
    n_layers: int = 4


FIT_STACKS: tuple[tuple[Shape, SpectrumName], ...] = (
    (Shape(), "both"),
    (Shape(64, 4, 2), "gaussians"),
    (Shape(128, 8, 1), "both"),
)
"""What is fitted to. One shape could not tell heads from channels, nor what is done once from what layers repeat."""

FIT_SIZES = (12, 40, 90, 180, 300, 600, 1200, 2000, 4000)
FIT_ONE_SHAPE_FROM = 1000
QUICK_SIZES = (16,)
FIT_MOST = {
    ("isolated", "exact", "quadratic"): 2000,
    ("slab", "exact", "quadratic"): 12,
    ("bulk", "exact", "quadratic"): 0,
    ("isolated", "exact", "mixed"): 4000,
    ("slab", "exact", "mixed"): 12,
    ("bulk", "exact", "mixed"): 0,
    **{(kind, "lattice", order): 700 for kind in ("slab", "bulk") for order in ("quadratic", "mixed")},
    **{(kind, "lattice", "linear"): 1500 for kind in ("slab", "bulk")},
}
"""Up to how many atoms a way is measured for the fit; beyond it takes too long, and is no choice."""

COMMON = ("dense_products", "atom_values", "edge_values", "layers", "structures")
"""What all ways do, in units that only the fit knows."""

_CALLS = ("exact_calls", "image_calls", "lattice_calls", "mesh_calls")
NOMINAL = {
    **dict.fromkeys([*(field.name for field in fields(Work)), "atom_values", "edge_values"], 2e-9),
    **dict.fromkeys(_CALLS, 5e-4),
    "pair_spilled": 8e-9,
    **dict.fromkeys(("mesh_bands", "pair_layers", "pair_applications", "edge_applications", "layers"), 3e-4),
    **dict.fromkeys(("feature_applications", "grid_passes", "grid_bands"), 1e-4),
    **dict.fromkeys(("pair_mixed", "pair_products", "wave_products", "feature_products", "feature_weights"), 3e-11),
    **dict.fromkeys(("edge_products", "grid_spread"), 2e-10),
    **dict.fromkeys(("grid_first", "grid_others", "grid_filters"), 6e-11),
    "dense_products": 3e-10,
    "structures": 1e-3,
}
"""Seconds for one, roughly."""

PULL = 1e-5
"""How strongly a rate is pulled to the nominal one: ten times as much costs as three per cent in every time would."""


def slab(n: int, seed: int = 0) -> Data:
    """``n`` atoms on jittered sites of a lattice THICKNESS Å thick, periodic in two directions."""
    rng = np.random.default_rng(seed)
    side = math.sqrt(n / (structures.DENSITY * THICKNESS))
    layers = 5
    across = math.ceil(math.sqrt(n / layers))
    sites = np.sort(rng.permutation(across * across * layers)[:n])
    grid = np.stack(np.unravel_index(sites, (across, across, layers)), axis=1)
    step = np.array([side / across, side / across, THICKNESS / layers])
    positions = (grid + rng.uniform(-0.1, 0.1, grid.shape)) * step
    numbers = rng.choice([1, 6, 7, 8], size=n)
    atoms = Atoms(numbers, positions, cell=[side, side, 3 * THICKNESS], pbc=[True, True, False])
    return from_atoms(atoms, f"slab of {n} atoms", tags="oc20", how=Reading(allow_charged=True))


MAKERS: dict[str, Callable[[int], Data]] = {"isolated": structures.ball, "slab": slab, "bulk": structures.cube}


class Stack:
    """Layers of attention with what they share, on one structure."""

    def __init__(self, structure: Data, shape: Shape, spectrum: SpectrumName) -> None:
        torch.manual_seed(0)
        batch = structures.batch_with_neighbours([structure], CUTOFF)
        config = attention_config(
            n_basis=16, sigma_min=2.0, sigma_max=12.0, tolerance=1e-4, spectrum=spectrum, moment_channels=0
        )
        sizes = Sizes(dim=shape.dim, n_heads=shape.n_heads, n_layers=shape.n_layers, n_rbf=N_RBF)
        self.radial = GaussianDistanceBasis(N_RBF, CUTOFF)
        self.shape = shape
        self.positions, self.layers = build_attention(config, sizes)
        self.auto = self.positions.method
        self.geometry = geometry_of_batch(batch, torch.float32)
        self.n_edges = batch.edge_index.shape[1]
        self.x = torch.randn(self.geometry.n_atoms, shape.dim)

    def ways(self) -> dict[tuple[str, Order], tuple[FrequencyMethod, Work]]:
        """The methods and orders that ``auto`` has for the structure, and what work they are."""
        found = {}
        with torch.no_grad():
            basis = self.positions.rpe()
            for method, order in itertools.product(self.auto.candidates(self.geometry, 0), ORDERS):
                work = work_of(method, order, self.positions.sizes, self.geometry, 0, self.n_edges, basis)
                # A mesh on pairs is for comparison.
                if work is not None and (method.name == "mesh") <= (order == "linear"):
                    found[method.name, order] = method, work
        return found

    def common_work(self) -> list[float]:
        """How much of COMMON there is."""
        n, repeats = self.geometry.n_atoms, self.shape.n_layers
        return [repeats * n * self.shape.dim**2, n * N_RBF, repeats * (self.n_edges + n) * N_RBF, repeats, 1.0]

    def seconds(
        self, method: FrequencyMethod, order: Order, train: bool, threads: int, repeats: int, most: float
    ) -> float:
        """The median of a few calls, after one; no call is started after ``most`` seconds."""
        before, clock = torch.get_num_threads(), time.process_time if threads == 1 else time.perf_counter
        self.positions.method, self.positions.order = method, order
        torch.set_num_threads(threads)
        try:
            self.call(train)
            found: list[float] = []
            while len(found) < repeats and sum(found) < most:
                start = clock()
                self.call(train)
                found.append(clock() - start)
        finally:
            self.positions.method, self.positions.order = self.auto, "auto"
            torch.set_num_threads(before)
        return float(np.median(found))

    def call(self, train: bool) -> None:
        """All layers once, with gradients of all weights when training."""
        with torch.set_grad_enabled(train):
            neighbourhood = local_neighbourhood(self.geometry, self.radial, CUTOFF)
            context = self.positions(self.geometry, neighbourhood)
            x = self.x.detach().requires_grad_(train)
            for layer in self.layers:
                x = x + layer(x, self.geometry, layer.prepare(self.geometry, context))
            if train:
                x.square().mean().backward()
        for module in (self.positions, *self.layers, self.radial):
            module.zero_grad(set_to_none=True)


def point(kind: str, n: int, spectrum: str, threads: int, direction: str, way: tuple[str, str]) -> results.Row:
    """The columns that name a measurement."""
    return dict(zip(POINT, (kind, str(n), spectrum, str(threads), direction, *way), strict=True))


def fit(options: argparse.Namespace) -> None:
    """Measure what is not measured yet, and write the costs that explain all of it best."""
    store = open_store(options, "method_fit.csv", FIT_COLUMNS, {"quick": int(options.quick)})
    # Every way is forced here, so any costs do; those at hand may not suit the kinds of work that there are now.
    equal = options.out / "equal_costs.json"
    one = Work(**{field.name: 1e-9 for field in fields(Work)})
    write_costs(equal, Costs(dict.fromkeys(itertools.product(THREADS, DIRECTIONS), one)))
    os.environ[VARIABLE] = str(equal)
    sizes, stacks = (QUICK_SIZES, FIT_STACKS[:1]) if options.quick else (FIT_SIZES, FIT_STACKS)
    observed: dict[tuple[int, str], list[tuple[list[float], float]]] = {}
    for n, kind in itertools.product(sizes, KINDS):
        structure = MAKERS[kind](n)
        for shape, spectrum in stacks:
            if shape != Shape() and n >= FIT_ONE_SHAPE_FROM:
                continue
            stack = Stack(structure, shape, spectrum)
            for (way, (method, work)), threads, direction in itertools.product(
                stack.ways().items(), options.threads, DIRECTIONS
            ):
                if n > FIT_MOST.get((kind, *way), n):
                    continue
                wanted = {
                    **point(kind, n, spectrum, threads, direction, way),
                    "dim": str(shape.dim),
                    "layers": str(shape.n_layers),
                }
                row = results.find(store.rows, **wanted)
                if row is None and options.report:
                    continue
                if row is None:
                    seconds = stack.seconds(
                        method, way[1], direction == "train", threads, options.repeats, options.seconds
                    )
                    store.add({**wanted, "seconds": seconds})
                    row = store.rows[-1]
                    say(wanted, f"{duration(seconds):>9}")
                amounts = [*work.amounts().values(), *stack.common_work()]
                observed.setdefault((threads, direction), []).append((amounts, float(row["seconds"])))
    rates: dict[tuple[Threads, Direction], Work] = {}
    for name, direction in itertools.product(THREADS, DIRECTIONS):
        threads = min(options.threads) if name == THREADS[0] else max(options.threads)
        rates[name, direction], error = explain(observed[threads, direction])
        n_times = len(observed[threads, direction])
        print(f"{name}, {direction}: {n_times} times, explained to {error:.0%} (median)")
    equal.unlink()
    write_costs(options.fit, Costs(rates))
    print(options.fit)


def write_costs(path: Path, found: Costs) -> None:
    """The file that ``MOLFLT_COSTS`` names, with how and where it was measured."""
    table = {"seconds": found.table(), **results.provenance()}
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def explain(observed: Sequence[tuple[list[float], float]]) -> tuple[Work, float]:
    """The rates, none negative, with the least relative error; and the median of that error.

    Kinds of work that the times do not tell apart stay near NOMINAL seconds.
    """
    amounts = np.array([amounts for amounts, _ in observed]) / np.array([seconds for _, seconds in observed])[:, None]
    names = [field.name for field in fields(Work)]
    nominal = np.array([NOMINAL[name] for name in (*names, *COMMON)])
    # In units of the nominal seconds, and gently towards one of each.
    relative = amounts * nominal
    pull = math.sqrt(PULL * len(amounts)) * np.eye(len(nominal))
    found, _ = nnls(np.vstack([relative, pull]), np.concatenate([np.ones(len(amounts)), pull.sum(axis=1)]))
    rates = Work(**dict(zip(names, (found * nominal).tolist(), strict=False)))
    return rates, float(np.median(np.abs(relative @ found - 1)))


def measure(options: argparse.Namespace) -> None:
    """Every way at every size that is not in the results yet."""
    digest = hashlib.sha256(json.dumps(costs().table(), sort_keys=True).encode()).hexdigest()[:8]
    conditions = {
        "costs": digest,
        "quick": int(options.quick),
        "layers": Shape().n_layers,
        "dim": Shape().dim,
        "tolerance": 1e-4,
    }
    store = open_store(options, "method_choice.csv", CHOICE_COLUMNS, conditions)
    sizes = QUICK_SIZES if options.quick else options.sizes
    for n, kind in itertools.product([] if options.report else sizes, options.kinds):
        structure = MAKERS[kind](n)
        for spectrum in options.spectra:
            measure_structure(options, store, kind, n, spectrum, Stack(structure, Shape(), spectrum))
    for spectrum in options.spectra:
        print(f"\n{spectrum}\n\n{table(spectrum, folder=options.out)}")


def measure_structure(
    options: argparse.Namespace, store: results.Store, kind: str, n: int, spectrum: str, stack: Stack
) -> None:
    """All ways of one structure."""
    ways = stack.ways()
    for threads, direction in itertools.product(options.threads, DIRECTIONS):
        rates = costs().of(threads, direction == "train")
        expected = {way: work.seconds(rates) for way, (_, work) in ways.items()}
        choice = min(expected, key=lambda way: expected[way])
        for way, (method, _) in ways.items():
            wanted = point(kind, n, spectrum, threads, direction, way)
            if results.find(store.rows, **wanted):
                continue
            seconds = None
            if expected[way] <= AT_MOST * expected[choice]:
                # One way alone has no regret, whatever its time.
                seconds = stack.seconds(
                    method, way[1], direction == "train", threads, options.repeats, options.seconds
                )
            store.add({**wanted, "seconds": seconds, "expected": expected[way], "chosen": int(way == choice)})
            took = "left out" if seconds is None else duration(seconds)
            say(wanted, f"{took:>9}, expected {duration(expected[way])}{', chosen' * (way == choice)}")


def open_store(
    options: argparse.Namespace, name: str, columns: Sequence[str], conditions: dict[str, Any]
) -> results.Store:
    """The rows that are there already, unless all is to be measured again."""
    if options.again:
        (options.out / name).unlink(missing_ok=True)
    return results.Store(options.out / name, columns, conditions)


def say(where: results.Row, what: str) -> None:
    """A line on what was measured."""
    print(" ".join(f"{value:>9}" for value in where.values()), what, flush=True)


def regrets(rows: Sequence[results.Row]) -> Iterator[tuple[tuple[str, ...], results.Row, float]]:
    """Every point of the rows: its columns before the method, the row of the choice, and its regret."""
    for key, of_point in itertools.groupby(rows, key=lambda row: tuple(row[name] for name in POINT[:5])):
        measured = [row for row in of_point if row["seconds"]]
        chosen = [row for row in measured if row["chosen"] == "1"]
        if chosen:
            yield key, chosen[0], float(chosen[0]["seconds"]) / min(float(row["seconds"]) for row in measured)


def table(spectrum: str, folder: Path = results.DOCS / "results") -> str:
    """Markdown: what was chosen for every structure, its time and its regret."""
    rows = [row for row in results.read(folder / "method_choice.csv") if row["spectrum"] == spectrum]
    found: dict[tuple[str, str], dict[str, str]] = {}
    columns: dict[str, None] = {}
    largest = 0.0
    for (kind, atoms, _, threads, direction), row, regret in regrets(rows):
        column = f"{threads} thread{'s' * (threads != '1')}, {PASSES[direction]}"
        columns[column] = None
        order = f" {row['order']}" if row["method"] == "lattice" else ""
        found.setdefault((kind, atoms), {})[column] = (
            f"{row['method']}{order}, {duration(float(row['seconds']))}, {regret:.2f}"
        )
        largest = max(largest, regret)
    if not found:
        return "Not measured yet.\n"
    places = sorted(found, key=lambda place: (KINDS.index(place[0]), int(place[1])))
    body = [
        [kind, f"{int(atoms):,}", *(found[kind, atoms].get(column, "") for column in columns)]
        for kind, atoms in places
    ]
    return results.markdown(["structure", "atoms", *columns], body) + f"\nThe largest regret is {largest:.2f}.\n"


def main() -> None:
    """Fit, or measure and print the table."""
    parser = results.parser(__doc__, "method_choice.csv and method_fit.csv")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="measure the costs and write them to FILE")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="atoms, increasing")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--spectra", nargs="+", choices=SPECTRA, default=["both"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of a point, after one")
    parser.add_argument("--seconds", type=float, default=0.7, help="no further call of a point after so long")
    parser.add_argument("--quick", action="store_true", help="one small size only")
    parser.add_argument("--report", action="store_true", help="measure nothing, use what was measured")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    options = parser.parse_args()
    # As the command line of molflt sets it.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    started = time.perf_counter()
    fit(options) if options.fit else measure(options)
    print(f"took {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
