"""Train one of the peers for a given time and judge it; runs where its library is, without molflt.

    python -m scripts.benchmarks.peer_worker SPEC

SPEC is the JSON of a :class:`PeerSpec`. The answer is one line of JSON (:func:`scripts.benchmarks.measuring.answer`).
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scripts.benchmarks import measuring
from scripts.benchmarks.model_worker import build, n_parameters
from scripts.benchmarks.plain import PlainSet

EMA, WARMUP, CLIP = 0.999, 0.02, 10.0
"""Decay of the moving average that is judged; share of the time in which the rate rises; norm of a gradient."""


@dataclass
class PeerSpec:
    """What to train.

    Attributes:
        family: schnet, dimenet++ or painn.
        sizes: keyword arguments of its constructor.
        train: file of a :class:`PlainSet`.
        test: the same, by name.
        seconds: of processor time to train for: what else the machine does takes nothing from it.
        lr: peak learning rate.
        batch_size: structures.
        seed: of weights and batches.
        threads: of PyTorch.
        device: cpu or cuda.
    """

    family: str
    sizes: dict[str, Any]
    train: str
    test: dict[str, str]
    seconds: float
    lr: float
    batch_size: int
    seed: int
    threads: int
    device: str


def train(spec: PeerSpec) -> dict[str, Any]:
    """Adam on the absolute error, the rate falling as a cosine of the time that has passed."""
    torch.set_num_threads(spec.threads)
    torch.manual_seed(spec.seed)
    data = PlainSet.load(Path(spec.train))
    model = build(spec.family, spec.sizes).to(spec.device).train()
    average = copy.deepcopy(model).eval()
    optimiser = torch.optim.AdamW(model.parameters(), lr=spec.lr, weight_decay=0.0)
    model(model.prepare(data.batch([0, 1]).to(spec.device)))
    begin = time.process_time()
    steps, share = 0, 0.0
    while share < 1.0:
        for chosen in torch.randperm(len(data)).split(spec.batch_size):
            share = (time.process_time() - begin) / spec.seconds
            if share >= 1.0:
                break
            rate = spec.lr * min(share / WARMUP, 1.0) * 0.5 * (1 + math.cos(math.pi * share))
            for group in optimiser.param_groups:
                group["lr"] = rate
            batch = data.batch(chosen.tolist()).to(spec.device)
            loss = (model(model.prepare(batch)) - batch.target).abs().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            steps += 1
            update(average, model, min(EMA, (1 + steps) / (10 + steps)))
    errors = {name: mean_absolute_error(average, PlainSet.load(Path(path))) for name, path in spec.test.items()}
    return {
        "mae": errors,
        "steps": steps,
        "epochs": steps * spec.batch_size / len(data),
        "seconds": time.process_time() - begin,
        "parameters": n_parameters(model),
    }


@torch.no_grad()
def update(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the average towards the model."""
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


@torch.no_grad()
def mean_absolute_error(model: nn.Module, data: PlainSet) -> float:
    """In eV."""
    total, device = 0.0, next(model.parameters()).device
    for chosen in torch.arange(len(data)).split(64):
        batch = data.batch(chosen.tolist()).to(device)
        total += float((model(model.prepare(batch)) - batch.target).abs().sum())
    return data.scale * total / len(data)


if __name__ == "__main__":
    measuring.answer(lambda: train(PeerSpec(**json.loads(sys.argv[1]))))
