"""How fast structures of OC20's size are read, given neighbour lists and batched, and what that takes of memory.

Slabs of fcc metals with an adsorbate, 20 to 224 atoms, about 75 on average (OC20: 20 to 250, 78), periodic, with 6 Å
neighbour lists. Measured:

* reading single records in random order, from a file made by ``molflt`` and from pickles as OC20 has them;
* a DataLoader under the atom budget of preset ``base``, without and with worker processes, against the rate at which
  that preset consumes structures in training (forward, backward, optimiser step) on two threads;
* anonymous memory while records are read in random order from the whole file.

The file stays in FOLDER and is used again. Prints a table; with --out, writes loader.json and loader.md there.

    python scripts/bench_loader.py --records 2000 --folder /tmp
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oc20_size_records import CUTOFF, official_pickle, records
from torch.utils.data import DataLoader

from molflt import __version__
from molflt.data.batching import AtomBudgetSampler, StructureCollater, collate
from molflt.data.lmdb_dataset import LmdbDataset
from molflt.data.lmdb_writer import write_lmdb
from molflt.data.neighbours import attach_neighbours
from molflt.data.progress import track
from molflt.data.records import RECORD_KEYS, to_data
from molflt.data.safe_pickle import load_record
from molflt.files import atomic_file
from molflt.model.energy_model import EnergyModel
from molflt.training.presets import preset_config

WORKERS = (0, 2)
BUDGET = preset_config("base").data.max_atoms


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
    structures: Any = dataset
    loader = DataLoader[Any](
        structures, batch_sampler=chosen, collate_fn=StructureCollater(CUTOFF), num_workers=workers
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
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    anonymous, file = (int(status[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile"))
    return anonymous, file


class Memory:
    """Time and resident memory of a long loop, sampled about fifty times."""

    def __init__(self, total: int) -> None:
        self.every, self.start = max(1, total // 50), time.perf_counter()
        self.samples: list[tuple[int, int, int]] = []

    def look(self, done: int) -> None:
        """Take a sample if it is time for one."""
        if done % self.every == 0:
            self.samples.append((done, *resident()))

    def summary(self) -> dict[str, Any]:
        """First and last sample, and the slope of anonymous memory, bytes an item; the first tenth warms up."""
        settled = np.array(self.samples[len(self.samples) // 10 :], dtype=np.float64)
        slope = np.polyfit(settled[:, 0], settled[:, 1], 1)[0] if len(settled) > 1 else 0.0
        return {
            "seconds": time.perf_counter() - self.start,
            "items": self.samples[-1][0],
            "anonymous_first": int(settled[0, 1]),
            "anonymous_last": int(settled[-1, 1]),
            "file_backed_last": int(settled[-1, 2]),
            "anonymous_slope": float(slope),
            "samples": self.samples,
        }


def write_file(path: Path, n: int) -> dict[str, Any]:
    """Make the file, or use it again; how long making it took and what memory, kept next to it."""
    kept = path.with_suffix(".writing.json")
    if path.exists():
        return dict(json.loads(kept.read_text()))
    seen = Memory(n)

    def watched() -> Iterator[dict[str, Any]]:
        for k, record in enumerate(records(n), start=1):
            yield record
            seen.look(k)

    write_lmdb(path, watched(), total=n, source=f"bench_loader {n}", progress=True)
    kept.write_text(json.dumps(seen.summary()))
    return dict(json.loads(kept.read_text()))


def random_access(dataset: LmdbDataset, reads: int) -> dict[str, Any]:
    """Time and memory of reads in random order from the whole file."""
    random = np.random.default_rng(2)
    seen = Memory(reads)
    for k in track(range(1, reads + 1), "random access", total=reads, enabled=True):
        dataset[int(random.integers(len(dataset)))]
        seen.look(k)
    return seen.summary()


def sizes(dataset: LmdbDataset) -> dict[str, Any]:
    """The pass over all records that batching needs, and the making of a sampler; seconds and bytes."""
    before, start = resident()[0], time.perf_counter()
    n_atoms = dataset.n_atoms
    read = time.perf_counter() - start
    start = time.perf_counter()
    for shuffle in (True, False):
        len(AtomBudgetSampler(n_atoms, BUDGET, shuffle=shuffle, seed=0))
    return {
        "seconds": read,
        "samplers_seconds": time.perf_counter() - start,
        "anonymous_growth": resident()[0] - before,
        "mean_n_atoms": float(n_atoms.mean()),
        "n_atoms": [int(n) for n in np.percentile(n_atoms, [0, 50, 100])],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, by name; rates are in structures per second, one number a round."""
    path = options.folder / f"bench_loader_{options.records}.lmdb"
    writing = write_file(path, options.records)
    # the sizes are read anew, not taken from the file that keeps them
    path.with_name(path.name + ".natoms.npz").unlink(missing_ok=True)
    dataset = LmdbDataset(path)
    found: dict[str, Any] = {"records": len(dataset), "file_bytes": path.stat().st_size, "writing": writing}
    found["sizes"] = sizes(dataset)
    found["random_access"] = random_access(dataset, options.reads)
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
    consumed = float(np.median(found["training_base"]))
    found["ratio"] = {str(w): float(np.median(found[f"batches_{w}_workers"])) / consumed for w in WORKERS}
    return found


