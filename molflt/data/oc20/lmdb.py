"""OC20 LMDB files as data sets of structures, and their read-only environments."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from torch_geometric.data import Data

from molflt.data.dataset import refuse_unusable
from molflt.data.oc20.unpickle import load_record, load_value
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.record import RECORD_KEYS, STATES, to_data
from molflt.errors import InputError, ordinary_file
from molflt.files import atomic_file

_CACHE_SIZES_FROM = 20_000
"""Most records whose sizes are not stored next to the file."""


class LmdbDataset:
    """Structures of an OC20 LMDB: a file, or a folder that holds ``data.mdb``.

    The database is opened on first use, read-only and without locks, once in every process, so the object may be
    passed to DataLoader workers by fork or spawn. Records are converted by :func:`molflt.data.record.to_data`.

    Args:
        path: the file or folder; for a folder of shards see :func:`molflt.data.open.open_dataset`.
        options: how to read, see :class:`molflt.data.reading.ReadOptions`.

    Raises:
        InputError: nothing there, not an LMDB, empty, truncated; on access: a missing or unreadable record.
    """

    def __init__(self, path: str | os.PathLike[str], options: ReadOptions = DEFAULT) -> None:
        self.path = Path(path)
        self._options = options
        labels = options.labels
        own = () if labels is None else filter(None, (labels.label, labels.force_label))
        self._wanted = RECORD_KEYS.union(STATES, own)
        self._n_atoms: np.ndarray | None = None
        # None: the keys are 0, 1, ..., length - 1
        self._keys: Sequence[bytes] | None
        self._length, self._keys = self._index()
        if self._length == 0:
            raise InputError(f"{path}: the database holds no records")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Data:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path}: index {index} is out of range for {len(self)} structures")
        where, raw = self._raw(position)
        return self._structure(raw, where)

    def __iter__(self) -> Iterator[Data]:
        return (self[index] for index in range(len(self)))

    @property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64: atoms of every structure; read once, then stored.

        For a large file the numbers are stored next to it (``FILE.natoms``) if the folder is writable.
        """
        if self._n_atoms is not None:
            return self._n_atoms
        keep = len(self) > _CACHE_SIZES_FROM
        sizes = self._kept_sizes() if keep else None
        if sizes is None:
            indices = track(range(len(self)), f"sizes of the structures in {self.path.name}", total=len(self))
            sizes = np.fromiter((self._count(index) for index in indices), dtype=np.int64)
            if keep:
                self._keep_sizes(sizes)
        self._n_atoms = sizes
        return sizes

    def _structure(self, raw: bytes, where: str) -> Data:
        return to_data(load_record(raw, where, only=self._wanted), where, self._options)

    def _raw(self, index: int) -> tuple[str, bytes]:
        key = str(index).encode() if self._keys is None else self._keys[index]
        where = f"{self.path}#{key.decode()}"
        try:
            with open_readonly(self.path).begin() as transaction:
                raw = transaction.get(key)
        except lmdb.Error as error:
            raise InputError(f"{where}: the database is damaged: {error}") from error
        if raw is None:
            raise InputError(f"{where}: the record is missing; download or convert the file again")
        return where, raw

    def _count(self, index: int) -> int:
        try:
            return self._stored_count(index)
        except InputError as error:
            if self._options.on_bad == "stop":
                refuse_unusable(self, str(self.path), {index: error})
        return 1

    def _stored_count(self, index: int) -> int:
        where, raw = self._raw(index)
        record = load_record(raw, where, only=("natoms",))
        if not record:
            record = load_record(raw, where, only=("atomic_numbers",))
        natoms: Any = record.get("natoms", np.size(record.get("atomic_numbers", ())))
        try:
            count = int(natoms)
        except (TypeError, ValueError, OverflowError):
            count = 0
        if not 1 <= count < 1 << 62:
            raise InputError(f"{where}: the record does not say how many atoms it has")
        return count

    def _index(self) -> tuple[int, list[bytes] | None]:
        environment = open_readonly(self.path)
        try:
            with environment.begin() as transaction:
                stored = transaction.get(b"length")
                length = None if stored is None else _length(stored, f"{self.path}#length")
                if length is not None and environment.stat()["entries"] > length:
                    ends = (0, length - 1) if length else ()
                    if all(transaction.get(str(end).encode()) is not None for end in ends):
                        return length, None
                keys = [key for key in transaction.cursor().iternext(values=False) if key.isdigit()]
        except lmdb.Error as error:
            raise InputError(f"{self.path}: the database is damaged: {error}") from error
        if length is not None and length != len(keys):
            raise InputError(
                f"{self.path}: 'length' says {length}, but there are {len(keys)} records; "
                "download or convert the file again"
            )
        return len(keys), sorted(keys, key=int)

    @property
    def _sizes_file(self) -> Path:
        return self.path.with_name(self.path.name + ".natoms")

    def _stamp(self) -> np.ndarray:
        status = lmdb_file(self.path).stat()
        return np.array([status.st_size, status.st_mtime_ns], dtype="<i8")

    def _kept_sizes(self) -> np.ndarray | None:
        """Read the sizes stored beside the file; None if absent, damaged or of another file."""
        with contextlib.suppress(OSError):
            if self._sizes_file.stat().st_size == 8 * (2 + len(self)):
                stored = np.frombuffer(self._sizes_file.read_bytes(), dtype="<i8")
                if np.array_equal(stored[:2], self._stamp()):
                    return stored[2:].astype(np.int64)
        return None

    def _keep_sizes(self, sizes: np.ndarray) -> None:
        # a read-only folder is not an error: the sizes are counted again next time
        with contextlib.suppress(OSError), atomic_file(self._sizes_file) as temporary:
            temporary.write_bytes(np.concatenate([self._stamp(), sizes]).astype("<i8").tobytes())


