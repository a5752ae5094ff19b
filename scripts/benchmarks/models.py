"""Structures per second and peak memory of whole models, molflt's and others', on the same batches.

Two sets: slabs of the size of OC20's, on which every model has its published size, and the bundled training data, on
which DimeNet++, PaiNN and SchNet have as many parameters as molflt's ``small``. Every model is measured in a process
of its own; what is in FOLDER/model.csv is not measured again.

    scripts/benchmarks/peers_environment.sh                             # .venv-peers: SchNetPack and mace-torch
    python -m scripts.benchmarks.models --out docs/benchmarks --peers-python .venv-peers/bin/python
    python -m scripts.benchmarks.models --out docs/benchmarks --report         # tables and figure from the file

A row of the CSV is one round of a model in one direction: how it ended (status, note); seconds of single calls; bytes
added to the peak; parameters; the batch (structures, atoms of the smallest and of the largest, of all, edges); sizes
of the model; the machine's load before. docs/benchmarks/README.md says more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from scripts import results
from scripts.benchmarks import measuring, structures
from scripts.benchmarks.graph_models import MolfltEnergy, model_config
from scripts.benchmarks.measuring import DONE, FAILED, HOPELESS, UNAVAILABLE, duration, run_isolated, size, spread
from scripts.benchmarks.model_worker import Spec, n_parameters
from scripts.benchmarks.models_report import write_report
from scripts.benchmarks.plain import PlainBatch

COLUMNS = (
    "set", "model", "direction", "status", "note", "seconds", "bytes", "parameters",
    "structures", "smallest", "largest", "atoms", "edges", "sizes", "load_before",
)  # fmt: skip
SETS = ("oc20", "bundled")
PEERS_FAMILIES = ("painn", "mace")


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        name: in the tables.
        family: see :class:`Spec`.
        sizes: keyword arguments.
        cutoff: Å, of the neighbour list.
        most: neighbours of an atom that are kept, the nearest; None for all.
        all_pairs: whether isolated structures need every pair.
        match: whether the width follows from the parameters of ``small``.
    """

    name: str
    family: str
    sizes: dict[str, Any] = field(default_factory=dict)
    cutoff: float = 6.0
    most: int | None = None
    all_pairs: bool = False
    match: bool = False


def ours(preset: str, attention: str) -> Row:
    """A preset of molflt."""
    config = model_config(preset, attention)
    name = f"molflt {preset}" if attention == "flt" else f"molflt {preset}, {attention}"
    sizes = {"preset": preset, "attention": attention}
    return Row(name, "molflt", sizes, config.neighbour_cutoff, all_pairs=config.all_pairs_if_isolated)


def published() -> list[Row]:
    """Presets of molflt, and peers at the sizes that fairchem's and MACE's configurations give."""
    dimenet = {"num_blocks": 3, "int_emb_size": 64, "basis_emb_size": 8, "num_spherical": 7, "num_radial": 6}
    schnet_is2re = {"hidden_channels": 384, "num_filters": 128, "num_interactions": 4, "num_gaussians": 100}
    schnet_s2ef = {"hidden_channels": 1024, "num_filters": 256, "num_interactions": 5, "num_gaussians": 200}
    # OC20's graphs keep the 50 nearest neighbours of an atom within the cutoff.
    return [
        *(ours(preset, name) for preset in ("tiny", "small", "base") for name in ("flt", "softmax")),
        Row("SchNet, OC20 IS2RE", "schnet", {**schnet_is2re, "cutoff": 6.0}, most=50),
        Row("SchNet, OC20 S2EF", "schnet", {**schnet_s2ef, "cutoff": 6.0}, most=50),
        Row(
            "DimeNet++, OC20 IS2RE",
            "dimenet++",
            {**dimenet, "hidden_channels": 256, "out_emb_channels": 192, "cutoff": 6.0},
            most=50,
        ),
        Row("PaiNN, default", "painn", {"n_atom_basis": 128, "n_interactions": 3, "n_rbf": 20, "cutoff": 5.0}, 5.0),
        Row(
            "PaiNN, OC20 IS2RE",
            "painn",
            {"n_atom_basis": 1024, "n_interactions": 6, "n_rbf": 128, "cutoff": 12.0},
            cutoff=12.0,
            most=50,
        ),
        Row("MACE-MP small", "mace", {"channels": 128, "max_l": 0, "num_bessel": 10, "cutoff": 6.0}),
        Row("MACE-MP medium", "mace", {"channels": 128, "max_l": 1, "num_bessel": 10, "cutoff": 6.0}),
    ]


def matched() -> list[Row]:
    """``small``, and peers with its cutoff and its number of parameters."""
    cutoff = model_config("small", "flt").cutoff
    dimenet = {"num_blocks": 3, "basis_emb_size": 8, "num_spherical": 7, "num_radial": 6, "cutoff": cutoff}
    schnet = {"num_interactions": 4, "num_gaussians": 100, "cutoff": cutoff}
    return [
        *(ours("small", name) for name in ("flt", "softmax")),
        Row("DimeNet++, parameters of small", "dimenet++", dimenet, cutoff, match=True),
        Row(
            "PaiNN, parameters of small",
            "painn",
            {"n_interactions": 3, "n_rbf": 20, "cutoff": cutoff},
            cutoff,
            match=True,
        ),
        Row("SchNet, parameters of small", "schnet", schnet, cutoff, match=True),
    ]


def rows(name: str) -> list[Row]:
    """The models of a set."""
    return published() if name == "oc20" else matched()


