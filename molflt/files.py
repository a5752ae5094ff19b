"""Atomic files, locks that end with the process that holds them, and data of the package."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from uuid import uuid4

from filelock import lock_descriptor

from molflt.errors import InputError, naming

BUNDLED_PREFIX = "bundled:"
_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "data_sets", _PACKAGE.parent / "data")
"""A clone has the bundled data in its folder ``data``, a wheel in ``molflt/data_sets``."""


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
        # On a read-only disk this fails even without such a file, and says less than the first error.
        with contextlib.suppress(OSError):
            temporary.unlink()


def is_leftover(path: Path) -> bool:
    """True if a file was left by a killed process in :func:`atomic_file`."""
    return fnmatch(path.name, ".*.????????.partial*")


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove temporary files left by killed processes.

    Args:
        folder: a folder in which nobody else is writing these files.
        names: of the files, as patterns.
    """
    for name in names:
        pattern = Path(name)
        for path in folder.glob(f".{pattern.stem}.????????.partial{pattern.suffix}"):
            path.unlink(missing_ok=True)


def standard_input(most: int = -1, what: str = "text") -> bytes:
    """Read all bytes piped into the command.

    Args:
        most: bytes to read; all by default.
        what: expected content, for messages.

    Raises:
        InputError: standard input is closed.
        OSError: it cannot be read, for example because it is a folder.
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


def lock(descriptor: int, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed. No lock file is made.

    Args:
        descriptor: of the file or folder.
        wait: until no other process holds the lock.

    Returns:
        False if another process holds the lock. True also on file systems that have no locks.
    """
    try:
        return lock_descriptor(descriptor, blocking=wait)
    except OSError:
        return True


@contextmanager
def alone(folder: Path, other: str) -> Iterator[None]:
    """Keep a second process from writing to the files of a folder, made here if missing.

    A folder that was made is removed at the end if it is still empty.

    Args:
        folder: to write to.
        other: what another process is doing there, and the remedy.

    Raises:
        InputError: another process is at work there (never on Windows, where a folder cannot be opened), or it is a
            file.
        OSError: the system refuses.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose another folder")
    with _folder(folder) as make:
        handle = None if sys.platform == "win32" else _locked(folder, os.O_RDONLY, make)
        try:
            if handle is None and sys.platform != "win32":
                raise InputError(f"{folder}: {other}")
            yield
        finally:
            if handle is not None:
                os.close(handle)


@contextmanager
def sole_writer(path: str | Path, part: str = "", wait: bool = False) -> Iterator[None]:
    """Keep a second process from writing a file until this one has written it.

    The folder is made if it is missing. Meanwhile there is an empty hidden file beside ``path``; one left by a killed
    process does no harm.

    Args:
        path: of the file.
        part: the part of it, if processes may share it.
        wait: for another process to end, rather than to refuse.

    Raises:
        InputError: another process is writing it.
        OSError: the system refuses; it names the file.
    """
    path = Path(path)
    claim = path.with_name(f".{'.'.join(filter(None, (path.name, part)))}.lock")
    with _folder(path.parent) as make:
        with naming(path, instead_of=claim):
            handle = _locked(claim, os.O_RDWR | os.O_CREAT, make, wait)
        if handle is None:
            raise InputError(f"{path}: another process is writing it; wait for it, end it, or choose another name")
        try:
            yield
        finally:
            # Before the lock is released: a waiting process notices that the file is gone, and makes another.
            with contextlib.suppress(OSError):
                claim.unlink()
            os.close(handle)


@contextmanager
def _folder(folder: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that makes a folder; at the end, remove what it made and is still empty."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield lambda: folder.mkdir(parents=True, exist_ok=True)
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()


def _locked(path: Path, flags: int, make_folder: Callable[[], None], wait: bool = False) -> int | None:
    """Open and lock a file, even if others remove and remake it; None if it is locked."""
    left = 100
    while True:
        try:
            make_folder()
            handle = os.open(path, flags, 0o666)
        except (FileNotFoundError, FileExistsError):
            # Removed in the meantime, perhaps repeatedly; but there are places where nothing can be made.
            left -= 1
            if left:
                continue
            raise
        if not lock(handle, wait):
            os.close(handle)
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)


def resolve_path(path: str) -> Path:
    """Turn ``bundled:NAME`` into a path of this installation; leave other paths as they are.

    Raises:
        InputError: there is no such file among the bundled data.
    """
    if not path.startswith(BUNDLED_PREFIX):
        return Path(path)
    folder = next((folder for folder in _FOLDERS if (folder / "fg").is_dir()), None)
    if folder is None:
        raise InputError(
            f"{path}: this installation has no bundled data (there is neither {' nor '.join(map(str, _FOLDERS))}); "
            "install molflt again, from its wheel or with 'pip install -e .' from a clone"
        )
    found = folder / path.removeprefix(BUNDLED_PREFIX)
    if not found.exists():
        names = sorted(f"{BUNDLED_PREFIX}{file.relative_to(folder).as_posix()}" for file in folder.glob("*/*.lmdb"))
        raise InputError(f"{path}: no such file in {folder}; there are {', '.join(names)}")
    return found
