"""Everything that is promised of a GPU, in one run of at most five minutes.

    python -m scripts.benchmarks.gpu
    python -m scripts.benchmarks.gpu --device cpu --quick

Milliseconds of untrained models, medians; of dynamics the mean, for some steps make a new layout:

    training  a step of ``small`` on energies of slabs: forward, backward and Adam. Eager, compiled, and as a CUDA
              graph that is played again and again; with deterministic algorithms or without; beside SchNet, PaiNN
              and ``molflt train``, with all that is around a step: loader, Lightning, Muon, moving average
    dynamics  a step of 0.5 fs with ASE on a periodic cube at 300 K
    layer     a layer with its preparation, forward, on an isolated ball

What cannot be measured is a row that says why. No row is started after ``--seconds``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from ase import units
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from lightning.pytorch.callbacks import Callback
from torch_geometric.data import Data

from molflt.data.ase import to_atoms
from molflt.data.oc20.writer import write_lmdb
from molflt.data.record import to_record
from molflt.model.compiled import compile_model
from molflt.model.energy import EnergyModel
from molflt.training.config import preset_config
from molflt.training.run import train
from scripts.benchmarks import layer_worker, measuring, models, structures
from scripts.benchmarks.md_step import molflt_calculator

PRESET = "small"
ATOMS = {"large": 144, "mean": 78}
"""Atoms of a slab: of OC20's larger ones, and of its mean."""

Row = tuple[str, str, Callable[[], float]]
"""What is measured, how, and the milliseconds."""


