"""Time and peak memory of one attention layer against the number of atoms, for every attention and its peers.

Atoms at 0.1 per Å³ in a periodic cube and as a ball, and a batch of slabs of the size of OC20's. Every point is
measured in a process of its own; what is in FOLDER/attention.csv is not measured again.

    python -m scripts.benchmarks.attention --out docs/benchmarks                  # hours
    python -m scripts.benchmarks.attention --out runs/bench --sizes 64 256 --repeats 3 --mechanisms molflt sdpa+bias
    python -m scripts.benchmarks.attention --out docs/benchmarks --report         # tables and figures from the file

A row of the CSV is one round of a point: kind of structure, atoms, mechanism and direction; how it ended (status,
note); seconds of single calls of the layer, of the preparation, and of what the layer prepares for itself; bytes that
layer, preparation and both together add to the peak; parameters; how the far field was computed; the machine's load
before. docs/benchmarks/README.md says more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from scripts import results
from scripts.benchmarks import layers, measuring, structures
from scripts.benchmarks.attention_report import Point, write_report
from scripts.benchmarks.layer_peers import PEERS
from scripts.benchmarks.layers import ISOLATED_ONLY, MECHANISMS, MolfltLayer, cut, tensors, touch
from scripts.benchmarks.measuring import DONE, FAILED, HOPELESS, duration, run_isolated, size, spread

COLUMNS = (
    "kind", "atoms", "mechanism", "direction", "status", "note",
    "layer_seconds", "prepare_seconds", "own_seconds", "layer_bytes", "prepare_bytes", "total_bytes",
    "parameters", "how", "load_before",
)  # fmt: skip
SIZES = (64, 256, 1024, 1500, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
MILLION = 1_000_000
OC20_ATOMS = 2048
WARM_ATOMS = 64
LEFT_OUT = "left out"


@dataclass(frozen=True, kw_only=True)
class Spec(measuring.Measuring):
    """One point as the process that measures it receives it.

    Attributes:
        mechanism: row of the table.
        kind: of structure.
        structures: file that :func:`save_structures` wrote.
    """

    mechanism: str
    kind: str
    structures: str


def save_structures(kind: str, n: int, path: Path) -> dict[str, Any]:
    """Make the structures of a size with their neighbours within the cutoff, and write them to a file."""
    found = structures.make(kind, n)
    batch = structures.batch_with_neighbours(found, layers.CUTOFF)
    torch.save([dict(data.to_dict()) for data in found], path)
    return {"n_structures": len(found), "atoms": len(batch.positions), "edges": int(batch.edge_index.shape[1])}


def load_batch(path: Path, mechanism: torch.nn.Module, device: torch.device) -> Batch:
    """One batch with the neighbours that a mechanism needs."""
    found = [Data.from_dict(fields) for fields in torch.load(path, weights_only=True)]
    return batch_for(found, mechanism).to(device)


def batch_for(found: list[Data], mechanism: torch.nn.Module) -> Batch:
    """Structures as one batch with the neighbours that a mechanism needs."""
    cutoff = getattr(mechanism, "neighbour_cutoff", 0.0) or layers.CUTOFF
    all_pairs = getattr(mechanism, "all_pairs_if_isolated", False)
    if all_pairs or cutoff > layers.CUTOFF or "edge_index" not in found[0]:
        return structures.batch_with_neighbours(found, cutoff, all_pairs)
    return Batch.from_data_list(found)


def build(name: str) -> torch.nn.Module:
    """The layer called so."""
    return PEERS[name]() if name in PEERS else MolfltLayer(name)


class Calls:
    """The two calls that are measured: preparation, and the layer; with their backward passes when training.

    Args:
        layer: with ``prepare`` and ``forward``.
        batch: what it is applied to.
        train: with backward passes.
    """

    def __init__(self, layer: torch.nn.Module, batch: Batch, train: bool) -> None:
        self.module, self.batch, self.train = layer, batch, train
        device, n = batch.positions.device, len(batch.positions)
        self.x = torch.randn(n, layers.DIM, device=device, requires_grad=train)
        self.output_gradient = torch.randn(n, layers.DIM, device=device)
        self.prepared: Any = None
        self.leaves: list[tuple[Tensor, Tensor]] = []
        self.on_demand: list[layers.Path] = []
        self.first_seconds = 0.0

    def first(self) -> tuple[measuring.Growth, measuring.Growth]:
        """Memory of a first preparation and a first layer, after which all further calls may be timed.

        Some of what layers share is made when the first of them asks for it. That is preparation: from here on
        :meth:`prepare` makes it too, and a layer finds it there.
        """
        device = self.x.device
        start = time.perf_counter()
        preparation = measuring.peak_growth(self.prepare, device)
        self.first_seconds = time.perf_counter() - start
        if hasattr(self.module, "compiled"):
            # Once more for every shape: the compiler's memory is not the layer's.
            self.layer()
        before = tensors(self.prepared)
        one_layer = measuring.peak_growth(self.layer, device)
        self.on_demand = sorted(tensors(self.prepared) - before, key=str)
        if self.on_demand:
            self.prepare()
        return preparation, one_layer

    def prepare(self) -> None:
        """Once for a structure; training, the gradients of what it prepared go back through it."""
        # What an earlier call prepared must not stay while this one does it again.
        self.prepared, self.leaves = None, []
        with torch.set_grad_enabled(self.train):
            prepared = self.module.prepare(self.batch)
            for path in self.on_demand:
                touch(prepared, path)
            self.prepared, self.leaves = cut(prepared)
        originals = [original for original, _ in self.leaves]
        if originals:
            torch.autograd.backward(originals, [torch.ones_like(t) for t in originals])
        # The graph of the preparation goes with its last reference.
        self.leaves = [(leaf, leaf) for _, leaf in self.leaves]

    def layer(self) -> None:
        """Once for every layer and recycle; training, gradients of input, weights and prepared tensors."""
        with torch.set_grad_enabled(self.train):
            out = self.module(self.x, self.prepared)
        if self.train:
            out.backward(self.output_gradient)
            for tensor in (self.x, *self.module.parameters(), *(leaf for _, leaf in self.leaves)):
                tensor.grad = None


def measure(spec: Spec) -> dict[str, Any]:
    """Memory of the first preparation and layer, then seconds of further ones."""
    device, train = spec.start(), spec.direction == "train"
    layer = build(spec.mechanism).to(device)
    # Start up whatever a first call does, on structures too small to count.
    warm = Calls(layer, batch_for(structures.make(spec.kind, WARM_ATOMS), layer).to(device), train)
    warm.first()
    if spec.gibibytes and device.type == "cpu":
        measuring.limit_memory(spec.gibibytes)
    calls = Calls(layer, load_batch(Path(spec.structures), layer, device), train)
    preparation, one_layer = calls.first()
    layer_seconds = measuring.seconds_of(calls.layer, spec.repeats, spec.seconds, device)
    prepare_seconds = [calls.first_seconds]
    if calls.first_seconds < spec.seconds:
        # The bias of many thousand atoms takes minutes: once is enough.
        prepare_seconds = measuring.seconds_of(calls.prepare, min(spec.repeats, 3), spec.seconds / 2, device)
    how, own = "", [0.0]
    if isinstance(layer, MolfltLayer):
        how = layer.how(calls.prepared)
        with torch.no_grad():
            own = measuring.seconds_of(lambda: layer.prepare_own(calls.prepared), 3, spec.seconds / 4, device)
    return {
        "layer_seconds": layer_seconds,
        "prepare_seconds": prepare_seconds,
        "own_seconds": own,
        "layer_bytes": one_layer.peak,
        "prepare_bytes": preparation.peak,
        "total_bytes": max(preparation.peak, preparation.kept + one_layer.peak),
        "parameters": sum(p.numel() for p in layer.parameters()),
        "how": how,
    }


def run(options: argparse.Namespace, store: results.Store, folder: Path) -> None:
    """All points that are not in the results yet, round by round."""
    kinds = [(kind, [options.oc20_atoms] if kind == "oc20" else options.sizes) for kind in options.kinds]
    for number in range(options.rounds):
        for kind, sizes in kinds:
            for n in sizes:
                run_size(options, store, folder / f"{kind}-{n}.pt", number, kind, n)


def run_size(options: argparse.Namespace, store: results.Store, path: Path, number: int, kind: str, n: int) -> None:
    """One round of all mechanisms at one size, one after another: a busy machine hits all alike."""
    command = [sys.executable, "-m", "scripts.benchmarks.attention"]
    for direction, mechanism in product(options.directions, options.mechanisms):
        if (n == MILLION and direction != "forward") or (mechanism in ISOLATED_ONLY and kind != "isolated"):
            continue
        point = Point(kind, n, mechanism, direction)
        known = [row for row in store.rows if Point.of(row) == point]
        if len(known) > number or (known and known[-1]["status"] != DONE):
            continue
        found: dict[str, Any] = {"status": LEFT_OUT, "note": reason_to_leave_out(store.rows, point)}
        if not found["note"]:
            print(f"{kind:9}{n:>8}  {direction:8}{mechanism:26}", end="", flush=True)
            made: dict[str, Any] = {"status": DONE}
            if not path.exists():
                make = [*command, "--make", kind, str(n), str(path)]
                made = run_isolated(make, options.threads, 10 * options.limit)
            if made["status"] == DONE:
                how = measuring.chosen(options, direction)
                spec = asdict(Spec(mechanism=mechanism, kind=kind, structures=str(path), **how))
                found = run_isolated([*command, "--point", json.dumps(spec)], options.threads, options.limit)
            else:
                found = {**made, "note": f"making the structure: {made.get('note', '')}"}
            print(summary(found), flush=True)
        store.add({"kind": kind, "atoms": n, "mechanism": mechanism, "direction": direction, **found})
    # A million atoms with their neighbours are gigabytes.
    path.unlink(missing_ok=True)


def reason_to_leave_out(rows: list[results.Row], point: Point) -> str:
    """Why a point is not tried: fewer atoms did not fit, took too long, or cannot be had."""
    for row in rows:
        other = Point.of(row)
        same = other._replace(size=point.size) == point
        if same and other.size < point.size and row["status"] in HOPELESS:
            return f"{row['status']} at {other.size} atoms"
    return ""


def summary(found: dict[str, Any]) -> str:
    """One line on a point."""
    if found["status"] != DONE:
        return f"{found['status']}: {found.get('note', '')}"
    middle = spread(found["layer_seconds"])
    return (
        f"{duration(middle['median']):>9} ({duration(middle['q1'])} to {duration(middle['q3'])}), "
        f"prepared in {duration(spread(found['prepare_seconds'])['median'])}, peak {size(found['total_bytes'])}  "
        f"{found['how']}"
    )


def default_memory() -> float:
    """GiB: what is available now, less a tenth."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return round(0.9 * available / 2**20, 1)


