"""How fast structures of OC20's size are read, given neighbour lists and batched, and what that takes of memory.

Slabs of fcc metals with an adsorbate, 20 to 224 atoms, about 75 on average (OC20: 20 to 250, 78), periodic, with 6 Å
neighbour lists. Measured:

* reading single records in random order, from a file made by ``molflt`` and from pickles as OC20 has them;
* a DataLoader under the atom budget of preset ``base``, without and with worker processes, against the rate at which
  that preset consumes structures in training (forward, backward, optimiser step) on two threads;
* anonymous memory while records are read in random order from the whole file.

The file stays in the folder and is used again. Prints a table and writes docs/results/loader.csv. A row of it is one
quantity: its name, and its values for the rounds, or along the way. Rates are in structures per second, memory is in
bytes.

    python -m scripts.benchmarks.loader --out runs
    python -m scripts.tools.tables                     # the table of the page
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from molflt.data.batch import AtomBudgetSampler, StructureCollater, collate
from molflt.data.neighbours import attach_neighbours
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.oc20.unpickle import load_record
from molflt.data.oc20.writer import write_lmdb
from molflt.data.progress import track
from molflt.data.record import RECORD_KEYS, to_data, to_record
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
from scripts import results
from scripts.benchmarks import measuring, structures

KEPT = results.DOCS / "results" / "loader.csv"
WORKERS = (0, 2)
BUDGET = preset_config("base").data.max_atoms
N_TEMPLATES = 300
CUTOFF = 6.0
"""Å, of the graph that OC20 stores."""

Measured = Mapping[str, Sequence[float]]
"""Values of a quantity by its name."""


def records(n: int) -> Iterator[dict[str, Any]]:
    """``n`` records: templates in turn, every time with other positions and energies."""
    random = np.random.default_rng(0)
    sizes = np.clip(random.gamma(3.0, 25.0, min(n, N_TEMPLATES)), 20, 224)
    templates = [to_record(structures.slab(size, random), compact=True) for size in sizes]
    for k in range(n):
        record = dict(templates[k % len(templates)])
        moved = random.normal(scale=0.05, size=(2, *record["pos"].shape)).astype(np.float32)
        record["pos"], record["pos_relaxed"] = record["pos"] + moved[0], record["pos"] + moved.sum(axis=0)
        yield record | {"sid": k, "y_init": float(random.normal()), "y_relaxed": float(random.normal())}


def official_pickle(record: dict[str, Any]) -> bytes:
    """A record as the files of OC20 have it: tensors, each with its own storage, and a stored 6 Å graph."""
    data = attach_neighbours(to_data(record, "record"), CUTOFF)
    arrays = {
        "pos": data.positions.float(),
        "pos_relaxed": data.positions_relaxed.float(),
        "cell": data.cell.float(),
        "atomic_numbers": data.atomic_numbers.float(),
        "tags": data.tags,
        "fixed": data.fixed.float(),
        "edge_index": data.edge_index,
        "cell_offsets": data.cell_offsets,
        "distances": torch.zeros(data.edge_index.shape[1]),
    }
    plain = {key: record[key] for key in ("natoms", "sid", "y_init", "y_relaxed")}
    return pickle.dumps({**arrays, **plain}, protocol=2)


def rates(action: Callable[[int], object], n_items: int, rounds: int) -> list[float]:
    """Items per second of processor time, each round; ``action(k)`` deals with item k of ``rounds * n_items``."""
    found = []
    for r in range(rounds):
        start = time.process_time()
        for k in range(r * n_items, (r + 1) * n_items):
            action(k)
        found.append(n_items / (time.process_time() - start))
    return found


def mixed_batches(dataset: LmdbDataset, max_atoms: int, n: int) -> list[list[int]]:
    """``n`` batches of structures drawn from the whole file; unlike those of training, each holds all sizes."""
    random = np.random.default_rng(4)
    found: list[list[int]] = []
    while len(found) < n:
        drawn = random.integers(len(dataset), size=10_000)
        sampler = AtomBudgetSampler(dataset.n_atoms[drawn], max_atoms, shuffle=False, seed=0)
        found.extend(drawn[batch].tolist() for batch in sampler)
    return found[:n]


def loader_rates(dataset: LmdbDataset, max_atoms: int, workers: int, n_batches: int, rounds: int) -> list[float]:
    """Structures per second of a loader, each round of ``n_batches`` batches; the start of workers not counted."""
    ahead = 2 * workers + 1
    chosen = mixed_batches(dataset, max_atoms, ahead + n_batches * rounds)
    loader = DataLoader[Any](
        cast(Any, dataset), batch_sampler=chosen, collate_fn=StructureCollater(CUTOFF), num_workers=workers
    )
    batches = iter(loader)
    # what the workers make while they start comes for nothing
    for _ in range(ahead):
        next(batches)
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        n_structures = sum(batch.num_graphs for batch in islice(batches, n_batches))
        found.append(n_structures / (time.perf_counter() - start))
    return found


def training_rates(dataset: LmdbDataset, max_atoms: int, steps: int) -> list[float]:
    """Structures per second that preset ``base`` trains on with two threads, each step; the first is left out."""
    torch.set_num_threads(2)
    model = EnergyModel(preset_config("base").model, seed=0).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    found = []
    for chosen in mixed_batches(dataset, max_atoms, steps + 1):
        batch = collate([attach_neighbours(dataset[k], CUTOFF) for k in chosen])
        start = time.perf_counter()
        output = model(batch)
        loss = (output.energy - batch.y_relaxed).abs().mean()
        if output.displacement is not None:
            loss = loss + (output.displacement - (batch.positions_relaxed - batch.positions)).abs().mean()
        optimiser.zero_grad()
        loss.float().backward()
        optimiser.step()
        found.append(len(chosen) / (time.perf_counter() - start))
    return found[1:]


def resident() -> tuple[int, int]:
    """Anonymous and file-backed resident memory of this process, bytes (Linux)."""
    return int(measuring.resident("RssAnon")), int(measuring.resident("RssFile"))


class Memory:
    """Time and resident memory of a long loop, sampled about fifty times."""

    def __init__(self, total: int) -> None:
        self.every, self.start = max(1, total // 50), time.perf_counter()
        self.samples: list[tuple[int, int, int]] = []

    def look(self, done: int) -> None:
        """Take a sample if it is time for one."""
        if done % self.every == 0:
            self.samples.append((done, *resident()))

    def summary(self, name: str) -> dict[str, list[float]]:
        """First and last sample, and the slope of anonymous memory, bytes an item; the first tenth warms up."""
        settled = np.array(self.samples[len(self.samples) // 10 :], dtype=np.float64)
        slope = np.polyfit(settled[:, 0], settled[:, 1], 1)[0] if len(settled) > 1 else 0.0
        done, anonymous, file = (list(column) for column in zip(*self.samples, strict=True))
        return {
            f"{name}.seconds": [time.perf_counter() - self.start],
            f"{name}.items": [done[-1]],
            f"{name}.anonymous_first": [settled[0, 1]],
            f"{name}.anonymous_last": [settled[-1, 1]],
            f"{name}.file_backed_last": [settled[-1, 2]],
            f"{name}.anonymous_slope": [float(slope)],
            f"{name}.samples.items": done,
            f"{name}.samples.anonymous": anonymous,
            f"{name}.samples.file_backed": file,
        }


def write_file(path: Path, n: int) -> dict[str, list[float]]:
    """Make the file, or use it again; how long making it took and what memory, kept next to it."""
    kept = path.with_suffix(".writing.json")
    if path.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    seen = Memory(n)

    def watched() -> Iterator[dict[str, Any]]:
        for k, record in enumerate(records(n), start=1):
            yield record
            seen.look(k)

    write_lmdb(path, watched(), total=n, source=f"loader {n}", progress=True)
    kept.write_text(json.dumps(seen.summary("writing")), encoding="utf-8")
    return dict(json.loads(kept.read_text(encoding="utf-8")))


def random_access(dataset: LmdbDataset, reads: int) -> dict[str, list[float]]:
    """Time and memory of reads in random order from the whole file."""
    random = np.random.default_rng(2)
    seen = Memory(reads)
    for k in track(range(1, reads + 1), "random access", total=reads, enabled=True):
        dataset[int(random.integers(len(dataset)))]
        seen.look(k)
    return seen.summary("random_access")


def sizes(dataset: LmdbDataset) -> dict[str, list[float]]:
    """The pass over all records that batching needs, and the making of a sampler; seconds and bytes."""
    before, start = resident()[0], time.perf_counter()
    n_atoms = dataset.n_atoms
    read = time.perf_counter() - start
    start = time.perf_counter()
    for shuffle in (True, False):
        len(AtomBudgetSampler(n_atoms, BUDGET, shuffle=shuffle, seed=0))
    return {
        "sizes.seconds": [read],
        "sizes.samplers_seconds": [time.perf_counter() - start],
        "sizes.anonymous_growth": [resident()[0] - before],
        "sizes.mean_n_atoms": [float(n_atoms.mean())],
        "sizes.n_atoms": [int(n) for n in np.percentile(n_atoms, [0, 50, 100])],
    }


def measure(options: Any) -> dict[str, list[float]]:
    """Everything, by name; rates are in structures per second, one number a round."""
    path = options.out / f"bench_loader_{options.records}.lmdb"
    writing = write_file(path, options.records)
    # The sizes are read anew, not taken from the file that keeps them.
    path.with_name(path.name + ".natoms").unlink(missing_ok=True)
    dataset = LmdbDataset(path)
    found: dict[str, list[float]] = {"records": [len(dataset)], "file_bytes": [path.stat().st_size], **writing}
    found |= sizes(dataset)
    found |= random_access(dataset, options.reads)
    order = np.random.default_rng(3).integers(len(dataset), size=options.rounds * 200)
    found["read"] = rates(lambda k: dataset[int(order[k])], 200, options.rounds)
    pickles = [official_pickle(record) for record in records(100)]
    found["read_official"] = rates(
        lambda k: to_data(load_record(pickles[k % 100], "record", only=RECORD_KEYS), "record"), 100, options.rounds
    )
    found["decode_official"] = rates(
        lambda k: load_record(pickles[k % 100], "record", only=("natoms", "y_relaxed")), 100, options.rounds
    )
    for workers in WORKERS:
        found[f"batches_{workers}_workers"] = loader_rates(dataset, BUDGET, workers, 6, options.rounds)
    found["training_base"] = training_rates(dataset, options.train_atoms, options.steps)
    return found


def _spread(values: Sequence[float]) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    digits = 0 if middle >= 100 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.0f} MB"


def _course(found: Measured, name: str, item: str) -> str:
    first, last, file = (
        _megabytes(found[f"{name}.{key}"][0]) for key in ("anonymous_first", "anonymous_last", "file_backed_last")
    )
    return (
        f"{found[f'{name}.seconds'][0]:.0f} s; anonymous memory {first} to {last}, "
        f"{found[f'{name}.anonymous_slope'][0]:.2g} bytes a {item}; file-backed at the end {file}"
    )


def ratio(found: Measured, workers: int) -> float:
    """How many times as fast the loader is as training, by their medians."""
    return float(np.median(found[f"batches_{workers}_workers"]) / np.median(found["training_base"]))


def table(found: Measured | None = None) -> str:
    """What was measured, and the number; by default what the page quotes."""
    found = found or {row["quantity"]: results.numbers(row["values"]) for row in results.read(KEPT)}
    smallest, median, largest = found["sizes.n_atoms"]
    batches = {w: found[f"batches_{w}_workers"] for w in WORKERS}
    worst = min(map(min, batches.values())) / max(found["training_base"])
    lines = [
        ("records in the file", f"{found['records'][0]:,.0f} ({_megabytes(found['file_bytes'][0])})"),
        (
            "atoms",
            f"{smallest:.0f} to {largest:.0f}, median {median:.0f}, mean {found['sizes.mean_n_atoms'][0]:.0f}",
        ),
        ("plain read, random order, structures/s of processor time", _spread(found["read"])),
        ("record as OC20 has it, with its graph: the same", _spread(found["read_official"])),
        ("record as OC20 has it: number of atoms and label only", _spread(found["decode_official"])),
        *((f"read, neighbours, batch; {w} workers, structures/s", _spread(batches[w])) for w in WORKERS),
        ("training of `base`, two threads, structures/s", _spread(found["training_base"])),
        *((f"loader to training, {w} workers", f"{ratio(found, w):.0f} times") for w in WORKERS),
        ("slowest round of any loader to fastest training step", f"{worst:.0f} times"),
        ("writing the file", _course(found, "writing", "record")),
        (
            "sizes of all records",
            f"{found['sizes.seconds'][0]:.1f} s; {_megabytes(found['sizes.anonymous_growth'][0])} with samplers",
        ),
        ("two samplers for all records", f"{found['sizes.samplers_seconds'][0]:.1f} s"),
        (f"{found['random_access.items'][0]:,.0f} random reads", _course(found, "random_access", "read")),
    ]
    return results.markdown(["measured", ""], lines)


def main() -> None:
    """Measure, print, and write the CSV."""
    parser = results.parser(__doc__, "the file of structures", kept=KEPT)
    parser.add_argument("--records", type=int, default=500_000, help="structures in the file; these take about 4 GB")
    parser.add_argument("--reads", type=int, default=30_000, help="random reads along which memory is watched")
    options = parser.parse_args()
    options.rounds, options.steps, options.train_atoms = 7, 8, 2048
    if options.quick:
        options.records, options.reads, options.rounds, options.steps, options.train_atoms = 40, 60, 1, 1, 40
    found = measure(options)
    print(table(found))
    conditions = {name: getattr(options, name) for name in ("records", "reads", "train_atoms")}
    rows = [{"quantity": name, "values": values} for name, values in found.items()]
    results.record(options.results, rows, conditions, digits=8)


if __name__ == "__main__":
    main()
