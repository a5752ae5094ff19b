"""The whole models of ``speed.py``: ``small`` and its peers, each in a process of its own, on the same batch."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from scripts.benchmarks import structures
from scripts.benchmarks.graph_models import MolfltEnergy, model_config
from scripts.benchmarks.measuring import UNAVAILABLE, run_isolated
from scripts.benchmarks.model_worker import Spec, n_parameters, with_width
from scripts.benchmarks.plain import FIELDS, PlainBatch, edge_vectors


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        name: in the tables.
        family: see :class:`Spec`.
        sizes: keyword arguments.
        cutoff: Å, of the neighbour list.
        all_pairs: whether isolated structures need every pair.
        match: number of parameters that the width follows from; None for the width of ``sizes``.
    """

    name: str
    family: str
    sizes: dict[str, Any]
    cutoff: float
    all_pairs: bool = False
    match: int | None = None


def rows() -> list[Row]:
    """``small``, then peers with its cutoff: as wide as it is, and with as many parameters."""
    small = model_config("small", "flt")
    cutoff, reach = small.cutoff, small.neighbour_cutoff
    preset = {"preset": "small", "attention": "flt"}
    ours = Row("molflt small", "molflt", preset, reach, all_pairs=small.all_pairs_if_isolated)
    peers = {
        "DimeNet++": {"num_blocks": 3, "basis_emb_size": 8, "num_spherical": 7, "num_radial": 6},
        "PaiNN": {"n_interactions": 3, "n_rbf": 20},
        "SchNet": {"num_interactions": 4, "num_gaussians": 100},
    }
    wide = [
        Row(name, name.lower(), with_width(name.lower(), {**sizes, "cutoff": cutoff}, small.dim), cutoff)
        for name, sizes in peers.items()
    ]
    n = n_parameters(MolfltEnergy("small"))
    return [ours, *wide, *(replace(row, name=f"{row.name}, parameters of small", match=n) for row in wide)]


def plain_batch(found: list[Data], cutoff: float, all_pairs: bool) -> PlainBatch:
    """Structures as one batch with a neighbour list."""
    batch = structures.batch_with_neighbours([data.clone() for data in found], cutoff, all_pairs)
    target = batch.y_relaxed if "y_relaxed" in batch else torch.randn(len(batch.cell))
    relaxed = batch.positions_relaxed if "positions_relaxed" in batch else batch.positions
    return PlainBatch(
        **{name: batch[name] for name in FIELDS},
        edge_vectors=edge_vectors(batch.positions, batch.batch, batch.cell, batch.edge_index, batch.cell_offsets),
        target=target.float(),
        displacement=(relaxed - batch.positions).float(),
    )


def batch_files(folder: Path, found: list[Data], row: Row) -> tuple[Path, Path]:
    """Files of the batch and of a small one, made once for rows that take the same neighbours."""
    paths = []
    for part, chosen in (("batch", found), ("warm", found[:1])):
        path = folder / f"{part}-{row.cutoff:g}-{row.all_pairs}.pt"
        if not path.exists():
            plain_batch(chosen, row.cutoff, row.all_pairs).save(path)
        paths.append(path)
    return paths[0], paths[1]


def interpreter(options: argparse.Namespace, family: str) -> str | None:
    """The Python that has what a model needs; None when there is none."""
    if family != "painn":
        return sys.executable
    return options.peers_python if options.peers_python and Path(options.peers_python).exists() else None


def measure(options: argparse.Namespace, row: Row, files: tuple[Path, Path]) -> dict[str, Any]:
    """A training step of one model."""
    python = interpreter(options, row.family)
    if python is None:
        note = "needs --peers-python, made by scripts/benchmarks/peers_environment.sh"
        return {"status": UNAVAILABLE, "note": note}
    spec = Spec(
        family=row.family,
        sizes=row.sizes,
        match=row.match,
        batch=str(files[0]),
        warm=str(files[1]),
        direction="train",
        repeats=options.repeats,
        seconds=options.seconds,
        gibibytes=options.memory,
        threads=options.threads,
        device=options.device,
    )
    command = [python, "-m", "scripts.benchmarks.model_worker", json.dumps(asdict(spec))]
    return run_isolated(command, options.threads, options.limit)


def peer_versions(python: str | None) -> str:
    """Names and versions of the packages in the peers' environment; empty where there is none."""
    if python is None or not Path(python).exists():
        return ""
    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        "for name in ('schnetpack', 'torch', 'numpy'):\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass"
    )
    return ", ".join(subprocess.check_output([python, "-c", code], text=True).splitlines())
