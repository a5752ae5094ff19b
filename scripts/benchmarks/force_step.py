"""Processor time of a training step with forces over one without: molflt's, SchNet's and PaiNN's, in the same run.

A step on energies is the forward pass and the derivative with respect to the weights; with forces, the forces come
from the energy and the loss on both is differentiated. All models have the width, layers and cutoff of ``small``, and
molflt has no vectors.
What else the machine does takes nothing from a time: it is that of the process, on one thread.

    python -m scripts.benchmarks.force_step train.extxyz --peers-python .venv-peers/bin/python
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from scripts.benchmarks import measuring
from scripts.benchmarks.model_worker import build, n_parameters
from scripts.benchmarks.plain import PlainBatch, edge_vectors

PRESET = "small"
SIZES: dict[str, dict[str, Any]] = {
    "molflt": {"preset": PRESET, "attention": "flt"},
    "molflt, no far field": {"preset": PRESET, "attention": "local"},
    "schnet": {"hidden_channels": 128, "num_filters": 128, "num_interactions": 3, "num_gaussians": 32, "cutoff": 5.0},
    "painn": {"n_atom_basis": 128, "n_interactions": 3, "n_rbf": 32, "cutoff": 5.0},
}
CUTOFF = 5.0


def energies(model: Any, batch: PlainBatch, positions: Tensor) -> Tensor:
    """(n_structures,) as a function of positions; everything that depends on them is computed anew."""
    vectors = edge_vectors(positions, batch.batch, batch.cell, batch.edge_index, batch.cell_offsets)
    moved = dataclasses.replace(batch, positions=positions, edge_vectors=vectors)
    found: Tensor = model(model.prepare(moved))
    return found


def step(model: nn.Module, batch: PlainBatch, forces: bool) -> None:
    """One training step, but for the optimiser."""
    model.zero_grad()
    positions = batch.positions.detach().requires_grad_(forces)
    energy = energies(model, batch, positions)
    loss = energy.square().mean()
    if forces:
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        loss = loss + gradient.square().mean()
    loss.backward()


def measure(family: str, path: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds of both steps, one after the other in turn, and of forces alone."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build(family.partition(",")[0], SIZES[family]).train()
    batch = PlainBatch.load(path)

    def predict() -> None:
        positions = batch.positions.detach().requires_grad_()
        torch.autograd.grad(energies(model, batch, positions).sum(), positions)

    calls: dict[str, Callable[[], None]] = {
        "energies": lambda: step(model, batch, False),
        "forces": lambda: step(model, batch, True),
        "predict": predict,
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            found[name].append(1e3 * (time.process_time() - start))
    # The first sets everything up.
    middle = {name: median(times[1:]) for name, times in found.items()}
    return {**middle, "parameters": n_parameters(model)}


def main() -> None:
    """Command line; with --family, of a process that measures one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("structures", type=Path, help="a file of structures")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 20], help="structures of a batch")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--peers-python", type=Path, help="Python with SchNetPack; without it PaiNN is left out")
    parser.add_argument("--family", choices=list(SIZES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.family:
        measuring.answer(lambda: measure(options.family, options.structures, options.repeats))
        return
    # Only here: the process that measures PaiNN has no molflt.
    from molflt.data.open import open_dataset
    from scripts.benchmarks.models import plain_batch

    structures = open_dataset(options.structures)
    print("| structures | model | parameters | ms, energies | ms, with forces | ratio | ms, forces of a batch |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for n in options.sizes:
            path = Path(folder) / f"{n}.pt"
            plain_batch([structures[k] for k in range(n)], CUTOFF, False).save(path)
            for family in SIZES:
                python = options.peers_python if family == "painn" else Path(sys.executable)
                if python is None:
                    continue
                command = [str(python), "-m", "scripts.benchmarks.force_step", str(path), "--family", family]
                command += ["--repeats", str(options.repeats)]
                found = measuring.run_isolated(command, threads=1, limit_seconds=600)
                if found["status"] != measuring.DONE:
                    print(f"| {n} | {family} | {json.dumps(found)} |")
                    continue
                plain, forces = found["energies"], found["forces"]
                numbers = f"{plain:.1f} | {forces:.1f} | {forces / plain:.2f} | {found['predict']:.1f}"
                print(f"| {n} | {family} | {found['parameters']:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
