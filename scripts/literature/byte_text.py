"""Bytes of Python's standard library as a language-modelling set, and a small training loop on them."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

LENGTH, BATCH = 128, 16
N_VALIDATION = 128
SKIPPED = {"test", "tests", "idlelib", "site-packages", "turtledemo", "encodings", "pydoc_data", "lib2to3"}
"""Folders of tests, tables and third parties."""


def corpus() -> tuple[Tensor, Tensor]:
    """Training and validation text, uint8: every tenth file, in the order of their paths, is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in root.rglob("*.py") if not SKIPPED & set(path.relative_to(root).parts[:-1]))
    parts = [bytearray(), bytearray()]
    for index, path in enumerate(files):
        parts[index % 10 == 9] += path.read_bytes()
    train, validation = (torch.frombuffer(part, dtype=torch.uint8) for part in parts)
    return train, validation


def windows(text: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """LENGTH bytes from each start, and the bytes that follow each of them; (batch, LENGTH) int64."""
    index = start[:, None] + torch.arange(LENGTH + 1)
    bytes_ = text[index].to(torch.int64)
    return bytes_[:, :-1], bytes_[:, 1:]


def bits_per_byte(model: nn.Module, text: Tensor) -> float:
    """Mean over N_VALIDATION windows spread evenly over the text."""
    starts = torch.linspace(0, len(text) - LENGTH - 2, N_VALIDATION).to(torch.int64)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for part in starts.split(BATCH):
            inputs, targets = windows(text, part)
            total += float(functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum"))
    model.train()
    return total / (N_VALIDATION * LENGTH * math.log(2))


def fit(
    model: nn.Module,
    train: Tensor,
    validation: Tensor,
    steps: int,
    seed: int,
    lr: float = 3e-3,
    on_step: Callable[[int], None] = lambda step: None,
) -> list[tuple[int, float]]:
    """Adam with a linear warm-up over a tenth and a cosine decay; (step, bits per byte) ten times on the way.

    The windows depend on the seed alone, so that all attentions see the same text in the same order.
    """
    random = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda step: min(
            (step + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / max(1, steps - warm)))
        ),
    )
    curve = []
    for step in range(1, steps + 1):
        starts = torch.randint(len(train) - LENGTH - 1, (BATCH,), generator=random)
        inputs, targets = windows(train, starts)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        on_step(step)
        if step % max(1, steps // 10) == 0:
            curve.append((step, bits_per_byte(model, validation)))
    return curve
