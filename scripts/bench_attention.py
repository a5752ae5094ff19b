"""Time and peak memory of one attention layer against the number of atoms, for every attention and its peers.

Atoms at 0.1 per Å³ in a periodic cube and as a ball, and a batch of slabs of the size of OC20's. Every point is
measured in a process of its own; what is done already is kept in FOLDER/attention.json and not done again.

    python scripts/bench_attention.py --out docs/benchmarks                      # hours
    python scripts/bench_attention.py --out runs/bench --sizes 64 256 --repeats 3 --mechanisms molflt sdpa+bias
    python scripts/bench_attention.py --out docs/benchmarks --report             # tables and figures from the file

What the numbers mean: docs/benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks import layers, measuring, structures
from benchmarks.isolated import TOO_SLOW, run_isolated
from benchmarks.layers import ISOLATED_ONLY, MECHANISMS, MolfltLayer, cut, tensors, touch
from benchmarks.measuring import DOES_NOT_FIT, DONE, FAILED, UNAVAILABLE
from benchmarks.peers import PEERS
from benchmarks.report_attention import Point, write_report
from benchmarks.results import Results, duration, size, spread
from torch import Tensor
from torch_geometric.data import Batch, Data

SIZES = (64, 256, 1024, 1500, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
MILLION = 1_000_000
OC20_ATOMS = 2048
DIRECTIONS = ("forward", "train")
WARM_ATOMS = 64
LEFT_OUT = "left out"


@dataclass(frozen=True)
class Spec:
    """One point as the process that measures it receives it.

    Attributes:
        mechanism: row of the table.
        kind: of structure.
        direction: forward, or train: forward and backward.
        structures: file that :func:`save_structures` wrote.
        repeats: calls to time.
        seconds: after which no further call is started.
        gibibytes: memory that the measurement may take; 0 for no limit.
        threads: of PyTorch.
        device: cpu or cuda.
    """

    mechanism: str
    kind: str
    direction: str
    structures: str
    repeats: int
    seconds: float
    gibibytes: float
    threads: int
    device: str


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
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    device = torch.device(spec.device)
    train = spec.direction == "train"
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


def run(options: argparse.Namespace, results: Results, folder: Path) -> None:
    """All points that are not in the results yet, round by round."""
    kinds: list[tuple[str, list[int]]] = [
        (kind, [options.oc20_atoms] if kind == "oc20" else options.sizes) for kind in options.kinds
    ]
    for number in range(options.rounds):
        for kind, sizes in kinds:
            for n in sizes:
                run_size(options, results, folder, number, kind, n)


def run_size(options: argparse.Namespace, results: Results, folder: Path, number: int, kind: str, n: int) -> None:
    """One round of all mechanisms at one size, one after another: a busy machine hits all alike."""
    path = folder / f"{kind}-{n}.pt"
    for direction in options.directions:
        if n == MILLION and direction != "forward":
            continue
        for mechanism in options.mechanisms:
            point = Point(kind, n, mechanism, direction)
            known = results.rounds(point.name)
            if mechanism in ISOLATED_ONLY and kind != "isolated":
                continue
            if len(known) > number or (known and known[-1]["status"] != DONE):
                continue
            smaller = reason_to_leave_out(results, point)
            if smaller:
                results.add(point.name, {"status": LEFT_OUT, "note": smaller})
                continue
            print(f"{kind:9}{n:>8}  {direction:8}{mechanism:26}", end="", flush=True)
            if not path.exists():
                command = [sys.executable, __file__, "--make", kind, str(n), str(path)]
                made = run_isolated(command, options.threads, 10 * options.limit)
                if made["status"] != DONE:
                    print("no structure:", made.get("note", ""), flush=True)
                    results.add(point.name, {**made, "note": f"making the structure: {made.get('note', '')}"})
                    continue
                results.content.setdefault("structures", {})[f"{kind}|{n}"] = made
            spec = Spec(
                mechanism,
                kind,
                direction,
                str(path),
                options.repeats,
                options.seconds,
                options.memory,
                options.threads,
                options.device,
            )
            found = run_isolated(
                [sys.executable, __file__, "--point", json.dumps(asdict(spec))], options.threads, options.limit
            )
            results.add(point.name, found)
            print(summary(found), flush=True)
    # A million atoms with their neighbours are gigabytes.
    path.unlink(missing_ok=True)


def reason_to_leave_out(results: Results, point: Point) -> str:
    """Why a point is not tried: fewer atoms did not fit, took too long, or cannot be had."""
    for name, rounds in results.content["points"].items():
        other = Point.of(name)
        same = (other.kind, other.mechanism, other.direction) == (point.kind, point.mechanism, point.direction)
        last = rounds[-1]
        if same and other.size < point.size and last["status"] in (DOES_NOT_FIT, TOO_SLOW, UNAVAILABLE):
            return f"{last['status']} at {other.size} atoms"
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
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return round(0.9 * available / 2**20, 1)


def arguments() -> argparse.ArgumentParser:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for attention.json, attention.md and figures")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="atoms, increasing")
    parser.add_argument("--oc20-atoms", type=int, default=OC20_ATOMS, help="atoms in the batch of slabs")
    parser.add_argument("--million", action="store_true", help="a million atoms as well, forward only")
    parser.add_argument("--kinds", nargs="+", choices=structures.KINDS, default=["oc20", "periodic", "isolated"])
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--mechanisms", nargs="+", choices=[*MECHANISMS, *PEERS], default=[*MECHANISMS, *PEERS])
    parser.add_argument("--repeats", type=int, default=15, help="timed calls of a point in a round")
    parser.add_argument("--seconds", type=float, default=8.0, help="no further call of a point after so long")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a point may take in all")
    parser.add_argument("--memory", type=float, help="GiB a point may take; default: 90 per cent of what is free")
    parser.add_argument("--rounds", type=int, default=1, help="how often all is measured, one round after another")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--again", action="store_true", help="try points again that failed or did not fit")
    parser.add_argument("--report", action="store_true", help="only tables and figures, from what was measured")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Measure, then report."""
    parser = arguments()
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
    path = options.out / "attention.json"
    if options.report:
        print(write_report(Results(path, {}), options.out))
        return
    options.memory = default_memory() if options.memory is None else options.memory
    if options.million and MILLION not in options.sizes:
        options.sizes.append(MILLION)
    results = Results(path, conditions(options))
    if options.again:
        results.forget([DOES_NOT_FIT, TOO_SLOW, FAILED, UNAVAILABLE, LEFT_OUT])
    with tempfile.TemporaryDirectory(prefix="bench-attention-") as folder:
        run(options, results, Path(folder))
    print(write_report(results, options.out))


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
