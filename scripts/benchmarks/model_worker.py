"""Measures one whole model in this process. Run by ``models.py``, in molflt's environment or that of the peers:

    python -m scripts.benchmarks.model_worker SPEC

SPEC is the JSON of a :class:`Spec`. The answer is one line of JSON; see :func:`scripts.benchmarks.measuring.answer`.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scripts.benchmarks import measuring
from scripts.benchmarks.plain import PlainBatch


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to measure.

    Attributes:
        family: molflt, schnet, dimenet++ or painn.
        sizes: keyword arguments of its constructor.
        match: choose the width so that the model has about so many parameters; None keeps that of ``sizes``.
        batch: file of the batch.
        warm: file of a small batch, for all that a first call starts up.
        direction: forward, or train: with the backward pass.
        repeats: calls to time.
        seconds: after which no further call is started.
        gibibytes: memory that the measurement may take; 0 for no limit.
        threads: of PyTorch.
        device: cpu or cuda.
    """

    family: str
    sizes: dict[str, Any]
    match: int | None
    batch: str
    warm: str
    direction: str
    repeats: int
    seconds: float
    gibibytes: float
    threads: int
    device: str


def build(family: str, sizes: dict[str, Any]) -> nn.Module:
    """The model: ``prepare(batch)`` once, ``forward(inputs)`` gives energies."""
    if family == "painn":
        from scripts.benchmarks.external_models import PaiNNEnergy

        return PaiNNEnergy(**sizes)
    from scripts.benchmarks.graph_models import DimeNetEnergy, MolfltEnergy, SchNetEnergy

    return {"molflt": MolfltEnergy, "schnet": SchNetEnergy, "dimenet++": DimeNetEnergy}[family](**sizes)


def with_width(family: str, sizes: dict[str, Any], width: int) -> dict[str, Any]:
    """The same model at another width, in the proportions of its published size."""
    own = {
        "schnet": {"hidden_channels": width, "num_filters": max(8, width // 3)},
        "dimenet++": {"hidden_channels": width, "int_emb_size": width // 4, "out_emb_channels": 3 * width // 4},
        "painn": {"n_atom_basis": width},
    }
    return {**sizes, **own[family]}


WIDTHS = range(8, 1025, 4)


def matched(target: int, count: Callable[[int], int]) -> int:
    """The width, of :data:`WIDTHS`, whose number of parameters is nearest to ``target``; ``count`` increases."""
    above = bisect_right(WIDTHS, target, key=count)
    return min(WIDTHS[max(0, above - 1) : above + 1], key=lambda width: abs(count(width) - target))


def n_parameters(model: nn.Module) -> int:
    """Trained numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Step:
    """What is timed: a step of training, or without an optimiser a forward pass without gradients."""

    def __init__(self, model: nn.Module, batch: PlainBatch, optimiser: torch.optim.Optimizer | None) -> None:
        self.model, self.batch, self.optimiser = model, batch, optimiser
        self.inputs = model.prepare(batch)

    def __call__(self) -> None:
        """One of them."""
        if self.optimiser is None:
            with torch.no_grad():
                self.model(self.inputs)
            return
        self.optimiser.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimiser.step()

    def loss(self) -> Tensor:
        """Mean squared error of the energies, and whatever else the model learns from."""
        if hasattr(self.model, "loss"):
            return self.model.loss(self.inputs, self.batch)
        return (self.model(self.inputs) - self.batch.target).square().mean()


def measure(spec: Spec) -> dict[str, Any]:
    """Memory of a step after one to warm up, then seconds of further ones."""
    torch.set_num_threads(spec.threads)
    torch.manual_seed(0)
    device, train = torch.device(spec.device), spec.direction == "train"
    sizes = spec.sizes
    if spec.match is not None:
        target = spec.match
        width = matched(target, lambda w: n_parameters(build(spec.family, with_width(spec.family, sizes, w))))
        sizes = with_width(spec.family, sizes, width)
    model = build(spec.family, sizes).to(device).train(train)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4) if train else None
    Step(model, PlainBatch.load(Path(spec.warm), device), optimiser)()
    if optimiser is not None:
        optimiser.zero_grad(set_to_none=True)
    batch = PlainBatch.load(Path(spec.batch), device)
    if spec.gibibytes and device.type == "cpu":
        measuring.limit_memory(spec.gibibytes)
    step = Step(model, batch, optimiser)
    added = measuring.peak_growth(step, device)
    return {
        "seconds": measuring.seconds_of(step, spec.repeats, spec.seconds, device),
        "bytes": added,
        "parameters": n_parameters(model),
        "sizes": ", ".join(f"{key}={x}" for key, x in sizes.items() if isinstance(x, (int, float, str))),
    }


if __name__ == "__main__":
    measuring.answer(lambda: measure(Spec(**json.loads(sys.argv[1]))))