def _length(raw: bytes, where: str) -> int:
    """Read the number of records, which OC20 pickles and others write as decimal text."""
    # Python refuses to read numbers of several thousand digits
    value = int(raw) if raw.isdigit() and len(raw) < 20 else load_value(raw, where)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise InputError(f"{where}: not a number of records")
    return value


@dataclass
class _Opened:
    pid: int
    identity: tuple[int, int]
    environment: Any


_OPENED: dict[str, _Opened] = {}
"""Environments by real path. LMDB refuses to open a file twice in one process, and data sets may share a file."""


def lmdb_file(path: Path) -> Path:
    """Return the file that holds the data: the path, or ``data.mdb`` in a folder."""
    return path / "data.mdb" if path.is_dir() else path


_LOCK = threading.Lock()
"""LMDB refuses to open a file twice in one process."""


def _new_lock() -> None:
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    # Another thread of the parent may hold it.
    os.register_at_fork(after_in_child=_new_lock)


def open_readonly(path: Path) -> Any:
    """Open an LMDB for reading, or return this process's open environment for it.

    An environment inherited through a fork is closed and reopened: a child must not use LMDB's environments.

    Raises:
        InputError: no such file, empty, not an LMDB, or truncated (reading past its end would kill the process).
    """
    with _LOCK:
        return _open(path)


def _open(path: Path) -> Any:
    file = lmdb_file(path)
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    key, identity = os.path.realpath(file), (status.st_dev, status.st_ino)
    opened = _OPENED.get(key)
    if opened is not None:
        if opened.pid == os.getpid() and opened.identity == identity:
            return opened.environment
        # inherited, or the file has been replaced since
        opened.environment.close()
        del _OPENED[key]
    if ordinary_file(file) and status.st_size == 0:
        raise InputError(f"{path}: the file is empty, expected an LMDB database")
    environment = None
    try:
        environment = lmdb.open(
            os.fsencode(path),
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
    """Close this process's environment for a path, if any; a later read reopens it."""
    with _LOCK:
        opened = _OPENED.pop(os.path.realpath(lmdb_file(path)), None)
        if opened is not None:
            opened.environment.close()
