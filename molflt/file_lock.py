"""Locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molflt.errors import InputError

if sys.platform != "win32":
    import fcntl


def lock(descriptor: int) -> bool:
    """Lock an open file or folder, without waiting, until it is closed.

    Returns:
        False if another process holds the lock. True also where there are no locks: on Windows, and on file systems
        without them.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def alone(folder: Path, other: str) -> Iterator[None]:
    """Keep a second process from writing to the files of a folder.

    Args:
        folder: which must exist.
        other: what another process is doing there, and what to do about it.

    Raises:
        InputError: another process is.
    """
    if sys.platform == "win32":
        # A folder cannot be opened there.
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not lock(handle):
            raise InputError(f"{folder}: {other}")
        yield
    finally:
        os.close(handle)
