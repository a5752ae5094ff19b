"""Atomic writing of LMDB files in OC20's layout, from records or structures of any kind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import torch

from molflt.data.dataset import StructureDataset, fingerprint
from molflt.data.extras import extra_of
from molflt.data.oc20.lmdb import close_readonly
from molflt.data.open import STANDARD_INPUT, paths_behind, resolve_inputs
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.record import to_record
from molflt.data.text import Notes
from molflt.errors import InputError
from molflt.files import sole_writer, sync_folder
from molflt.terminal_text import holds_text, printable

_PER_COMMIT = 256
_FIRST_MAP_SIZE = 16 << 20
_DONE, _SOURCE = b"molflt:done", b"molflt:source"
"""Keys of an unfinished file, removed before the file gets its name."""


def write_lmdb(
    path: str | os.PathLike[str],
    records: Iterable[Mapping[str, Any]],
    total: int | None = None,
    resume: bool = True,
    progress: bool | None = None,
    *,
    overwrite: bool = False,
    source: str = "",
) -> int:
    """Write records to an LMDB in OC20's layout: pickled dicts under "0", "1", ... and a length.

    The file grows as ``PATH.partial`` and gets its name when it is complete and on disk. A partial file from an
    interrupted run of the same source is continued: a sequence is entered at the right index, other iterables are
    advanced. A partial file from another source is discarded.

    Args:
        path: the file to make.
        records: mappings of text to NumPy arrays, tensors, numbers and text.
        total: number of records; by default the length of a sequence.
        resume: continue a partial file; if False, discard it.
        progress: show a bar; None shows it on a terminal only.
        overwrite: replace an existing file.
        source: description of the records' origin (for instance ``sources.fingerprint``), which decides whether a
            partial file may be continued; the first record and the total are always compared.

    Returns:
        The number of records in the file.

    Raises:
        InputError: the file exists, another process is writing it, a record holds anything but numbers and text,
            there are no records, or not as many as ``total``.
        OSError: the system refuses: no room, no permission. Committed records stay, to be continued.
    """
    final = Path(path)
    if not final.parent.is_dir():
        raise InputError(f"{final.parent}: no such folder")
    with sole_writer(final):
        if final.exists() and not overwrite:
            raise InputError(f"{final}: exists already; choose another name or give --overwrite")
        return _write(final, records, total, resume, progress, source)


def _write(
    final: Path,
    records: Iterable[Mapping[str, Any]],
    total: int | None,
    resume: bool,
    progress: bool | None,
    source: str,
) -> int:
    partial = final.with_name(f"{final.name}.partial")
    if total is None and isinstance(records, Sequence):
        total = len(records)
    if isinstance(records, Sequence):
        first = records[0] if len(records) else None
    elif (first := next(iterator := iter(records), None)) is not None:
        records = chain([first], iterator)
    if first is None:
        raise InputError(f"{final}: there are no records to write")
    identity = _identity(source, total, first)
    if not resume:
        partial.unlink(missing_ok=True)
    done = _committed(partial, identity)
    if done is None:
        partial.unlink(missing_ok=True)
        done = 0
    with contextlib.closing(_Writer(partial)) as writer:
        rest = _from(records, done)
        numbered = enumerate(track(rest, f"writing {final.name}", total, done, progress), start=done)
        while chunk := list(islice(numbered, _PER_COMMIT)):
            items = [(str(k).encode(), _pickled(record, f"{final}: record {k}")) for k, record in chunk]
            done += len(items)
            writer.commit([*items, (_SOURCE, identity), (_DONE, str(done).encode())])
        if total is not None and done != total:
            raise InputError(f"{final}: {done} records came, {total} were announced; the file is not finished")
        writer.commit([(b"length", pickle.dumps(done, protocol=4))], remove=(_SOURCE, _DONE))
    # this process may have the file that is being replaced open
    close_readonly(final)
    os.replace(partial, final)
    sync_folder(final.parent)
    return done


def convert(
    inputs: Sequence[str], target: str | os.PathLike[str], overwrite: bool = False, options: ReadOptions = DEFAULT
) -> int:
    """Write structures to an LMDB, continuing an interrupted conversion of the same inputs.

    Inputs and options are those of :func:`molflt.data.open.resolve_inputs`; the label is written in eV under its
    target's name. Charges are kept whatever the options say, and models without charges refuse them. A warning names
    data that are lost.

    Returns:
        Number of structures in the file.

    Raises:
        InputError: unreadable inputs, or a target that exists.
    """
    labels = options.labels
    reading = [options.tags, "" if labels is None else labels.model_dump_json()]
    reading += [*["unconverged"] * options.accept_unconverged, *["pairs"] * options.pairs]
    # Standard input cannot be read again: a file begun from it is never continued.
    once = [str(uuid.uuid4())] if STANDARD_INPUT in inputs else []
    source = "\n".join([*inputs, *reading, *map(fingerprint, chain(*map(paths_behind, inputs))), *once])
    structures = resolve_inputs(inputs, replace(options, charges=True, slabs=True))
    notes = Notes(os.fspath(target))
    count = write_lmdb(target, _Records(structures, notes), overwrite=overwrite, source=source)
    notes.give()
    return count


class _Records(Sequence[dict[str, Any]]):
    """Records of a data set, made on access, so that a conversion can continue at any index."""

    def __init__(self, structures: StructureDataset, notes: Notes) -> None:
        self._structures, self._notes = structures, notes
        self._noted: set[int] = set()

    def __len__(self) -> int:
        return len(self._structures)

    def __getitem__(self, index: Any) -> Any:
        data = self._structures[index]
        # The first is read twice, to identify the source.
        if index not in self._noted and (left := extra_of(data).left):
            self._noted.add(index)
            for what in left:
                self._notes.add(f"an LMDB holds numbers and text, and has no place for {what}", data.name)
        return to_record(data)


class _Writer:
    """Growing LMDB file."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size if path.exists() else 0
        map_size = max(_FIRST_MAP_SIZE, 2 * size)
        try:
            # LMDB maps map_size but on disk the file is only as long as its pages; nobody else writes (sole_writer)
            self._environment = lmdb.open(os.fsencode(path), subdir=False, map_size=map_size, lock=False)
        except (lmdb.Error, OSError) as error:
            raise _refused(error, path) from error
        self._path, self._map_size = path, map_size

    def commit(self, items: Sequence[tuple[bytes, bytes]], remove: Sequence[bytes] = ()) -> None:
        """Write all items or none, durably, enlarging the map as needed."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in items:
                        transaction.put(key, value)
                    for key in remove:
                        transaction.delete(key)
                return
            except lmdb.MapFullError:
                self._map_size *= 2
                self._environment.set_mapsize(self._map_size)
            except lmdb.Error as error:
                raise _refused(error, self._path) from error

    def close(self) -> None:
        try:
            self._environment.sync(True)
        except lmdb.Error as error:
            raise _refused(error, self._path) from error
        finally:
            self._environment.close()


def _refused(error: Exception, path: Path) -> OSError:
    """Convert one of LMDB's own errors to an error of the system."""
    if isinstance(error, OSError):
        return error
    text = str(error)
    code = next((code for code in errno.errorcode if text.endswith(os.strerror(code))), errno.EIO)
    return OSError(code, os.strerror(code), os.fspath(path))


