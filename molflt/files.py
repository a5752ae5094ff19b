"""Files that are complete or absent, and locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from uuid import uuid4

from filelock import lock_descriptor

from molflt.errors import InputError, naming


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
        # On a disk that is read-only this fails even where there is no such file, and says less than the first error.
        with contextlib.suppress(OSError):
            temporary.unlink()


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


def standard_input(most: int = -1, what: str = "text") -> bytes:
    """What is piped into the command, whatever its bytes are.

    Args:
        most: bytes to read; all by default.
        what: should be piped into it, for messages.

    Raises:
        InputError: nothing is; standard input is closed.
        OSError: it cannot be read, as where it is a folder.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(f"standard input is closed; pipe {what} into it")
    with naming("standard input"):
        if (raw := getattr(sys.stdin, "buffer", None)) is not None:
            return bytes(raw.read(most))
        return sys.stdin.read(most).encode("utf-8", "surrogateescape")


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable, on platforms that can open a folder."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def lock(descriptor: int) -> bool:
    """Lock an open file or folder, without waiting, until it is closed. No lock file is made.

    Returns:
        False if another process holds the lock. True also on file systems that have no locks.
    """
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:
        return True


@contextmanager
def alone(folder: Path, other: str) -> Iterator[None]:
    """Keep a second process from writing to the files of a folder.

    Args:
        folder: which must exist.
        other: what another process is doing there, and what to do about it.

    Raises:
        InputError: another process is at work there. Never on Windows, where a folder cannot be opened.
    """
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not lock(handle):
            raise InputError(f"{folder}: {other}")
        yield
    finally:
        os.close(handle)
