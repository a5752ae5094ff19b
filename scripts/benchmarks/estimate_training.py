"""Memory and time of a training run on GPUs, from what a small batch takes on this machine.

    python -m scripts.benchmarks.estimate_training --preset paper-flt-12l --devices 8 --batch 64 --steps 500000

Measured: parameters, the bytes that autograd keeps for the backward pass (per atom, from batches of bundled
structures), the floating-point operations of matrix products in a training step, forwards and backwards, the number
of operations that would each be a kernel's launch, and the time to read a structure and list its neighbours. Assumed:
what a GPU sustains (--tflops, a range) and the time of a launch, since no GPU is measured here. Memory traffic of
element-wise operations, communication and the allocator's fragments are not counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from molflt.data.batching import collate
from molflt.data.datasets import StructureDataset
from molflt.data.neighbours import attach_neighbours
from molflt.data.sources import open_dataset
from molflt.model.config import ModelConfig
from molflt.model.energy_model import EnergyModel
from molflt.training.presets import PRESETS, preset_config

DATA = Path(__file__).resolve().parents[2] / "data" / "fg" / "val.lmdb"
MIB, GIB = 2**20, 2**30
OPTIMISER_TENSORS = 2
"""Adam keeps two moments of every parameter."""
LAUNCH = 7e-6
"""Seconds, assumed: what the CPU needs to start an operation on a GPU."""


@dataclass(frozen=True)
class Measurement:
    """One training step on a small batch.

    Attributes:
        n_parameters: of the model.
        n_structures, n_atoms, n_edges: of the batch.
        saved: bytes kept from the forward for the backward pass, parameters apart.
        flops: of matrix products, forwards and backwards.
        launches: operations that compute something, forwards and backwards; hardly more for a larger batch.
        seconds_to_read: of a core of this machine, for a structure from its file with its neighbours.
    """

    n_parameters: int
    n_structures: int
    n_atoms: int
    n_edges: int
    saved: int
    flops: int
    launches: int
    seconds_to_read: float

    @property
    def saved_per_atom(self) -> float:
        """Bytes."""
        return self.saved / self.n_atoms

    @property
    def flops_per_atom(self) -> float:
        """Operations of a step, forwards and backwards."""
        return self.flops / self.n_atoms


class _Launches(TorchDispatchMode):
    """Counts operations; those that only look at memory in another way are not."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        self.count += not views
        return func(*args, **(kwargs or {}))


def measure(config: ModelConfig, structures: StructureDataset, indices: Sequence[int]) -> Measurement:
    """Take one training step, without noise, on some structures.

    Args:
        config: of the model.
        structures: with relaxed energies.
        indices: those of the batch.
    """
    model = EnergyModel(config, seed=0).train()
    start = time.process_time()
    chosen = [
        attach_neighbours(structures[i], config.neighbour_cutoff, config.all_pairs_if_isolated) for i in indices
    ]
    seconds_to_read = (time.process_time() - start) / len(chosen)
    batch = collate(chosen)
    own = {value.untyped_storage().data_ptr() for value in (*model.parameters(), *model.buffers())}
    kept: dict[int, tuple[int, Any]] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # Views of one storage are kept once. Holding the tensor keeps its address from being given away again.
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with FlopCounterMode(display=False) as counter, _Launches() as launches:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(batch)
            loss = (output.energy - batch.y_relaxed).abs().mean()
            if output.displacement is not None:
                loss = loss + (output.displacement - (batch.positions_relaxed - batch.positions)).abs().mean()
        loss.backward()
    return Measurement(
        n_parameters=model.n_parameters(),
        n_structures=len(chosen),
        n_atoms=int(batch.num_nodes),
        n_edges=int(batch.edge_index.shape[1]),
        saved=sum(n_bytes for n_bytes, _ in kept.values()),
        flops=counter.get_total_flops(),
        launches=launches.count,
        seconds_to_read=seconds_to_read,
    )


def near_size(structures: StructureDataset, n_atoms: float, count: int) -> list[int]:
    """Indices of the structures whose sizes are nearest to the one wanted."""
    return np.argsort(np.abs(structures.n_atoms - n_atoms), kind="stable")[:count].tolist()


