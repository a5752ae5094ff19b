"""Files that are either complete or absent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from uuid import uuid4

from molflt.errors import naming


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; move it there on success, remove it on failure.

    The file is flushed to disk before it takes its name, so that a crash leaves the old file or the new one. A
    process that is killed leaves the temporary file as well: :func:`remove_leftovers`.

    Raises:
        OSError: the system refuses; it names the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays: several writers choose the format by it.
    temporary = path.with_name(f".{path.stem}.{uuid4().hex[:8]}.partial{path.suffix}")
    try:
        with naming(path, instead_of=temporary):
            yield temporary
            with open(temporary, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Whether a file is what a killed process left of an :func:`atomic_file`."""
    return fnmatch(path.name, ".*.????????.partial*")


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed processes left of files.

    Args:
        folder: where nobody else is writing these files.
        names: of the files, as patterns.
    """
    for name in names:
        pattern = Path(name)
        for path in folder.glob(f".{pattern.stem}.????????.partial{pattern.suffix}"):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable, on platforms that can open a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
