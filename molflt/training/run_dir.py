"""The files of a run directory: configuration, metrics, checkpoints, bad batches."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from molflt.data.quality.screen import SKIPPED
from molflt.errors import InputError
from molflt.files import atomic_file, is_leftover, remove_leftovers
from molflt.model.file import ModelMetadata, read_metadata
from molflt.training.config import TrainConfig
from molflt.training.yaml import load_config, to_yaml

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
LAST = "last.safetensors"
CHECKPOINT, PREVIOUS = "last.ckpt", "previous.ckpt"
BAD_BATCHES = "bad_batches.jsonl"
OCCUPIED = "another process is training there; wait for it, end it, or choose another '--out'"
_ALL = (CONFIG, "metrics.*", "*.safetensors", CHECKPOINT, PREVIOUS, BAD_BATCHES, SKIPPED)


def epoch_file(epoch: int | str) -> str:
    """Name the model file of an epoch, which files count from one; ``*`` stands for all epochs."""
    return f"epoch-{epoch + 1:06d}.safetensors" if isinstance(epoch, int) else f"epoch-{epoch}.safetensors"


def clear_leftovers(run_dir: Path) -> None:
    """Remove half-written files of a process that was killed."""
    if run_dir.is_dir():
        remove_leftovers(run_dir, _ALL)


def write_config(run_dir: Path, config: TrainConfig) -> None:
    """Leave the configuration with the run."""
    with atomic_file(run_dir / CONFIG) as path:
        path.write_text(
            to_yaml(config, "The configuration of this run; 'molflt train' with it repeats the run."),
            encoding="utf-8",
        )


def check_run_dir(run_dir: Path, config: TrainConfig, resume: bool) -> None:
    """Check that the directory is free, or holds this very run.

    Raises:
        InputError: it does not.
    """
    saved = run_dir / CONFIG
    if saved.exists():
        if not resume:
            raise InputError(
                f"{run_dir}: holds a run already; continue it with '--resume auto' or choose another '--out'"
            )
        before, now = load_config(saved).model_dump(), config.model_dump()
        # Where data are kept changes nothing.
        before["data"]["cache"] = now["data"]["cache"]
        if now["trainer"]["max_epochs"] > before["trainer"]["max_epochs"]:
            # A run may be made longer: from here on, its schedule is that of the longer run.
            before["trainer"]["max_epochs"] = now["trainer"]["max_epochs"]
        if changed := [f"{key}: {then} then, {new} now" for key, then, new in differences(before, now)]:
            raise InputError(
                f"{saved}: the run was started with another configuration ({'; '.join(changed)}); resume with the "
                "same one, or choose another '--out'"
            )
    elif run_dir.exists() and not all(map(is_leftover, run_dir.iterdir())):
        raise InputError(f"{run_dir}: is not empty and not a run of molflt; choose another '--out'")


def differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted keys, with both values, in which nested mappings differ."""
    for key in dict.fromkeys([*one, *other]):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from differences(a, b, f"{prefix}{key}.")
        elif a != b:
            yield prefix + key, a, b


def check_same_beginning(run_dir: Path, metadata: ModelMetadata) -> None:
    """Check that a run can be continued: that data and trained model are still the same.

    Raises:
        InputError: they are not.
    """
    last = run_dir / LAST
    if not last.exists():
        return
    try:
        begun = read_metadata(last)
    except InputError:
        # It will be written again; a damaged file that would not be is refused later.
        return
    then, now = begun.fine_tuned_from, metadata.fine_tuned_from
    for path, same in (
        (metadata.training_data.path, begun.training_data.fingerprint == metadata.training_data.fingerprint),
        (now.model if now else "", (then and then.fingerprint) == (now and now.fingerprint)),
    ):
        if not same:
            raise InputError(
                f"{run_dir}: {path} has changed since the run was started; restore it, or choose another '--out'"
            )


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
                # Before its predecessor moves: whatever fails up to here leaves last.ckpt where it is.
                os.fsync(handle.fileno())
            if path.exists():
                os.replace(path, path.with_name(PREVIOUS))


def find_checkpoint(run_dir: Path) -> tuple[Path | None, list[Path]]:
    """Find where to continue from.

    Returns:
        The latest checkpoint that can be read, or None if there is none; and the later ones that cannot be read.

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


def read_records(run_dir: Path) -> list[dict[str, Any]]:
    """Read the metrics of every validated epoch, oldest first; an empty list before the first."""
    path = run_dir / METRICS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def write_records(run_dir: Path, records: list[dict[str, Any]]) -> None:
    """Write ``metrics.jsonl`` and ``metrics.csv``, which hold the same."""
    with atomic_file(run_dir / METRICS) as path:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    names = list(dict.fromkeys(name for record in records for name in record))
    with atomic_file(run_dir / "metrics.csv") as path, open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=names)
        writer.writeheader()
        writer.writerows(records)


def record_bad_batch(run_dir: Path, structures: dict[str, list[str] | Tensor | None], **about: int | str) -> Path:
    """Append a line on a batch whose loss or gradient is not a number, and return the file.

    ``structures`` holds names, numbers and energies of each, ``about`` first the epoch, counted from one.
    """
    columns = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in structures.items() if v is not None}
    # Energies as text: JSON has no NaN and no infinity.
    columns |= {key: list(map(str, columns[key])) for key in ("predicted", "label")}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path = run_dir / BAD_BATCHES
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(json.dumps({**about, "structures": rows}) + "\n")
    return path


def forget_bad_batches(run_dir: Path, epoch: int) -> None:
    """Drop the lines on epochs from ``epoch`` on, counted from one, and a torn line."""
    path = run_dir / BAD_BATCHES
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        begun = ((line, re.match(r'\{"epoch": (\d+),.*\}$', line)) for line in lines)
        kept = [f"{line}\n" for line, found in begun if found and int(found[1]) < epoch]
        with atomic_file(path) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")