def plain_batch(found: list[Data], cutoff: float, most: int | None, all_pairs: bool) -> PlainBatch:
    """Structures as one batch with a neighbour list."""
    batch = structures.batch_with_neighbours([data.clone() for data in found], cutoff, all_pairs)
    batch = structures.nearest_only(batch, most)
    n_structures = len(batch.cell)
    target = batch.y_relaxed if "y_relaxed" in batch else torch.randn(n_structures)
    relaxed = batch.positions_relaxed if "positions_relaxed" in batch else batch.positions
    return PlainBatch(
        positions=batch.positions,
        atomic_numbers=batch.atomic_numbers,
        batch=batch.batch,
        cell=batch.cell,
        pbc=batch.pbc,
        tags=batch.tags,
        edge_index=batch.edge_index,
        cell_offsets=batch.cell_offsets,
        edge_vectors=structures.edge_vectors(batch),
        target=target.float(),
        displacement=(relaxed - batch.positions).float(),
    )


def batch_files(folder: Path, of: str, found: list[Data], row: Row) -> tuple[Path, Path]:
    """Files of the batch and of a small one, made once for rows that take the same neighbours."""
    paths = []
    for part, chosen in (("batch", found), ("warm", found[:1])):
        path = folder / f"{of}-{part}-{row.cutoff:g}-{row.most}-{row.all_pairs}.pt"
        if not path.exists():
            plain_batch(chosen, row.cutoff, row.most, row.all_pairs).save(path)
        paths.append(path)
    return paths[0], paths[1]


def interpreter(options: argparse.Namespace, family: str) -> str | None:
    """The Python that has what a model needs; None when there is none."""
    if family not in PEERS_FAMILIES:
        return sys.executable
    return options.peers_python if options.peers_python and Path(options.peers_python).exists() else None


def run(options: argparse.Namespace, store: results.Store, folder: Path) -> None:
    """All points that are not in the results yet, round by round."""
    torch.manual_seed(0)
    target, peers = n_parameters(MolfltEnergy("small")), peer_versions(options.peers_python)
    for of in options.sets:
        found = structures.slabs(options.atoms) if of == "oc20" else structures.bundled(options.atoms)
        sizes = [len(data.positions) for data in found]
        print(f"{of}: {len(sizes)} structures of {min(sizes)} to {max(sizes)} atoms, {sum(sizes)} in all", flush=True)
        wanted = [
            row
            for row in rows(of)
            if not options.models or any(part.lower() in row.name.lower() for part in options.models)
        ]
        for number, direction, row in product(range(options.rounds), options.directions, wanted):
            point = {"set": of, "model": row.name, "direction": direction}
            known = [one for one in store.rows if point.items() <= one.items()]
            if len(known) > number or (known and known[-1]["status"] != DONE):
                continue
            print(f"{of:8} {direction:8} {row.name:32}", end="", flush=True)
            result = measure(options, row, direction, batch_files(folder, of, found, row), target)
            elsewhere = {"software": peers} if row.family in PEERS_FAMILIES and peers else {}
            store.add({**point, "smallest": min(sizes), "largest": max(sizes), **result}, **elsewhere)
            print(summary(result), flush=True)


def measure(
    options: argparse.Namespace, row: Row, direction: str, files: tuple[Path, Path], target: int
) -> dict[str, Any]:
    """One model in one direction."""
    python = interpreter(options, row.family)
    if python is None:
        note = "needs --peers-python, made by scripts/benchmarks/peers_environment.sh"
        return {"status": UNAVAILABLE, "note": note}
    spec = Spec(
        family=row.family,
        sizes=row.sizes,
        match=target if row.match else None,
        batch=str(files[0]),
        warm=str(files[1]),
        **measuring.chosen(options, direction),
    )
    command = [python, "-m", "scripts.benchmarks.model_worker", json.dumps(asdict(spec))]
    return run_isolated(command, options.threads, options.limit)


def summary(found: dict[str, Any]) -> str:
    """One line on a point."""
    if found["status"] != DONE:
        return f"{found['status']}: {found.get('note', '')}"
    s = spread(found["seconds"])
    rate = found["structures"] / s["median"]
    return f"{duration(s['median']):>9}, {rate:.3g} structures/s, {size(found['bytes'])}, {found['parameters']:,}"


def peer_versions(python: str | None) -> str:
    """Names and versions of the packages in the peers' environment; empty where there is none."""
    if python is None or not Path(python).exists():
        return ""
    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        "for name in ('schnetpack', 'mace-torch', 'e3nn', 'torch', 'numpy'):\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass"
    )
    return ", ".join(subprocess.check_output([python, "-c", code], text=True).splitlines())


def main() -> None:
    """Measure, then report."""
    parser = results.parser(__doc__, "model.csv, model.md and model.png")
    parser.add_argument("--peers-python", help="the interpreter that has SchNetPack and mace-torch")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", help="only those whose name has one of these in it")
    parser.add_argument("--atoms", type=int, default=768, help="atoms in a batch; 768 is what small trains with")
    measuring.add_options(parser, repeats=10, seconds=30.0)
    options = parser.parse_args()
    conditions = {"atoms": options.atoms, "threads": options.threads, "device": options.device, "dtype": "float32"}
    store = results.Store(options.out / "model.csv", COLUMNS, None if options.report else conditions)
    if not options.report:
        if options.again:
            store.forget([*HOPELESS, FAILED])
        with tempfile.TemporaryDirectory(prefix="bench-model-") as folder:
            run(options, store, Path(folder))
    print(write_report(store.rows, options.out))


if __name__ == "__main__":
    main()
