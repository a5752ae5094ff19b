"""The trained models that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from molflt.errors import InputError

PRETRAINED_PREFIX = "pretrained:"


def pretrained_models() -> dict[str, Path]:
    """Name and file of every model that comes with the package; each has a card NAME.md beside it."""
    folder = Path(str(files("molflt"))) / "pretrained"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def pretrained_model(name: str) -> Path:
    """The file of a model that comes with the package.

    Args:
        name: without folder and ending.

    Raises:
        InputError: there is none of that name.
    """
    known = pretrained_models()
    if name not in known:
        raise InputError(f"{PRETRAINED_PREFIX}{name}: no such model; there are {', '.join(known) or 'none'}")
    return known[name]
