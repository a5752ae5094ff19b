"""Processor time of training steps with forces and without: molflt, SchNet and PaiNN.

A step on energies is the forward pass and the derivative with respect to the weights; with forces, the forces come
from the energy and the loss on both is differentiated. All models have the width, layers and cutoff of ``small``, and
molflt has no vectors. Times are those of the process, on one thread.

    python -m scripts.benchmarks.force_step train.extxyz --peers-python .venv-peers/bin/python
"""

from __future__ import annotations

import dataclasses
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
from scripts.benchmarks.peers import PlainBatch, build, collate, edge_vectors, n_parameters, plain

SIZES: dict[str, dict[str, Any]] = {
    "molflt": {"preset": "small", "attention": "flt"},
    "molflt, no far field": {"preset": "small", "attention": "local"},
    "schnet": {"hidden_channels": 128, "num_filters": 128, "num_interactions": 3, "num_gaussians": 32, "cutoff": 5.0},
    "painn": {"n_atom_basis": 128, "n_interactions": 3, "n_rbf": 32, "cutoff": 5.0},
}
CUTOFF = 5.0


def energies(model: Any, batch: PlainBatch, positions: Tensor) -> Tensor:
    """Energies (n_structures,) as a function of positions, with all that depends on them."""
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


def measure(family: str, path: str, repeats: int) -> dict[str, Any]:
    """Milliseconds of both steps, one after the other in turn, and of forces alone."""
    torch.manual_seed(0)
    model = build(family.partition(",")[0], SIZES[family]).train()
    batch = collate(torch.load(path, weights_only=True))

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
    return {**{name: median(times[1:]) for name, times in found.items()}, "parameters": n_parameters(model)}


def main() -> None:
    """Measure every model in a process of its own and print the table."""
    # Only here: the process that measures PaiNN has no molflt.
    from molflt.data.neighbours import attach_neighbours
    from molflt.data.open import open_dataset
    from scripts import results

    parser = results.parser(__doc__)
    parser.add_argument("structures", type=Path, help="a file of structures")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 20], help="structures of a batch")
    parser.add_argument("--peers-python", help="Python with SchNetPack; without it PaiNN is left out")
    options = parser.parse_args()
    structures = open_dataset(options.structures)
    print("| structures | model | parameters | ms, energies | ms, with forces | ratio | ms, forces of a batch |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for n in options.sizes[: 1 if options.quick else None]:
            path = Path(folder) / f"{n}.pt"
            torch.save([plain(attach_neighbours(structures[k], CUTOFF), 0.0) for k in range(n)], path)
            for family in SIZES:
                python = options.peers_python if family == "painn" else sys.executable
                if python is None:
                    continue
                job = {"family": family, "path": str(path), "repeats": 1 if options.quick else 20}
                found = measuring.isolated("benchmarks.force_step:measure", 1, 600, python, **job)
                if found["status"] != measuring.DONE:
                    raise SystemExit(f"{family}: {found}")
                plainly, forces = found["energies"], found["forces"]
                numbers = f"{plainly:.1f} | {forces:.1f} | {forces / plainly:.2f} | {found['predict']:.1f}"
                print(f"| {n} | {family} | {found['parameters']:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
