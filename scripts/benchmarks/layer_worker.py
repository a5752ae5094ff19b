"""Attention layers measured in turn, for ``speed.py``, in a process for each size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from scripts.benchmarks import layers, measuring, structures
from scripts.benchmarks.layer_peers import DenseWithBias
from scripts.benchmarks.layers import ROWS, MolfltLayer, cut, tensors, touch
from scripts.benchmarks.measuring import DONE, resident

DENSE = "sdpa+bias"
WARM_ATOMS = 64
SLAB_LAYERS = 6
"""Layers of a model of slabs, as of the preset ``base``; they share what is prepared."""


def build(name: str, n_layers: int) -> torch.nn.Module:
    """The layer called so, of a model of some layers."""
    return DenseWithBias() if name == DENSE else MolfltLayer(name, n_layers=n_layers)


def batch_for(found: list[Data], layer: torch.nn.Module) -> Batch:
    """Batch of structures with the neighbours that a layer needs; the dense peer finds its own."""
    cutoff = getattr(layer, "neighbour_cutoff", layers.CUTOFF)
    return structures.batch_with_neighbours(found, cutoff, getattr(layer, "all_pairs_if_isolated", False))


class Calls:
    """The two calls that are measured: preparation and layer, with backward passes if training."""

    def __init__(self, layer: torch.nn.Module, batch: Batch, train: bool) -> None:
        self.module, self.batch, self.train = layer, batch, train
        device, n = batch.positions.device, len(batch.positions)
        self.x = torch.randn(n, layers.DIM, device=device, requires_grad=train)
        self.output_gradient = torch.randn(n, layers.DIM, device=device) if train else None
        self.prepared: Any = None
        self.leaves: list[tuple[Tensor, Tensor]] = []
        self.on_demand: list[layers.Path] = []

    def first(self) -> list[float]:
        """A first preparation and a first layer; returns the seconds of both.

        Some of what layers share is made when the first of them asks for it. That is preparation: from here on
        :meth:`prepare` makes it too, and a layer finds it there.
        """
        device = self.x.device
        prepared = measuring.seconds_of(self.prepare, 1, 0.0, device)
        before = tensors(self.prepared)
        applied = measuring.seconds_of(self.layer, 1, 0.0, device)
        self.on_demand = sorted(tensors(self.prepared) - before, key=str)
        return prepared + applied

    def prepare(self) -> None:
        """Once for a structure; training, the gradients of what it prepared go back through it."""
        # What an earlier call prepared must not stay while this one does it again.
        self.forget()
        with torch.set_grad_enabled(self.train):
            prepared = self.module.prepare(self.batch)
            for path in self.on_demand:
                touch(prepared, path)
            self.prepared, self.leaves = cut(prepared) if self.train else (prepared, [])
        originals = [original for original, _ in self.leaves]
        if originals:
            torch.autograd.backward(originals, [torch.ones_like(t) for t in originals])
        # The graph of the preparation goes with its last reference.
        self.leaves = [(leaf, leaf) for _, leaf in self.leaves]

    def layer(self) -> None:
        """Apply the layer; if training, with gradients of input, weights and prepared tensors."""
        with torch.set_grad_enabled(self.train):
            out = self.module(self.x, self.prepared)
        if self.train:
            out.backward(self.output_gradient)
            for tensor in (self.x, *self.module.parameters(), *(leaf for _, leaf in self.leaves)):
                tensor.grad = None

    def forget(self) -> None:
        """Free what was prepared: layers that take turns must not fill the memory together."""
        self.prepared, self.leaves = None, []


@dataclass
class Contestant:
    """One layer in one direction, and what was measured of it."""

    row: str
    direction: str
    calls: Calls
    found: dict[str, Any] = field(default_factory=lambda: {"prepare_seconds": [], "layer_seconds": []})

    def first_turn(self, limit: float) -> bool:
        """With the peak of resident memory, structures and everything else in this process included.

        Returns:
            Whether it took less than the limit in seconds; else it is the one that counts, and there is no other.
        """
        device = self.calls.x.device
        measuring.start_peak(device)
        times = self.calls.first()
        self.found["peak_bytes"] = measuring.peak(device)
        self.found["how"] = self.calls.module.how(self.calls.prepared) if self.row in ROWS else ""
        self.calls.forget()
        if sum(times) < limit:
            return True
        self.found |= {"prepare_seconds": times[:1], "layer_seconds": times[1:]}
        return False

    def turn(self, limit: float) -> bool:
        """A timed preparation and a timed layer; returns whether there is time for another."""
        device = self.calls.x.device
        for name, call in (("prepare_seconds", self.calls.prepare), ("layer_seconds", self.calls.layer)):
            self.found[name] = self.found[name] + measuring.seconds_of(call, 1, 0.0, device)
        self.calls.forget()
        return sum(self.found["prepare_seconds"]) + sum(self.found["layer_seconds"]) < limit


def measure(
    kind: str,
    size: int,
    rows: list[str],
    directions: list[str],
    device: str,
    repeats: int,
    seconds: float,
    gibibytes: float,
) -> dict[str, Any]:
    """Measure every layer's first turn, then timed ones, in turn: other work then hits all alike.

    Args:
        kind: of structure, as :func:`structures.make` has it.
        size: atoms, or slabs.
        rows: layers, which take turns.
        directions: forward, train.
        device: cpu or cuda.
        repeats: timed turns of each.
        seconds: after which a layer has no further turn.
        gibibytes: memory that the measurement may take; 0 for no limit.
    """
    torch.manual_seed(0)
    named = {row: build(row, SLAB_LAYERS if kind == "oc20" else 1).to(device) for row in rows}
    found = structures.make(kind, size)
    batch = structures.batch_with_neighbours(found, layers.CUTOFF).to(device)
    making_bytes = resident("VmHWM")
    del found
    if gibibytes and device == "cpu":
        measuring.limit_memory(gibibytes)
    contestants = []
    for direction, row in product(directions, rows):
        # Start up whatever a first call does, on structures too small to count.
        small = batch_for([structures.ball(WARM_ATOMS)], named[row]).to(device)
        Calls(named[row], small, direction == "train").first()
        contestants.append(Contestant(row, direction, Calls(named[row], batch, direction == "train")))
    running = [one for one in contestants if _goes_on(one, partial(one.first_turn, seconds))]
    for _ in range(repeats):
        running = [one for one in running if _goes_on(one, partial(one.turn, seconds))]
    return {
        "rows": [
            {"row": o.row, "direction": o.direction, "status": DONE, "making_bytes": making_bytes, **o.found}
            for o in contestants
        ]
    }


def _goes_on(one: Contestant, call: Callable[[], bool]) -> bool:
    """Return the answer of a call; if it fails, that is noted, and the contestant is out."""
    try:
        return call()
    except Exception as error:
        one.found |= measuring.why(error)
        one.calls.forget()
        return False
