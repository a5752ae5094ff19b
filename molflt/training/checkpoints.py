"""What a run goes on from: the checkpoint of its last epoch, and the one before in case that is damaged."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from molflt.errors import InputError
from molflt.files import atomic_file

CHECKPOINT, PREVIOUS = "last.ckpt", "previous.ckpt"


class DurableCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside its predecessor, and to the disk before it takes the name.

    Lightning's own way writes to the folder for temporary files and does not wait for the disk: where that folder is
    on another file system, a kill can leave half a checkpoint, and a power cut can leave an empty one anywhere.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint; the one that was there is kept as ``previous.ckpt``."""
        path = Path(path)
        # Through memory: torch reports a full disk as an internal error of its archive.
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        with atomic_file(path) as temporary:
            with open(temporary, "wb") as handle:
                handle.write(buffer.getbuffer())
                handle.flush()
                # Before its predecessor moves: what fails up to here leaves last.ckpt where it is.
                os.fsync(handle.fileno())
            if path.exists():
                os.replace(path, path.with_name(PREVIOUS))


def find_checkpoint(run_dir: Path) -> tuple[Path | None, list[Path]]:
    """Where to continue from, if there is anything.

    Returns:
        The latest checkpoint that can be read, None without any; and those, later than it, that cannot.

    Raises:
        InputError: there are checkpoints, and all of them are damaged.
    """
    damaged: list[Path] = []
    for path in (run_dir / CHECKPOINT, run_dir / PREVIOUS):
        if not path.exists():
            continue
        try:
            # Tensors and plain values only: a run directory may come from elsewhere.
            torch.load(path, map_location="meta", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
            damaged.append(path)
            reason = error
        else:
            return path, damaged
    if damaged:
        raise InputError(
            f"{damaged[0]}: is damaged and cannot be continued from; start again with another '--out', or remove "
            f"{run_dir} (its model files can still be used)"
        ) from reason
    return None, []