def main() -> None:
    """Measure, then report."""
    parser = results.parser(__doc__, "attention.csv, attention.md and figures", required=False)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="atoms, increasing")
    parser.add_argument("--oc20-atoms", type=int, default=OC20_ATOMS, help="atoms in the batch of slabs")
    parser.add_argument("--million", action="store_true", help="a million atoms as well, forward only")
    parser.add_argument("--kinds", nargs="+", choices=structures.KINDS, default=["oc20", "periodic", "isolated"])
    parser.add_argument("--mechanisms", nargs="+", choices=[*MECHANISMS, *PEERS], default=[*MECHANISMS, *PEERS])
    measuring.add_options(parser, repeats=15, seconds=8.0)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        measuring.answer(lambda: measure(Spec(**json.loads(options.point))))
        return
    if options.make:
        kind, n, path = options.make
        measuring.answer(lambda: save_structures(kind, int(n), Path(path)))
        return
    if options.out is None:
        parser.error("--out is needed")
    options.memory = default_memory() if options.memory is None else options.memory
    if options.million and MILLION not in options.sizes:
        options.sizes.append(MILLION)
    store = results.Store(options.out / "attention.csv", COLUMNS, None if options.report else conditions(options))
    if not options.report:
        if options.again:
            store.forget([*HOPELESS, FAILED, LEFT_OUT])
        with tempfile.TemporaryDirectory(prefix="bench-attention-") as folder:
            run(options, store, Path(folder))
    print(write_report(store.rows, options.out))


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """What all points of a file share; a file of other conditions is refused."""
    return {
        "dim": layers.DIM,
        "heads": layers.HEADS,
        "n_features": layers.N_FEATURES,
        "n_frequencies": layers.N_FREQUENCIES,
        "n_basis": layers.N_BASIS,
        "cutoff": layers.CUTOFF,
        "n_rbf": layers.N_RBF,
        "density": structures.DENSITY,
        "threads": options.threads,
        "device": options.device,
        "dtype": "float32",
    }


if __name__ == "__main__":
    main()