def quiet(line: str) -> None:
    """Say nothing."""


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Have PyTorch take its deterministic algorithms, as ``trainer.deterministic`` does, or not."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Benchmark:
    """The rows of one device.

    Args:
        device: where to measure.
        quick: smaller and fewer, to see that it runs.
    """

    def __init__(self, device: torch.device, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.n_slabs = 2 if quick else 30
        self.dynamics = [27] if quick else [27, 1_000, 10_000, 100_000]
        self.layer_atoms = 64 if quick else 16_384
        self.rng = np.random.default_rng(0)

    def rows(self) -> Iterator[Row]:
        """All of them, the most important first."""
        slabs = {
            f"training, {self.n_slabs} slabs of {size} size": [
                structures.slab(8 if self.quick else n_atoms, self.rng) for _ in range(self.n_slabs)
            ]
            for size, n_atoms in ATOMS.items()
        }
        for name, found in slabs.items():
            yield name, "eager", partial(self.step, found)
            yield name, "eager, deterministic", partial(self.step, found, True)
            if self.device.type == "cuda":
                yield name, "CUDA graph", partial(self.graph, found)
            for peer in ("PaiNN", "SchNet"):
                yield name, peer, partial(self.peer, peer, found)
            yield name, "molflt train", partial(self.run, found)
        for n in self.dynamics:
            yield f"dynamics, {n:,} atoms", PRESET, partial(self.dynamics_step, n)
        yield f"layer, {self.layer_atoms:,} atoms", "flt, gaussians", self.layer
        # Compiling takes minutes, once for batches of every size.
        if self.device.type == "cuda" or not self.quick:
            for name, found in slabs.items():
                yield name, "compiled", partial(self.step, found, compiled=True)

    def time(self, call: Callable[[], object]) -> float:
        """Milliseconds of a call, after some that set everything up."""
        for _ in range(1 if self.quick else 3):
            call()
        return 1e3 * median(measuring.seconds_of(call, 3 if self.quick else 15, 3.0, self.device))

    def bare(self, found: list[Data], compiled: bool = False) -> Callable[[], None]:
        """A training step of the model."""
        torch.manual_seed(0)
        model = EnergyModel(preset_config(PRESET).model).to(self.device).train()
        batch = structures.batch_for(model, [data.clone() for data in found]).to(self.device)
        if compiled:
            compile_model(model, quiet)
        capturable = self.device.type == "cuda"
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=capturable, foreach=True)

        def step() -> None:
            optimiser.zero_grad(set_to_none=False)
            output = model(batch)
            loss = output.energy.square().mean()
            if output.displacement is not None:
                loss = loss + output.displacement.abs().mean()
            loss.backward()
            optimiser.step()

        return step

    def step(self, found: list[Data], exactly: bool = False, compiled: bool = False) -> float:
        """A training step."""
        with deterministic(exactly):
            return self.time(self.bare(found, compiled))

    def graph(self, found: list[Data]) -> float:
        """A training step, captured once: what the device takes if nothing waits for Python."""
        step, stream = self.bare(found), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        return self.time(captured.replay)

    def peer(self, name: str, found: list[Data]) -> float:
        """A training step of another model, as wide."""
        family, sizes = models.rows()[name]
        return self.time(models.training_steps(family, sizes, self.device)(models.prepared(family, found)))

    def run(self, found: list[Data]) -> float:
        """A step of ``molflt train``, everything around it included."""
        clock = _Clock(self.device)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "train.lmdb")
            labelled = [data.clone() for data in found]
            for sid, data in enumerate(labelled):
                data.sid, data.y_relaxed = torch.tensor([sid]), torch.zeros(1, dtype=torch.float64)
                data.positions_relaxed = data.positions
            write_lmdb(Path(path), [to_record(data) for data in labelled] * (5 if self.quick else 30), progress=False)
            config = preset_config(PRESET)
            config.data.train, config.data.val = path, {"val": path}
            config.data.max_atoms = len(found) * max(int(data.num_nodes) for data in found)
            config.trainer.max_epochs = 1
            config.trainer.accelerator = "gpu" if self.device.type == "cuda" else "cpu"
            train(config, Path(folder) / "run", say=quiet, callbacks=[clock])
        return 1e3 * clock.seconds

    def dynamics_step(self, n_atoms: int) -> float:
        """A step of dynamics."""
        atoms = to_atoms(structures.cube(n_atoms))
        atoms.calc = molflt_calculator(device=self.device.type)
        thermalize_momenta(atoms, temperature_K=300, rng=np.random.default_rng(0))
        dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
        dynamics.run(2)
        # The calculator has copied its results to the host, so there is nothing to wait for.
        start, n_steps = time.perf_counter(), 0
        while n_steps < (2 if self.quick else 60) and time.perf_counter() - start < 5.0:
            dynamics.run(1)
            n_steps += 1
        return 1e3 * (time.perf_counter() - start) / n_steps

    def layer(self) -> float:
        """A layer, its preparation included."""
        layer = layer_worker.build("flt, gaussians", 1).to(self.device)
        calls = layer_worker.Calls(layer, layer_worker.batch_for([structures.ball(self.layer_atoms)], layer), False)
        calls = layer_worker.Calls(layer, calls.batch.to(self.device), False)
        calls.first()
        return self.time(lambda: (calls.prepare(), calls.layer()))


class _Clock(Callback):
    """Seconds of a step of a run, from the end of its second batch on."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.start, self.seconds = device, 0.0, 0.0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):  # type: ignore[no-untyped-def]
        """Begin after what the first steps set up; look at the clock after the last."""
        last = trainer.num_training_batches - 1
        if batch_idx in (1, last):
            measuring.synchronise(self.device)
        if batch_idx == 1:
            self.start = time.perf_counter()
        elif batch_idx == last:
            self.seconds = (time.perf_counter() - self.start) / (last - 1)


def measured(row: Row, until: float) -> str:
    """A line of the table."""
    name, how, call = row
    if time.monotonic() > until:
        return f"| {name} | {how} | no time was left |"
    try:
        found = f"{call():.3g}"
    except Exception as error:
        found = measuring.why(error)["note"]
    return f"| {name} | {how} | {found} |"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer, to see that it runs")
    parser.add_argument("--seconds", type=float, default=280.0, help="after which no row is started")
    options = parser.parse_args()
    device, until = torch.device(options.device), time.monotonic() + options.seconds
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"| {name} | | ms |\n|---|---|---|")
    for row in Benchmark(device, options.quick).rows():
        print(measured(row, until), flush=True)


if __name__ == "__main__":
    main()
