"""How fast a set of OC20's size is prepared, opened, read, given neighbour lists and batched, and in what memory.

Slabs of fcc metals with an adsorbate, 20 to 224 atoms, about 75 on average (OC20: 20 to 250, 78), periodic, with 6 Å
neighbour lists, as pickles in the layout of OC20. Measured:

* the preparation, by one process;
* a set of ``--records`` structures, whose shards are copies of the first: seconds from the start of Python to the
  first training step of preset ``base``, the same for a resumed run, and memory; the plan of an epoch;
* structures per second of processor time: from the pickles, and from the prepared set; read; with neighbours and
  batched; with noise and all that the model needs of a batch;
* a DataLoader without and with worker processes, by the clock;
* anonymous memory while structures are read in random order.

The files stay in the folder and are used again. Prints a table and writes docs/results/loader.csv, a row for each
quantity: its name, and its values for the rounds. On a machine with other work, the best round is the one that says
most: the table gives it, with the median.

    python -m scripts.benchmarks.loader --out runs
    python -m scripts.tools.tables                     # the table of the page
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from molflt.data import prepare as preparing
from molflt.data.batch import AtomBudgetSampler, collate
from molflt.data.dataset import MANIFEST, StructureDataset
from molflt.data.neighbours import attach_neighbours
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.prepared import PreparedSet, read_signed, signed
from molflt.data.quality.domain import sample
from molflt.data.record import to_data, to_record
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
from molflt.training.loader import Batches, Packed, Requests, as_is
from molflt.training.training_structures import NoisyDataset
from scripts import results
from scripts.benchmarks import measuring, structures

KEPT = results.DOCS / "results" / "loader.csv"
WORKERS = (0, 2)
BASE = preset_config("base")
N_TEMPLATES = 300
CUTOFF = 6.0
"""Å, of the graph that OC20 stores."""

Measured = Mapping[str, Sequence[float]]
"""Values of a quantity by its name."""


def records(n: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """``n`` records: templates in turn, every time with other positions and energies."""
    random = np.random.default_rng(seed)
    sizes = np.clip(random.gamma(3.0, 25.0, min(n, N_TEMPLATES)), 20, 224)
    templates = [to_record(structures.slab(size, random), compact=True) for size in sizes]
    for k in range(n):
        record = dict(templates[k % len(templates)])
        moved = random.normal(scale=0.05, size=(2, *record["pos"].shape)).astype(np.float32)
        record["pos"], record["pos_relaxed"] = record["pos"] + moved[0], record["pos"] + moved.sum(axis=0)
        yield record | {"sid": k, "y_init": float(random.normal()), "y_relaxed": float(random.normal())}


def official(record: dict[str, Any]) -> dict[str, Any]:
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
    return {**arrays, **plain}


def write_official(path: Path, n: int, seed: int = 0) -> None:
    """Write pickles of tensors, as in OC20's files."""
    import lmdb

    with lmdb.open(str(path), subdir=False, map_size=1 << 36) as environment, environment.begin(write=True) as writer:
        for k, record in enumerate(records(n, seed)):
            writer.put(str(k).encode(), pickle.dumps(official(record), protocol=2))
        writer.put(b"length", pickle.dumps(n))


def enlarge(small: Path, large: Path, n: int) -> None:
    """Make a set of ``n`` structures or a few more, whose shards are copies of those of another."""
    if (large / MANIFEST).exists():
        return
    manifest = read_signed(small / MANIFEST)
    shards: list[dict[str, Any]] = []
    large.mkdir(parents=True, exist_ok=True)
    while sum(shard["structures"] for shard in shards) < n:
        shard = manifest["shards"][len(shards) % len(manifest["shards"])]
        shards.append({**shard, "name": f"{len(shards):05d}"})
        shutil.copytree(small / shard["name"], large / shards[-1]["name"], dirs_exist_ok=True)
    (large / MANIFEST).write_text(signed({**manifest, "shards": shards}), encoding="utf-8")


def rates(action: Callable[[int], object], n_items: int, rounds: int) -> list[float]:
    """Items per second of processor time, each round; ``action(k)`` deals with item k of ``rounds * n_items``."""
    found = []
    for r in range(rounds):
        start = time.process_time()
        for k in range(r * n_items, (r + 1) * n_items):
            action(k)
        found.append(n_items / (time.process_time() - start))
    return found