def table(
    one: Measurement,
    recycled: Measurement,
    n_recycles: int,
    devices: int,
    batch: int,
    atoms: float,
    steps: int,
    tflops: Sequence[float],
) -> list[str]:
    """The estimate in lines.

    Args:
        one: of the model with a single recycle.
        recycled: of the model as it is.
        n_recycles: of the model as it is.
        devices: GPUs.
        batch: structures a step, on all GPUs.
        atoms: of a structure on average.
        steps: of the optimiser.
        tflops: assumed to be sustained by a GPU, 10¹² a second.
    """
    atoms_per_gpu = batch / devices * atoms
    state = 4 * recycled.n_parameters * (2 + OPTIMISER_TENSORS)
    per_structure = recycled.flops_per_atom * atoms
    per_step = per_structure * batch / devices
    launching = recycled.launches * LAUNCH
    lines = [
        f"measured on {recycled.n_structures} structures, {recycled.n_atoms} atoms, {recycled.n_edges} pairs",
        _row("parameters", f"{recycled.n_parameters:,}", ""),
        _row("weights, gradients and Adam, float32", f"{state / GIB:.2f}", "GiB on every GPU"),
        _row("kept for the backward pass, 1 recycle", f"{one.saved_per_atom / MIB:.2f}", "MiB an atom"),
        _row(f"the same, recycles: {n_recycles}", f"{recycled.saved_per_atom / MIB:.2f}", "MiB an atom"),
        _row("matrix products of a training step", f"{recycled.flops_per_atom / 1e9:.2f}", "GFLOP an atom"),
        _row(
            "operations of a training step",
            f"{recycled.launches:,}",
            f"{launching:.2f} s at {LAUNCH * 1e6:g} µs each",
        ),
        _row("reading and neighbours, here", f"{1e3 * recycled.seconds_to_read:.1f}", "ms a structure and core"),
        "",
        f"{batch} structures of {atoms:g} atoms a step on {devices} GPUs: {atoms_per_gpu:.0f} atoms on each",
        _row("activations", f"{recycled.saved_per_atom * atoms_per_gpu / GIB:.1f}", "GiB on every GPU"),
        _row(
            "matrix products",
            f"{per_step / 1e12:.2f}",
            f"TFLOP a step and GPU, {per_structure / 1e12:.2f} a structure",
        ),
    ]
    for speed in tflops:
        # The CPU starts operations while the GPU computes: the slower of the two sets the pace.
        seconds = max(per_step / (speed * 1e12), launching)
        days = f"s a step, {seconds * steps / 86400:.1f} days for {steps:,} steps"
        lines.append(_row(f"at {speed:g} TFLOP/s a GPU (assumed)", f"{seconds:.2f}", days))
    return lines


def _row(what: str, value: str, unit: str) -> str:
    return f"{what:<38}{value:>14} {unit}".rstrip()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(PRESETS), default="paper-flt-12l")
    parser.add_argument("--data", default=str(DATA), help="structures to measure with")
    parser.add_argument("--devices", type=int, default=8, help="GPUs")
    parser.add_argument("--batch", type=int, default=64, help="structures a step, on all GPUs")
    parser.add_argument("--atoms", type=float, default=78.0, help="of a structure on average; 78 in OC20")
    parser.add_argument("--steps", type=int, default=500_000, help="of the optimiser")
    parser.add_argument("--structures", type=int, default=2, help="to measure with, of about the average size")
    parser.add_argument("--tflops", type=float, nargs="+", default=[5.0, 20.0, 60.0], help="assumed, of a GPU")
    options = parser.parse_args()
    if min(options.devices, options.batch, options.atoms, options.steps, options.structures, *options.tflops) <= 0:
        parser.error("numbers must be positive")
    config = preset_config(options.preset).model
    structures = open_dataset(options.data)
    indices = near_size(structures, options.atoms, options.structures)
    recycled = measure(config, structures, indices)
    one = measure(config.model_copy(update={"n_recycles": 1}), structures, indices)
    print(f"{options.preset}: {config.n_layers} layers, {config.n_recycles} recycles, width {config.dim}")
    for line in table(
        one,
        recycled,
        config.n_recycles,
        options.devices,
        options.batch,
        options.atoms,
        options.steps,
        options.tflops,
    ):
        print(line)


if __name__ == "__main__":
    main()
