"""Shards of a prepared set as they are written: see :mod:`molflt.data.prepared`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from molflt import vocabulary
from molflt.data.dataset import StructureDataset
from molflt.data.extras import Extra, encode
from molflt.data.prepared import (
    BLOCK,
    FACT,
    OPTIONAL,
    PER_ATOM,
    PER_STRUCTURE,
    ROWS,
    WIDE,
    checksum,
    facts_checksum,
    signed,
)
from molflt.data.quality.facts import FactRows
from molflt.errors import DamagedError, InputError, naming
from molflt.files import atomic_file, sync_folder

STATED = "shard.json"
_RARE = 0.2
"""Largest share of rows kept beside those of float32."""


class ShardRows:
    """Structures of a shard, one after the other."""

    def __init__(self, facts: FactRows) -> None:
        self.facts = facts
        self._sizes: list[int] = []
        self._present: list[int] = []
        self._texts: list[bytes] = []
        self._fields: dict[str, list[np.ndarray]] = {name: [] for name in (*PER_ATOM, *PER_STRUCTURE)}

    def read(self, dataset: StructureDataset, index: int) -> None:
        """Take in a structure, or the reason why it cannot be used."""
        try:
            data = dataset[index]
            self.facts.add(data, index)
        except DamagedError:
            raise
        except InputError as error:
            self.facts.add_unusable()
            self._add({"error": str(error), "record": error.record, "info": dict(error.info)}, 0, {})
            return
        everything = data.to_dict()
        fields = {name: everything[name].numpy() for name in self._fields if name in everything}
        texts = {key: value for key, value in everything.items() if key not in vocabulary.FIELDS}
        del texts["num_nodes"]
        if "conformers" in everything:
            texts["conformers"] = data.conformers.numpy()
        if isinstance(texts.get("extra"), Extra):
            texts["extra"] = texts["extra"].encoded()
        self._add(texts, int(data.num_nodes), fields)

    def _add(self, texts: Mapping[str, Any], n_atoms: int, fields: Mapping[str, np.ndarray]) -> None:
        self._sizes.append(n_atoms)
        self._present.append(sum((name in fields) << k for k, name in enumerate(OPTIONAL)))
        self._texts.append(encode(texts).encode())
        for name, rows in self._fields.items():
            shape = [n_atoms if size == "n_atoms" else int(size) for size in vocabulary.FIELDS[name].shape]
            rows.append(fields[name] if name in fields else np.zeros(shape))

    def arrays(self) -> dict[str, np.ndarray]:
        """All fields as they are kept."""
        found = {
            "starts": np.array([0, *accumulate(self._sizes)]),
            "present": np.array(self._present, dtype=np.uint8),
            "text": np.frombuffer(b"".join(self._texts), dtype=np.uint8),
            "text_starts": np.array([0, *accumulate(map(len, self._texts))]),
        }
        for name, rows in self._fields.items():
            if name not in OPTIONAL or (found["present"] >> OPTIONAL.index(name) & 1).any():
                values = np.concatenate(rows)
                dtype = {**PER_ATOM, **PER_STRUCTURE}[name]
                found |= {name: values.astype(dtype)} if dtype else _narrow(name, values)
        return found


def _narrow(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Keep floats as float32 where that is exact, and the rows of others beside them; or all as they are."""
    with np.errstate(over="ignore"):
        small = values.astype(np.float32)
    wide = np.flatnonzero((small != values).any(axis=tuple(range(1, values.ndim))))
    if len(wide) > _RARE * len(values):
        return {name: values}
    return {name: small, **({f"{name}.{ROWS}": wide, f"{name}.{WIDE}": values[wide]} if len(wide) else {})}


def write_shard(folder: Path, name: str, rows: ShardRows) -> None:
    """Write a shard, which appears complete or not at all."""
    arrays, facts = rows.arrays(), rows.facts.facts()
    n = len(arrays["present"])
    stated = {
        "name": name,
        "structures": n,
        "atoms": int(arrays["starts"][-1]),
        "arrays": sorted(arrays),
        "checksums": [checksum(arrays, first, min(first + BLOCK, n)) for first in range(0, n, BLOCK)],
        "facts": facts_checksum(facts),
    }
    arrays |= {f"{FACT}{column}": values for column, values in facts._asdict().items()}
    temporary = folder / f".{name}.{uuid4().hex[:8]}.partial"
    try:
        temporary.mkdir()
        for column, values in arrays.items():
            _save(temporary / f"{column}.npy", values, folder)
        with atomic_file(temporary / STATED) as path:
            path.write_text(signed(stated), encoding="utf-8")
        os.rename(temporary, folder / name)
        sync_folder(folder)
    except OSError:
        # Where there are no locks, another process may have been sooner.
        if not (folder / name).is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _save(file: Path, values: np.ndarray, called: Path) -> None:
    with naming(called), open(file, "wb") as handle:
        np.lib.format.write_array_header_1_0(handle, np.lib.format.header_data_from_array_1_0(values))
        handle.write(values.tobytes())
        handle.flush()
        os.fsync(handle.fileno())