class Loading:
    """The loader of a run with noise, by preset ``base``, or with neighbour lists alone."""

    def __init__(self, dataset: StructureDataset, whole: bool) -> None:
        self.structures = NoisyDataset(dataset, BASE.model, ("y_relaxed",), 0.05 if whole else 0.0, 0, 0)
        if not whole:
            self.structures._moved = lambda data, index: data  # type: ignore[method-assign]
        self.plan = EnergyModel(BASE.model, seed=0).plan() if whole else None
        self.sampler = AtomBudgetSampler(dataset.n_atoms, BASE.data.max_atoms, shuffle=True, seed=0)
        self.batches = Batches(self.structures, BASE.model.neighbour_cutoff)

    def rates(self, n_batches: int, rounds: int) -> list[float]:
        """Structures per second of processor time, each round."""
        wanted, found = iter(Requests(self.sampler, self.plan)), []
        self.batches[next(wanted)]
        for _ in range(rounds):
            start = time.process_time()
            made = (self.batches[request] for request in islice(wanted, n_batches))
            n = sum(batch.num_graphs for batch in made if not isinstance(batch, Packed))
            found.append(n / (time.process_time() - start))
        return found

    def loader_rates(self, workers: int, n_batches: int, rounds: int) -> list[float]:
        """Structures per second by the clock, each round; the start of workers is not counted."""
        batches = Batches(self.structures, self.batches.reach, packed=workers > 0)
        wanted = Requests(self.sampler, self.plan)
        loader = DataLoader(batches, None, sampler=wanted, collate_fn=as_is, num_workers=workers)
        here, found = torch.device("cpu"), []
        made = (batch.unpacked(here) if isinstance(batch, Packed) else batch for batch in loader)
        for _ in range(2 * workers + 1):
            next(made, None)
        for _ in range(rounds):
            start = time.perf_counter()
            n = sum(batch.num_graphs for batch in islice(made, n_batches))
            found.append(n / (time.perf_counter() - start))
        return found


def from_pickles(dataset: LmdbDataset, n: int, rounds: int) -> list[float]:
    """Structures per second of processor time of the path without preparation: read, neighbours, batch."""
    chosen = AtomBudgetSampler(dataset.n_atoms, BASE.data.max_atoms, shuffle=False, seed=0)
    batches, found = iter(chosen), []
    for _ in range(rounds):
        start, done = time.process_time(), 0
        while done < n and (indices := next(batches, None)) is not None:
            collate([attach_neighbours(dataset[k], CUTOFF) for k in indices])
            done += len(indices)
        found.append(done / (time.process_time() - start))
    return found


def random_access(dataset: StructureDataset, reads: int) -> float:
    """Bytes of anonymous memory that reads in random order take."""
    random = np.random.default_rng(2)
    for k in random.integers(len(dataset), size=reads // 20).tolist():
        dataset[k]
    before = measuring.resident("RssAnon")
    for k in random.integers(len(dataset), size=reads).tolist():
        dataset[k]
    return measuring.resident("RssAnon") - before


START = """
import time; begun = time.perf_counter()
import json, resource, sys
from lightning.pytorch.callbacks import Callback
from molflt.training.config import TrainConfig, preset_config
from molflt.training.run import train
from scripts.benchmarks.measuring import resident

class Stop(Exception): pass

class First(Callback):
    def on_train_batch_start(self, *_):
        print(json.dumps([time.perf_counter() - begun, time.process_time(), resident("RssAnon")]))
        raise Stop

values = preset_config("base").model_dump()
values["data"] |= {"train": sys.argv[1], "val": {"id": sys.argv[2]}, "num_workers": 2}
try:
    train(TrainConfig.model_validate(values), sys.argv[3], say=lambda line: None, callbacks=[First()])
except Stop: pass
"""


def first_step(train: Path, val: Path, run: Path) -> list[float]:
    """Seconds by the clock and of processor time from the start of Python to the first step, and bytes."""
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-W", "ignore", "-c", START, *map(str, (train, val, run))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=results.ROOT)
    return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]


