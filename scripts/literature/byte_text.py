"""Bytes of Python's standard library as a language-modelling set, and training on them."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.literature import training

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


def fit(model: nn.Module, steps: int, seed: int, label: str) -> dict[str, Any]:
    """Train on bytes; what is noted on the way are bits per byte of the held-out text.

    The windows depend on the seed alone, so that all attentions see the same text in the same order.
    """
    train, validation = corpus()
    random = torch.Generator().manual_seed(seed)

    def loss() -> Tensor:
        starts = torch.randint(len(train) - LENGTH - 1, (BATCH,), generator=random)
        inputs, targets = windows(train, starts)
        return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    adam = {"betas": (0.9, 0.98), "weight_decay": 0.01}
    return training.fit(model, loss, lambda: bits_per_byte(model, validation), steps, label, 3e-3, 0.1, **adam)
