"""The peers of the accuracy benchmark: SchNet, DimeNet++ and PaiNN, each with the settings its authors recommend."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from molflt.data.labels import LabelSpec
from molflt.data.neighbours import attach_neighbours
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.files import atomic_file, resolve_path
from molflt.model.standardiser import Statistics, fit_statistics
from molflt.vocabulary import MAX_ATOMIC_NUMBER
from scripts.benchmarks.accuracy_data import Split
from scripts.benchmarks.measuring import run_isolated
from scripts.benchmarks.peer_worker import PeerSpec
from scripts.benchmarks.plain import PlainSet


@dataclass(frozen=True)
class Peer:
    """One of them.

    Attributes:
        family: see :class:`peer_worker.PeerSpec`.
        sizes: keyword arguments of its constructor, cutoff left out.
        cutoff: Å, in molecules and in crystals.
        lr: peak learning rate.
        elsewhere: whether it needs the environment of the peers.
    """

    family: str
    sizes: dict[str, Any]
    cutoff: tuple[float, float]
    lr: float
    elsewhere: bool = False


PEERS = {
    "SchNet": Peer(
        "schnet",
        {"hidden_channels": 128, "num_filters": 128, "num_interactions": 6, "num_gaussians": 50},
        (10.0, 6.0),
        5e-4,
    ),
    "DimeNet++": Peer(
        "dimenet++",
        {
            "hidden_channels": 128,
            "num_blocks": 4,
            "int_emb_size": 64,
            "basis_emb_size": 8,
            "out_emb_channels": 256,
            "num_spherical": 7,
            "num_radial": 6,
        },
        (5.0, 5.0),
        1e-3,
    ),
    "PaiNN": Peer("painn", {"n_atom_basis": 128, "n_interactions": 3, "n_rbf": 20}, (5.0, 5.0), 5e-4, elsewhere=True),
}
"""Sizes and rates: torch_geometric's and SchNetPack's defaults and examples."""

BATCH = 32


def train_peer(
    name: str,
    split: Split,
    molecules: bool,
    seconds: float,
    seed: int,
    threads: int,
    folder: Path,
    python: str | None,
) -> dict[str, Any]:
    """Train a peer for some seconds of processor time, in a process of its own.

    ``molecules`` says which of its cutoffs to take; ``folder`` is for the data in the form that it reads; ``python``
    is the interpreter of the peers' environment, for those that need it.

    Returns:
        What :func:`peer_worker.train` found; where there is nothing, why.
    """
    peer = PEERS[name]
    if peer.elsewhere and python is None:
        return {"status": "not available", "note": "needs --peers-python (scripts/benchmarks/peers_environment.sh)"}
    cutoff = peer.cutoff[0 if molecules else 1]
    with FileLock(folder / "claimed"):
        train, test = plain_files(split, cutoff, folder)
    sizes, device = {**peer.sizes, "cutoff": cutoff}, "cuda" if torch.cuda.is_available() else "cpu"
    spec = PeerSpec(peer.family, sizes, train, test, seconds, peer.lr, BATCH, seed, threads, device)
    interpreter = python if peer.elsewhere and python else sys.executable
    command = [interpreter, "-m", "scripts.benchmarks.peer_worker", json.dumps(asdict(spec))]
    return run_isolated(command, threads, 4 * seconds + 600)


def plain_files(split: Split, cutoff: float, folder: Path) -> tuple[str, dict[str, str]]:
    """Files of :class:`PlainSet` for the training set and those held out, made if they are not there."""
    sources = {"train": split.train, **split.held_out}
    paths = {
        name: folder / f"{Path(source.replace(':', '-')).stem}-{name}-{cutoff:g}.pt"
        for name, source in sources.items()
    }
    held_out = {name: str(paths[name]) for name in split.held_out}
    if all(path.exists() for path in paths.values()):
        return str(paths["train"]), held_out
    statistics: Statistics | None = None
    for name, source in sources.items():
        read = open_dataset(resolve_path(source), ReadOptions(labels=LabelSpec(target=split.target)))
        structures = [attach_neighbours(read[i], cutoff) for i in range(len(read))]
        composition = torch.stack(
            [torch.bincount(data.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1) for data in structures]
        )
        energies = torch.tensor([float(data[split.target]) for data in structures], dtype=torch.float64)
        if statistics is None:
            statistics = fit_statistics("element", energies, composition, 0.0)
        references = torch.zeros(composition.shape[1], dtype=torch.float64)
        for z, energy in statistics.references.items():
            references[z] = energy
        target = (energies - composition.double() @ references) / statistics.std
        with atomic_file(paths[name]) as temporary:
            plain_set(structures, target, statistics.std).save(temporary)
    return str(paths["train"]), held_out


def plain_set(structures: list[Any], target: torch.Tensor, scale: float) -> PlainSet:
    """Structures with neighbour lists, one after another."""
    return PlainSet(
        positions=torch.cat([data.positions for data in structures]),
        atomic_numbers=torch.cat([data.atomic_numbers for data in structures]),
        n_atoms=torch.tensor([len(data.atomic_numbers) for data in structures]),
        cell=torch.cat([data.cell.view(1, 3, 3) for data in structures]),
        pbc=torch.cat([data.pbc.view(1, 3) for data in structures]),
        tags=torch.cat([data.tags for data in structures]),
        edge_index=torch.cat([data.edge_index for data in structures], dim=1),
        cell_offsets=torch.cat([data.cell_offsets for data in structures]),
        n_edges=torch.tensor([data.edge_index.shape[1] for data in structures]),
        target=target,
        scale=scale,
    )
