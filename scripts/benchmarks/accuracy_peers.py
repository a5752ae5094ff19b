"""SchNet, DimeNet++ and PaiNN for the accuracy benchmark, with the settings of their authors.

Each is trained for a given time and judged in a process of its own, where its library is, without molflt.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from scripts.benchmarks import measuring
from scripts.benchmarks.peers import Structure, build, collate, n_parameters, plain

if TYPE_CHECKING:
    from scripts.benchmarks.accuracy_data import Split


class Peer(NamedTuple):
    """Family and sizes, see :func:`peers.build`; cutoff in molecules and in crystals, Å; peak learning rate."""

    family: str
    sizes: dict[str, Any]
    cutoff: tuple[float, float]
    lr: float


_DIMENET = {"num_blocks": 4, "int_emb_size": 64, "basis_emb_size": 8, "out_emb_channels": 256, "hidden_channels": 128}
_SCHNET = {"hidden_channels": 128, "num_filters": 128, "num_interactions": 6, "num_gaussians": 50}
PEERS = {
    "SchNet": Peer("schnet", _SCHNET, (10.0, 6.0), 5e-4),
    "DimeNet++": Peer("dimenet++", {**_DIMENET, "num_spherical": 7, "num_radial": 6}, (5.0, 5.0), 1e-3),
    "PaiNN": Peer("painn", {"n_atom_basis": 128, "n_interactions": 3, "n_rbf": 20}, (5.0, 5.0), 5e-4),
}
"""Sizes and rates: torch_geometric's and SchNetPack's defaults and examples."""
BATCH, EMA, WARMUP, CLIP = 32, 0.999, 0.02, 10.0
"""Structures; decay of the moving average that is judged; share of the time in which the rate rises; norm of a
gradient."""


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
    is the interpreter of the peers' environment, for PaiNN.

    Returns:
        What :func:`train` found; where there is nothing, why.
    """
    from filelock import FileLock

    peer = PEERS[name]
    if peer.family == "painn" and python is None:
        return {"status": "not available", "note": "needs --peers-python (scripts/benchmarks/peers_environment.sh)"}
    cutoff = peer.cutoff[0 if molecules else 1]
    with FileLock(folder / "claimed"):
        train, test, scale = plain_files(split, cutoff, folder)
    job = {"family": peer.family, "sizes": {**peer.sizes, "cutoff": cutoff}, "train_file": train, "test_files": test}
    job |= {"scale": scale, "seconds": seconds, "lr": peer.lr, "seed": seed}
    job |= {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    interpreter = python if peer.family == "painn" and python else sys.executable
    function = "benchmarks.accuracy_peers:train"
    return measuring.isolated(function, threads, 4 * seconds + 600, interpreter, **job)


def plain_files(split: Split, cutoff: float, folder: Path) -> tuple[str, dict[str, str], float]:
    """Write files of the training set and those held out; returns them, and eV of one unit."""
    from molflt.data.labels import LabelSpec
    from molflt.data.neighbours import attach_neighbours
    from molflt.data.open import open_dataset
    from molflt.data.reading import ReadOptions
    from molflt.files import atomic_file, resolve_path
    from molflt.model.scale_shift import fit_statistics
    from molflt.vocabulary import MAX_ATOMIC_NUMBER

    sources = {"train": split.train, **split.held_out}
    paths = {
        name: folder / f"{Path(source.replace(':', '-')).stem}-{name}-{cutoff:g}.pt"
        for name, source in sources.items()
    }
    read = {
        name: open_dataset(resolve_path(s), ReadOptions(labels=LabelSpec(target=split.target)))
        for name, s in sources.items()
    }
    energies = torch.tensor([float(data[split.target]) for data in read["train"]], dtype=torch.float64)
    counts = [torch.bincount(data.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1) for data in read["train"]]
    statistics = fit_statistics("element", energies, torch.stack(counts), 0.0)
    for name, path in paths.items():
        if not path.exists():
            structures = []
            for data in read[name]:
                reference = sum(statistics.references.get(z, 0.0) for z in data.atomic_numbers.tolist())
                target = (float(data[split.target]) - reference) / statistics.std
                structures.append(plain(attach_neighbours(data, cutoff), target))
            with atomic_file(path) as temporary:
                torch.save(structures, temporary)
    return str(paths["train"]), {name: str(paths[name]) for name in split.held_out}, float(statistics.std)


def train(
    family: str,
    sizes: dict[str, Any],
    train_file: str,
    test_files: dict[str, str],
    scale: float,
    seconds: float,
    lr: float,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Train by Adam, the rate falling as a cosine of the time that has passed, and judge.

    Args:
        family: see :func:`peers.build`.
        sizes: keyword arguments of its constructor.
        train_file: of a list of :data:`peers.Structure`, their targets standardised.
        test_files: the same, by name.
        scale: eV of one unit of a target.
        seconds: of processor time to train for: what else the machine does takes nothing from it.
        lr: peak learning rate.
        seed: of weights and batches.
        device: cpu or cuda.
    """
    torch.manual_seed(seed)
    data = torch.load(train_file, weights_only=True)
    model = build(family, sizes).to(device).train()
    average = copy.deepcopy(model).eval()
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    model(model.prepare(collate(data[:2]).to(device)))
    begin = time.process_time()
    steps, share = 0, 0.0
    while share < 1.0:
        for chosen in torch.randperm(len(data)).split(BATCH):
            share = (time.process_time() - begin) / seconds
            if share >= 1.0:
                break
            rate = lr * min(share / WARMUP, 1.0) * 0.5 * (1 + math.cos(math.pi * share))
            for group in optimiser.param_groups:
                group["lr"] = rate
            batch = collate([data[k] for k in chosen.tolist()]).to(device)
            loss = (model(model.prepare(batch)) - batch.target).abs().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            steps += 1
            update(average, model, min(EMA, (1 + steps) / (10 + steps)))
    held_out = {name: torch.load(path, weights_only=True) for name, path in test_files.items()}
    return {
        "mae": {name: scale * error(average, some, device) for name, some in held_out.items()},
        "steps": steps,
        "epochs": steps * BATCH / len(data),
        "seconds": time.process_time() - begin,
        "parameters": n_parameters(model),
    }


@torch.no_grad()
def update(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the average towards the model."""
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


@torch.no_grad()
def error(model: nn.Module, structures: list[Structure], device: str) -> float:
    """Mean absolute error."""
    total = 0.0
    for first in range(0, len(structures), 64):
        batch = collate(structures[first : first + 64]).to(device)
        total += float((model(model.prepare(batch)) - batch.target).abs().sum())
    return total / len(structures)