def _from(records: Iterable[Mapping[str, Any]], start: int) -> Iterator[Mapping[str, Any]]:
    if isinstance(records, Sequence):
        # by index: iterating would rebuild the records that are already in the file
        return (records[k] for k in range(start, len(records)))
    return islice(iter(records), start, None)


def _committed(partial: Path, identity: bytes) -> int | None:
    """Number of this source's records in a partial file; None if absent, damaged or of another."""
    if not partial.is_file() or partial.stat().st_size == 0:
        return None
    try:
        with (
            lmdb.open(os.fsencode(partial), subdir=False, readonly=True, lock=False) as environment,
            environment.begin() as transaction,
        ):
            if partial.stat().st_size < (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]:
                return None
            done = transaction.get(_DONE)
            same = transaction.get(_SOURCE) == identity
    except (lmdb.Error, OSError):
        return None
    return int(done) if same and done is not None else None


def _plain(value: object, where: str) -> Any:
    """Reduce a value to numbers, valid text and arrays, which can be read without trust."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        if value.dtype.kind == "U" and not holds_text(value.astype(value.dtype.newbyteorder("="))):
            raise InputError(f"{where} holds text with characters beyond Unicode; correct it")
        return np.ascontiguousarray(value).reshape(value.shape)
    if isinstance(value, str):
        return printable(value, keep="\n\t")
    if isinstance(value, bool | int | float):
        return value
    raise InputError(f"{where} holds {type(value).__name__}; expected arrays, numbers or text")


def _pickled(record: Mapping[str, Any], where: str) -> bytes:
    plain = {key: _plain(value, f"{where}, field '{key}'") for key, value in record.items()}
    return pickle.dumps(plain, protocol=4)


def _identity(source: str, total: int | None, first: Mapping[str, Any]) -> bytes:
    # not the hash of the pickle, which depends on object identities
    digest = hashlib.sha256(f"{source}\n{total}\n".encode("utf-8", "surrogatepass"))
    for key in sorted(first):
        value = np.asarray(_plain(first[key], f"record 0, field '{key}'"))
        digest.update(f"{key} {value.dtype.str} {value.shape}\n".encode() + value.tobytes())
    return digest.hexdigest().encode()
