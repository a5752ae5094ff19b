"""What a job left behind, as values that are equal exactly when nothing differs that should not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from molflt.data.lmdb_dataset import close_readonly, open_readonly


def run_content(run_dir: Path) -> dict[str, Any]:
    """A finished run: its files by name, model files and checkpoint by tensor and value, the report without its date.

    The checkpoint holds weights, EMA, optimiser, scheduler, loops, the sampler's position and the recorder's state.
    """
    content: dict[str, Any] = {}
    for path in sorted(run_dir.iterdir()):
        if path.name == "previous.ckpt":
            # Whether it is needed is tried by damaging the other one.
            continue
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as handle:
                content[path.name] = handle.metadata()
                content |= {f"{path.name}: {name}": handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        elif path.suffix == ".ckpt":
            _flatten(torch.load(path, weights_only=True), path.name, content, str(run_dir.absolute()))
        elif path.suffix == ".html":
            content |= page_content(path)
        else:
            content[path.name] = path.read_bytes()
    return content


def lmdb_content(path: Path) -> dict[str, Any]:
    """Keys and values; pages may lie in another order.

    Raises:
        InputError: the file is cut short; LMDB itself would end the process.
    """
    try:
        with open_readonly(path).begin() as reading:
            content: dict[str, Any] = {key.decode(): bytes(value) for key, value in reading.cursor()}
    finally:
        # The next one may have its inode.
        close_readonly(path)
    content["files"] = sorted(file.name for file in path.parent.iterdir())
    return content


def page_content(path: Path) -> dict[str, Any]:
    """A report without the minute it was written in, and without what a refusal asked to add to the command."""
    text = path.read_text(encoding="utf-8").replace(" --overwrite</dd>", "</dd>")
    shorter, n = re.subn(r"(report written</dt><dd>)\d[^<]*", r"\1", text)
    return {path.name: shorter, f"{path.name}: dates": n}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Names of what differs, bit by bit."""
    return [
        name
        for name in dict.fromkeys([*expected, *found])
        if name not in found or name not in expected or not _same(found[name], expected[name])
    ]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _flatten(value: Any, name: str, content: dict[str, Any], folder: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _flatten(item, f"{name}: {key}".replace(folder, "RUN"), content, folder)
    elif isinstance(value, list | tuple):
        content[f"{name}: length"] = len(value)
        for k, item in enumerate(value):
            _flatten(item, f"{name}: {k}", content, folder)
    else:
        content[name] = value.replace(folder, "RUN") if isinstance(value, str) else value
