"""Preparation of a data set: read, checked and examined once, in parallel, for :mod:`molflt.data.prepared`.

Work is divided into parts, each of which makes one shard: 8,000 records of a database, or another file. A process
claims a part by a lock, writes its shard under another name, and renames it when it is complete and on disk. So
processes of one command, of several, or of a distributed run share the work; and after an interruption what is there
is not done again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from molflt.data.dataset import MANIFEST, UNFINISHED, data_files, fingerprint, is_prepared
from molflt.data.open import STANDARD_INPUT, is_database, open_dataset, paths_behind, pieces, resolve_inputs
from molflt.data.prepared import VERSION, PreparedSet, Shard, read_signed, signed, stated_options
from molflt.data.progress import track
from molflt.data.quality.domain import sample
from molflt.data.quality.facts import FactRows, Facts, domain_of
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.shards import STATED, ShardRows, write_shard
from molflt.errors import InputError
from molflt.files import atomic_file, remove_leftovers, sole_writer

SHARD = 8_000
"""Structures of a shard made of a database."""


@dataclass(frozen=True)
class Part:
    """Structures ``start`` to ``stop`` of some inputs, or all; they make one shard."""

    inputs: tuple[str, ...]
    start: int = 0
    stop: int | None = None


def parts_of(inputs: Sequence[str], options: ReadOptions) -> list[Part]:
    """Divide inputs into parts; files that may belong together stay together.

    Raises:
        InputError: as :func:`molflt.data.open.resolve_inputs`; or standard input, which cannot be read again.
    """
    if STANDARD_INPUT in inputs:
        raise InputError("-: standard input cannot be read by several processes; save it to a file")
    found = [one for text in inputs for path in paths_behind(text) or [text] for one in pieces(path, options)]
    if not found or (options.makes_pairs and not all(map(is_database, found))):
        return [Part(tuple(inputs))]
    parts = []
    for one in found:
        if not is_database(one):
            parts.append(Part((one,)))
            continue
        n = len(open_dataset(one, options))
        parts += [Part((one,), start, min(start + SHARD, n)) for start in range(0, n, SHARD)]
    return parts


def _settled(options: ReadOptions) -> ReadOptions:
    """Options of a preparation: all that can be decided later is left open."""
    return replace(options, charges=True, slabs=True, on_bad="skip")


def identity(inputs: Sequence[str], options: ReadOptions) -> tuple[str, list[str]]:
    """Identity of a preparation (layout, options, content and times of the data), and fingerprints of the data."""
    options = _settled(options)
    paths = [path for text in inputs for path in paths_behind(text)]
    fingerprints = [fingerprint(path) for path in paths]
    stamps = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for path in paths for file in data_files(Path(path))
    ]
    labels = options.labels and options.labels.model_dump()
    names = ("conformers", "allow_charged", "accept_unconverged", "makes_pairs")
    reading = [*(getattr(options, name) for name in names), options.tags, labels]
    text = json.dumps([VERSION, list(inputs) if len(inputs) > 1 else "", fingerprints, stamps, reading])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), fingerprints


def prepare(
    inputs: Sequence[str],
    folder: Path,
    options: ReadOptions = DEFAULT,
    overwrite: bool = False,
    n_processes: int | None = None,
) -> PreparedSet:
    """Prepare structures, continuing an interrupted preparation; a complete one of the same data is left as it is.

    Structures that cannot be used are kept with the reason. Charges are kept whatever the options say, and models
    without charges refuse them.

    Args:
        inputs: as those of :func:`molflt.data.open.resolve_inputs`.
        folder: for the set.
        options: how to read; ``on_bad`` is ignored.
        overwrite: replace another prepared set.
        n_processes: by default one for each core.

    Raises:
        InputError: unreadable inputs; no structure can be used; or the folder holds something else.
        OSError: the system refuses: no room, no permission. Shards that are complete stay, to be continued.
    """
    options = _settled(options)
    key, fingerprints = identity(inputs, options)
    parts = parts_of(inputs, options)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; choose another folder")
    with sole_writer(folder / UNFINISHED, wait=True):
        if not is_prepared(folder) and any(path.name[0] != "." for path in folder.iterdir()):
            raise InputError(f"{folder}: exists already and is not a prepared set; choose another folder")
        there = next((file for file in (folder / MANIFEST, folder / UNFINISHED) if file.is_file()), None)
        if there is not None and (overwrite or read_signed(there)["key"] != key):
            if not overwrite:
                raise InputError(
                    f"{folder}: holds other data, or the same in another state or read in another way; choose "
                    "another folder, or give --overwrite"
                )
            _clear(folder)
        if not (folder / MANIFEST).is_file():
            with atomic_file(folder / UNFINISHED) as path:
                path.write_text(signed({"key": key, "version": VERSION}), encoding="utf-8")
    if not (folder / MANIFEST).is_file():
        n = min(n_processes or len(os.sched_getaffinity(0)), len(parts))
        _share(parts, folder, options, n)
        content = {"key": key, "data": fingerprints, "options": stated_options(options), "version": VERSION}
        _finish(folder, len(parts), content)
    return PreparedSet(folder, options)


def _clear(folder: Path) -> None:
    """Remove a prepared set, its name first."""
    for file in (folder / MANIFEST, folder / UNFINISHED):
        file.unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and (path.name.isdigit() or path.name.endswith(".partial")):
            shutil.rmtree(path)


def _name(k: int) -> str:
    return f"{k:05d}"


def _share(parts: Sequence[Part], folder: Path, options: ReadOptions, n_processes: int) -> None:
    """Make all shards, by several processes if asked for."""
    known = [part.stop - part.start for part in parts if part.stop is not None]
    total = sum(known) if len(known) == len(parts) else None
    done = sum(n for k, n in enumerate(known) if (folder / _name(k)).is_dir()) if total else 0
    label = f"preparing {folder.name}"
    if n_processes < 2:
        for _ in track(_work(parts, folder, options), label, total, done):
            pass
        return
    # A process that inherits PyTorch needs no seconds to import it.
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)
    counter, failures = context.Value("q", done), context.SimpleQueue()
    arguments = (parts, folder, options, counter, failures, os.getpid())
    processes = [context.Process(target=_process, args=arguments, daemon=True) for _ in range(n_processes)]

    def counted() -> Iterator[int]:
        seen = done
        while any(process.is_alive() for process in processes) and failures.empty():
            time.sleep(0.05)
            yield from range(seen, counter.value)
            seen = max(seen, counter.value)

    try:
        for process in processes:
            process.start()
        for _ in track(counted(), label, total, done):
            pass
        if not failures.empty():
            raise failures.get()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise ChildProcessError(
                "a process that prepares data was killed, probably because memory ran out; repeat the command to "
                "resume"
            )
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()


def _process(
    parts: Sequence[Part], folder: Path, options: ReadOptions, counter: Any, failures: Any, parent: int
) -> None:
    try:
        for _ in _work(parts, folder, options):
            with counter.get_lock():
                counter.value += 1
            if os.getppid() != parent:
                return
    except (InputError, OSError) as error:
        failures.put(error)
    except KeyboardInterrupt:
        pass


def _work(parts: Sequence[Part], folder: Path, options: ReadOptions) -> Iterator[None]:
    """Make shards that are missing: first those that nobody is making, then those that somebody failed to make."""
    for wait in (False, True):
        for k, part in enumerate(parts):
            claimed = (folder / _name(k)).is_dir()
            try:
                if not claimed:
                    with sole_writer(folder / _name(k), wait=wait):
                        claimed = True
                        if not (folder / _name(k)).is_dir():
                            yield from _make(part, folder, _name(k), options, len(parts))
            except InputError:
                if claimed:
                    raise


def _make(part: Part, folder: Path, name: str, options: ReadOptions, n_parts: int) -> Iterator[None]:
    dataset = resolve_inputs(part.inputs, options)
    stop = len(dataset) if part.stop is None else part.stop
    # As if all parts were of this size, which those of a database are.
    rows = ShardRows(FactRows(compared=True, every=sample(n_parts * (stop - part.start))))
    for index in range(part.start, stop):
        rows.read(dataset, index)
        yield
    if stop > part.start:
        write_shard(folder, name, rows)


def _finish(folder: Path, n_parts: int, content: dict[str, Any]) -> None:
    """Write the manifest: the set is complete."""
    with sole_writer(folder / MANIFEST, wait=True):
        if (folder / MANIFEST).is_file():
            return
        names = [_name(k) for k in range(n_parts) if (folder / _name(k)).is_dir()]
        shards = [read_signed(folder / name / STATED) for name in names]
        found = [Shard(folder / shard["name"], shard) for shard in shards]
        facts = Facts.joined([shard.facts() for shard in found])
        usable = np.flatnonzero(facts.n_atoms)
        if not len(usable):
            raise InputError(f"{folder}: none of {len(facts.n_atoms)} structures can be used; the first: "
                             f"{found[0].texts(0)['error']}")  # fmt: skip
        domains = {
            kind: domain_of(facts, usable, False, kind == "element").model_dump(mode="json")
            for kind in ("element", "structure")
        }
        with atomic_file(folder / MANIFEST) as path:
            path.write_text(signed({**content, "shards": shards, "domain": domains}), encoding="utf-8")
        (folder / UNFINISHED).unlink(missing_ok=True)
        remove_leftovers(folder, [MANIFEST, UNFINISHED])
        for leftover in folder.glob(".*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        # Of processes that were killed once their shard had its name.
        for claim in folder.glob(".[0-9]*.lock"):
            claim.unlink(missing_ok=True)
