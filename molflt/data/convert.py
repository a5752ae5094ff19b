"""Structures of any kind to an LMDB in the layout of OC20."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from molflt.choices import TagConvention
from molflt.data.labels import LabelSpec
from molflt.data.lmdb_writer import write_lmdb
from molflt.data.records import to_record
from molflt.data.sources import StructureDataset, fingerprint, resolve_inputs


class _Records(Sequence[dict[str, Any]]):
    """The records of a data set, made when asked for: an interrupted conversion enters where it stopped."""

    def __init__(self, structures: StructureDataset) -> None:
        self._structures = structures

    def __len__(self) -> int:
        return len(self._structures)

    def __getitem__(self, index: Any) -> Any:
        return to_record(self._structures[index])


def convert(
    inputs: Sequence[str],
    target: str | os.PathLike[str],
    overwrite: bool = False,
    tags: TagConvention = "auto",
    labels: LabelSpec | None = None,
) -> int:
    """Write structures to an LMDB; goes on where an interrupted conversion of the same inputs stopped.

    Args:
        inputs: files, folders, globs or SMILES.
        target: the LMDB.
        overwrite: replace an existing file.
        tags: see :func:`molflt.data.ase_io.from_atoms`.
        labels: which label to read and its unit; it is written in eV under its target's name.

    Returns:
        How many structures it holds.

    Raises:
        InputError: unreadable inputs, or a target that exists.
    """
    reading = [tags, "" if labels is None else labels.model_dump_json()]
    source = "\n".join([*inputs, *reading, *(fingerprint(path) for path in inputs if Path(path).exists())])
    return write_lmdb(target, _Records(resolve_inputs(inputs, tags, labels)), overwrite=overwrite, source=source)
