"""Read-only LMDB environments, one per file and process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from molflt.errors import InputError


@dataclass
class _Opened:
    pid: int
    identity: tuple[int, int]
    environment: Any


_OPENED: dict[str, _Opened] = {}
"""By real path. LMDB refuses to open a file twice in one process, and two data sets may share a file."""


def lmdb_file(path: Path) -> Path:
    """The file that holds the data: the path itself, or ``data.mdb`` in a folder-style environment."""
    return path / "data.mdb" if path.is_dir() else path


def open_readonly(path: Path) -> Any:
    """Open an LMDB for reading, or return the environment this process has open already.

    An environment inherited through a fork is closed and opened anew: LMDB's are not to be used by a child.

    Args:
        path: the file, or the folder of a folder-style environment.

    Raises:
        InputError: no such file, empty, not an LMDB, or cut short (reading past its end would kill the process).
    """
    file = lmdb_file(path)
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    key, identity = os.path.realpath(file), (status.st_dev, status.st_ino)
    opened = _OPENED.get(key)
    if opened is not None:
        if opened.pid == os.getpid() and opened.identity == identity:
            return opened.environment
        # inherited, or the file has been replaced since
        opened.environment.close()
        del _OPENED[key]
    if status.st_size == 0:
        raise InputError(f"{path}: the file is empty, expected an LMDB database")
    environment = None
    try:
        environment = lmdb.open(
            os.fspath(path),
            subdir=path.is_dir(),
            readonly=True,
            lock=False,
            readahead=False,
            meminit=False,
            max_readers=1,
        )
        needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    except (lmdb.Error, OSError) as error:
        if environment is not None:
            environment.close()
        raise InputError(f"{path}: not an LMDB database that can be read: {error}") from error
    if status.st_size < needed:
        environment.close()
        raise InputError(f"{path}: cut short: {status.st_size} bytes of {needed}; copy or convert the file again")
    _OPENED[key] = _Opened(os.getpid(), identity, environment)
    return environment


def close_readonly(path: Path) -> None:
    """Close the environment this process has open for a path, if any; a later read opens it anew."""
    opened = _OPENED.pop(os.path.realpath(lmdb_file(path)), None)
    if opened is not None:
        opened.environment.close()
