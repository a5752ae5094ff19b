"""Large data sets to train on are prepared when they are first used, beside the data or elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from molflt.data.dataset import MANIFEST, StructureDataset, data_files, is_prepared
from molflt.data.open import is_database, open_dataset
from molflt.data.prepare import identity, prepare
from molflt.data.prepared import PreparedSet
from molflt.data.progress import size_text
from molflt.data.quality.facts import FactRows
from molflt.data.reading import ReadOptions
from molflt.data.shards import ShardRows

LARGE, LARGE_BYTES = 20_000, 1 << 28
"""Records of a database, and bytes of any data, above which reading takes many seconds."""
_TRIED = 30
"""Records from which the time of a preparation is estimated."""


def open_large(
    path: Path, options: ReadOptions, cache: Path | None, say: Callable[[str], None], n_sharing: int = 1
) -> StructureDataset:
    """Open data to train on; large ones are prepared the first time, beside them or in ``cache``.

    Args:
        path: of the data.
        options: how to read.
        cache: folder for the prepared set; None: that of the data.
        say: takes lines for the user.
        n_sharing: processes of this machine that do so at once, and share the work.

    Raises:
        InputError: as :func:`molflt.data.open.open_dataset`.
        OSError: the cache cannot be written.
    """
    if not path.exists() or is_prepared(path) or not _is_large(path, options):
        return open_dataset(path, options)
    key, _ = identity([str(path)], options)
    place = path.absolute().parent if cache is None else cache
    folder = place / f"{path.name}.prepared-{key[:12]}"
    if not (folder / MANIFEST).is_file():
        if cache is None and not os.access(place, os.W_OK):
            say(
                f"{path}: read again at every start, as no prepared set can be written beside it; give --cache FOLDER"
            )
            return open_dataset(path, options)
        for other in sorted(place.glob(f"{path.name}.prepared-*")):
            if other != folder:
                say(f"{other} is of the data in another state or read in another way; it can be removed")
        say(f"{_estimate(path, options)}, once, in {folder}")
        prepare([str(path)], folder, options, n_processes=max(1, len(os.sched_getaffinity(0)) // n_sharing))
    return PreparedSet(folder, options)


def _is_large(path: Path, options: ReadOptions) -> bool:
    if is_database(str(path)) and len(open_dataset(path, options)) > LARGE:
        return True
    return sum(file.stat().st_size for file in data_files(path)) > LARGE_BYTES


def _estimate(path: Path, options: ReadOptions) -> str:
    """Announce a preparation, with its time and size if the data are a database."""
    if not is_database(str(path)):
        return f"preparing {path}"
    dataset, rows, begun = open_dataset(path, options), ShardRows(FactRows(compared=True)), time.perf_counter()
    few = range(0, len(dataset), -(-len(dataset) // _TRIED))
    for index in few:
        rows.read(dataset, index)
    n_cores, share = len(os.sched_getaffinity(0)), len(dataset) / len(few)
    minutes = max(1, round((time.perf_counter() - begun) * share / n_cores / 60))
    n_bytes = int(sum(array.nbytes for array in rows.arrays().values()) * share)
    return f"preparing {path}: {len(dataset):,} structures, about {minutes} min, {size_text(n_bytes)}"