def measure(options: Any) -> dict[str, list[float]]:
    """Everything, by name."""
    n, rounds = options.prepared, options.rounds
    official, small, large = (options.out / f"loader_{n}{end}" for end in (".lmdb", "", f"_{options.records}"))
    if not official.exists():
        write_official(official, n)
    found: dict[str, list[float]] = {"prepared": [n], "official_bytes": [official.stat().st_size]}
    found["prepare"] = []
    # As many geometries are examined as would be of the large set.
    vars(preparing)["sample"] = lambda n: sample(max(n, options.records))
    for _ in range(min(rounds, 2)):
        shutil.rmtree(small, ignore_errors=True)
        start = time.process_time()
        preparing.prepare([str(official)], small, n_processes=1)
        found["prepare"].append(n / (time.process_time() - start))
    enlarge(small, large, options.records)
    prepared = PreparedSet(large)
    found |= {"records": [len(prepared)], "mean_n_atoms": [float(prepared.n_atoms.mean())]}
    found["bytes"] = [sum(file.stat().st_size for file in large.rglob("*.npy"))]
    start = time.process_time()
    sampler = AtomBudgetSampler(prepared.n_atoms, BASE.data.max_atoms, shuffle=True, seed=0)
    found["sampler_seconds"] = [time.process_time() - start]
    start = time.process_time()
    found["batches"] = [len(list(sampler))]
    found["epoch_seconds"] = [time.process_time() - start]
    val = options.out / f"loader_val_{n}"
    if not val.exists():
        write_official(val.with_suffix(".lmdb"), n // 8, seed=1)
        preparing.prepare([str(val.with_suffix(".lmdb"))], val)
    starts = [first_step(large, val, options.out / "loader_run") for _ in range(min(rounds, 2))]
    found |= dict(
        zip(
            ("start_seconds", "start_processor_seconds", "start_bytes"),
            map(list, zip(*starts, strict=True)),
            strict=True,
        )
    )
    order = np.random.default_rng(3).integers(len(prepared), size=rounds * 400)
    pickles = LmdbDataset(official)
    found["read_official"] = rates(lambda k: pickles[k % n], 200, rounds)
    found["pickles"] = from_pickles(pickles, 200, rounds)
    found["read"] = rates(lambda k: prepared[int(order[k])], 400, rounds)
    found["neighbours"] = Loading(prepared, whole=False).rates(8, rounds)
    whole = Loading(prepared, whole=True)
    found["whole"] = whole.rates(8, rounds)
    for workers in WORKERS:
        found[f"loader_{workers}"] = whole.loader_rates(workers, 8, rounds)
    found["random_reads"] = [options.reads]
    found["random_bytes"] = [random_access(prepared, options.reads)]
    return found


def _best(values: Sequence[float], digits: int = 0) -> str:
    return f"{max(values):,.{digits}f} ({np.median(values):,.{digits}f})"


def table(found: Measured | None = None) -> str:
    """What was measured, and the target; by default what the page quotes."""
    found = found or {row["quantity"]: results.numbers(row["values"]) for row in results.read(KEPT)}
    records, atoms = found["records"][0], found["mean_n_atoms"][0]
    per_structure = found["bytes"][0] / records
    seconds, processor = min(found["start_seconds"]), min(found["start_processor_seconds"])
    lines = [
        ("prepare from official pickles", _best(found["prepare"]), "≥ 700"),
        ("read a structure: official pickle", _best(found["read_official"]), ""),
        ("read a structure: prepared", _best(found["read"]), ""),
        ("read + neighbours + batch: official pickles", _best(found["pickles"]), ""),
        ("read + neighbours + batch: prepared", _best(found["neighbours"]), "≥ 1,500"),
        ("with noise and all that the model needs: prepared", _best(found["whole"]), "≥ 1,100"),
        (
            "loader with 2 workers over none, by the clock",
            f"{max(found['loader_2']) / (max(found['loader_0']) or 1.0):.2f}",
            "≥ 1.7",
        ),
        (
            f"start of Python to the first step, {records:,.0f} prepared; processor time",
            f"{seconds:.0f} s; {processor:.0f} s",
            "≤ 15 s",
        ),
        ("anonymous memory of our process then", measuring.size(max(found["start_bytes"])), "≤ 1 GiB"),
        (
            "sampler; plan of an epoch",
            f"{found['sampler_seconds'][0]:.1f} s; {found['epoch_seconds'][0]:.1f} s",
            "1 s",
        ),
        (
            f"{found['random_reads'][0]:,.0f} random reads: anonymous memory",
            measuring.size(found["random_bytes"][0]),
            "≤ 10 MB",
        ),
        (
            "on the disk: a structure; an atom",
            f"{per_structure:,.0f}; {per_structure / atoms:.0f} bytes",
            "30 an atom",
        ),
    ]
    return results.markdown(
        ["structures a second and core: best (median) of the rounds; or as said", "", "target"], lines
    )


def main() -> None:
    """Measure, print, and write the CSV."""
    parser = results.parser(__doc__, "the files of structures", kept=KEPT)
    parser.add_argument("--records", type=int, default=460_000, help="structures in the large set, about 1.5 GB")
    parser.add_argument(
        "--prepared", type=int, default=4_000, help="official pickles that are prepared, about 0.5 GB"
    )
    parser.add_argument("--reads", type=int, default=200_000, help="random reads")
    options = parser.parse_args()
    options.rounds = 5
    if options.quick:
        options.records, options.prepared, options.reads, options.rounds = 80, 40, 60, 1
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    found = measure(options)
    print(table(found))
    conditions = {name: getattr(options, name) for name in ("records", "prepared", "reads")}
    rows = [{"quantity": name, "values": values} for name, values in found.items()]
    results.record(options.results, rows, conditions, digits=8)


if __name__ == "__main__":
    main()