def _spread(values: list[float]) -> str:
    low, middle, high = np.percentile(values, [25, 50, 75])
    digits = 0 if middle >= 100 else 2
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.0f} MB"


def _course(seen: dict[str, Any], item: str) -> str:
    first, last = _megabytes(seen["anonymous_first"]), _megabytes(seen["anonymous_last"])
    return (
        f"{seen['seconds']:.0f} s; anonymous memory {first} to {last}, {seen['anonymous_slope']:.2g} bytes a {item}; "
        f"file-backed at the end {_megabytes(seen['file_backed_last'])}"
    )


def _worst_ratio(found: dict[str, Any]) -> float:
    return float(min(min(found[f"batches_{w}_workers"]) for w in WORKERS) / max(found["training_base"]))


def table(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What was measured, and the number, as text."""
    sized, access = found["sizes"], found["random_access"]
    smallest, median, largest = sized["n_atoms"]
    return [
        ("records in the file", f"{found['records']:,} ({_megabytes(found['file_bytes'])})"),
        ("atoms", f"{smallest} to {largest}, median {median}, mean {sized['mean_n_atoms']:.0f}"),
        ("plain read, random order, structures/s of processor time", _spread(found["read"])),
        ("record as OC20 has it, with its graph: the same", _spread(found["read_official"])),
        ("record as OC20 has it: number of atoms and label only", _spread(found["decode_official"])),
        *(
            (f"read, neighbours, batch; {w} workers, structures/s", _spread(found[f"batches_{w}_workers"]))
            for w in WORKERS
        ),
        ("training of `base`, two threads, structures/s", _spread(found["training_base"])),
        *((f"loader to training, {w} workers", f"{found['ratio'][str(w)]:.0f} times") for w in WORKERS),
        ("slowest round of any loader to fastest training step", f"{_worst_ratio(found):.0f} times"),
        ("writing the file", _course(found["writing"], "record")),
        ("sizes of all records", f"{sized['seconds']:.1f} s; {_megabytes(sized['anonymous_growth'])} with samplers"),
        ("two samplers for all records", f"{sized['samplers_seconds']:.1f} s"),
        (f"{access['items']:,} random reads", _course(access, "read")),
    ]


def page(report: dict[str, Any]) -> str:
    """The table as Markdown, with machine, versions and command."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in table(report["measured"]))
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return f"""# The loader

Does data keep up with the model? Slabs of fcc metals with an adsorbate, of OC20's sizes, periodic, with 6 Å neighbour
lists, batched under the budget of preset `base` ({BUDGET} atoms). `base` trains on batches of {report["train_atoms"]}
atoms: forward, backward and optimiser step. Rates are medians over rounds, with quartiles; single reads are counted
by processor time, everything else by the clock. Anonymous memory is what the process cannot give back; file-backed
pages are LMDB's map, which the system drops when it needs the room.

| measured | |
|---|---|
{rows}

Machine: {report["machine"]}; {versions}.
Every round and sample: [loader.json](loader.json).

    {report["command"]}
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000, help="structures in the file; 500,000 take about 4 GB")
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the file is made")
    parser.add_argument("--reads", type=int, default=2000, help="random reads along which memory is watched")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8, help="training steps of base")
    parser.add_argument("--train-atoms", type=int, default=2048, help="atoms in a training batch")
    parser.add_argument("--machine", default=platform.machine(), help="what to call this machine in the report")
    parser.add_argument("--out", type=Path, help="folder for loader.json and loader.md")
    options = parser.parse_args()
    if min(options.records, options.reads, options.rounds, options.steps, options.train_atoms) < 1:
        parser.error("the numbers must be positive")
    report = {
        "machine": options.machine,
        "versions": {"molflt": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "command": f"python scripts/bench_loader.py --records {options.records} --reads {options.reads}",
        "train_atoms": options.train_atoms,
        "measured": measure(options),
    }
    for name, value in table(report["measured"]):
        print(f"{name:<60} {value}")
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    with atomic_file(options.out / "loader.json") as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    with atomic_file(options.out / "loader.md") as temporary:
        temporary.write_text(page(report), encoding="utf-8")


if __name__ == "__main__":
    main()
