"""Weights of meta-trained optimisers: several networks in one file, read without unpickling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from molflt.files import atomic_file

FOLDER = Path(__file__).parent


def save(models: Mapping[str, nn.Module], path: Path) -> None:
    """Write the parameters and buffers of networks, each under a name of its own."""
    tensors = {
        f"{name}/{key}": t.contiguous() for name, model in models.items() for key, t in model.state_dict().items()
    }
    with atomic_file(path) as temporary:
        save_file(tensors, temporary)


def load(models: Mapping[str, nn.Module], path: Path) -> None:
    """Give networks what :func:`save` wrote for their names."""
    tensors = load_file(path)
    for name, model in models.items():
        mine = {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}
        model.load_state_dict(mine)
