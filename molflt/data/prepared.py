"""Prepared sets: flat arrays in shards that are mapped, not read, and a manifest in JSON.

A shard is a folder with a ``.npy`` file for each field, structures one after the other::

    FOLDER/manifest.json      version, key, shards with their checksums, domain
    FOLDER/00000/positions.npy, starts.npy, ...

Floats are float32 where that is exact, with the others beside them. Of a thousand structures at a time a checksum is
kept, and looked at when the first of them is read. Nothing is pickled. :mod:`molflt.data.prepare` writes such sets.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.data.dataset import MANIFEST
from molflt.data.extras import decode
from molflt.data.labels import LabelSpec
from molflt.data.quality.domain import Domain
from molflt.data.quality.facts import Facts, domain_of
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.errors import DamagedError, InputError

VERSION = 4
BLOCK = 1_000
"""Structures under one checksum."""
PER_ATOM = {
    "atomic_numbers": "u1",
    "tags": "u1",
    "fixed": "b1",
    "positions": "",
    "positions_relaxed": "",
    "forces": "",
}
"""Fields with a row for each atom, and their types on disk; of floats that is float32 where exact."""
PER_STRUCTURE = {
    "cell": "",
    "pbc": "b1",
    **dict.fromkeys(("y_init", "y_relaxed", "energy", "charge"), "f8"),
    "sid": "i8",
}
OPTIONAL = ("positions_relaxed", "forces", "y_init", "y_relaxed", "energy", "charge", "sid")
"""Fields that some structures may lack: bits of ``present``."""
ROWS, WIDE = "rows", "wide"
"""Suffixes of the numbers that float32 does not hold: their rows, and themselves."""
FACT = "fact."
_AGAIN = "prepare the data again"


def checksum(arrays: Mapping[str, np.ndarray], first: int, last: int) -> int:
    """CRC-32 of structures ``first`` to ``last`` of a shard."""
    a, b = arrays["starts"][[first, last]]
    c, d = arrays["text_starts"][[first, last]]
    found = 0
    for name, array in sorted(arrays.items()):
        field, _, suffix = name.partition(".")
        if field == "starts" or field == "text_starts":
            part = array[first : last + 1]
        elif field == "text":
            part = array[c:d]
        else:
            low, high = (a, b) if field in PER_ATOM else (first, last)
            if suffix:
                low, high = np.searchsorted(arrays[f"{field}.{ROWS}"], (low, high))
            part = array[low:high]
        found = zlib.crc32(np.ascontiguousarray(part).data, found)
    return found


def facts_checksum(facts: Facts) -> int:
    """CRC-32 of the facts of a shard."""
    found = 0
    for column in facts:
        found = zlib.crc32(np.ascontiguousarray(column).data, found)
    return found


def signed(content: Mapping[str, Any]) -> str:
    """Write JSON with its own checksum."""
    text = json.dumps(content, sort_keys=True)
    return json.dumps({"checksum": zlib.crc32(text.encode()), **content}, indent=1, sort_keys=True)


def read_signed(file: Path) -> dict[str, Any]:
    """Read what :func:`signed` wrote.

    Raises:
        InputError: the file is damaged, or of another version of the layout.
    """
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        stated, version = content.pop("checksum"), content.get("version", VERSION)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: is damaged ({error!s:.200}); {_AGAIN}") from error
    if version != VERSION:
        raise InputError(f"{file}: has layout {version!s:.20}, and this molflt reads {VERSION}; {_AGAIN}")
    if zlib.crc32(json.dumps(content, sort_keys=True).encode()) != stated:
        raise InputError(f"{file}: is damaged (its checksum is another); {_AGAIN}")
    return content


def mapped(file: Path) -> np.ndarray:
    """Map a ``.npy`` file into memory, read-only and without an open file.

    NumPy's own map keeps the file open, and a large set has thousands.

    Raises:
        DamagedError: it cannot be read, is cut short, or is no plain array of numbers.
    """
    try:
        with open(file, "rb") as handle:
            major, _ = np.lib.format.read_magic(handle)
            if major != 1:
                raise ValueError(f"format {major}")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(handle)
            offset = handle.tell()
        n_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if fortran or dtype.kind not in "biuf" or file.stat().st_size != offset + n_bytes:
            raise ValueError("cut short, or no plain array of numbers")
        if n_bytes == 0:
            return np.empty(shape, dtype)
        raw = torch.from_file(str(file), shared=False, size=offset + n_bytes, dtype=torch.uint8)
    except (OSError, ValueError, RuntimeError) as error:
        raise DamagedError(f"{file}: is damaged or missing ({error!s:.200}); {_AGAIN}") from error
    found = raw.numpy()[offset:].view(dtype).reshape(shape)
    found.flags.writeable = False
    return found


class Shard:
    """Consecutive structures of a prepared set, by index in the shard; mapped on first use."""

    def __init__(self, folder: Path, stated: Mapping[str, Any]) -> None:
        self.folder, self._stated = folder, stated
        self.n: int = stated["structures"]
        self._checked = [False] * len(stated["checksums"])

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """All fields."""
        found = {name: mapped(self.folder / f"{name}.npy") for name in self._stated["arrays"]}
        starts, texts = found["starts"], found["text_starts"]
        n = self.n
        sound = (
            len(starts) == len(texts) == n + 1
            and starts[-1] == self._stated["atoms"]
            and texts[-1] == len(found["text"])
        )
        for name, array in found.items():
            field, _, suffix = name.partition(".")
            rows = starts[-1] if field in PER_ATOM else n
            sound &= bool(suffix) or field in ("starts", "text_starts", "text") or len(array) == rows
        if not sound or starts[0] or texts[0] or (np.diff(starts) < 0).any() or (np.diff(texts) < 0).any():
            raise self._damaged("its arrays do not fit each other")
        return found

    def _damaged(self, why: str) -> DamagedError:
        return DamagedError(f"{self.folder}: is damaged ({why}); {_AGAIN}")

    def _check(self, block: int) -> None:
        first, last = block * BLOCK, min((block + 1) * BLOCK, self.n)
        if checksum(self.arrays, first, last) != self._stated["checksums"][block]:
            raise self._damaged(f"structures {first} to {last - 1} have another checksum")
        self._checked[block] = True

    def texts(self, row: int) -> dict[str, Any]:
        """Texts, further data, conformers and error of a structure, by name."""
        starts = self.arrays["text_starts"]
        return decode(self.arrays["text"][starts[row] : starts[row + 1]].tobytes().decode(), str(self.folder))

    def structure(self, row: int) -> Data:
        """Return a structure.

        Raises:
            DamagedError: the shard is damaged.
            InputError: the structure could not be used when it was prepared.
        """
        arrays = self.arrays
        if not self._checked[row // BLOCK]:
            self._check(row // BLOCK)
        a, b = (int(k) for k in arrays["starts"][row : row + 2])
        texts = self.texts(row)
        if a == b:
            error = InputError(texts["error"])
            error.record, error.info = texts["record"], texts["info"]
            raise error
        present = int(arrays["present"][row])
        missing = {name for k, name in enumerate(OPTIONAL) if not present >> k & 1}
        fields = {name: self._rows(name, a, b) for name in PER_ATOM if name not in missing}
        fields |= {name: self._rows(name, row, row + 1) for name in PER_STRUCTURE if name not in missing}
        if "conformers" in texts:
            fields["conformers"] = texts.pop("conformers")
        data = Data(**{name: torch.from_numpy(value) for name, value in fields.items()})
        data.num_nodes = b - a
        for name, value in texts.items():
            data[name] = value
        return data

    def _rows(self, name: str, first: int, last: int) -> np.ndarray:
        found: np.ndarray = self.arrays[name][first:last].astype(vocabulary.FIELDS[name].dtype)
        if (rows := self.arrays.get(f"{name}.{ROWS}")) is not None:
            low, high = np.searchsorted(rows, (first, last))
            if high > low:
                found[rows[low:high] - first] = self.arrays[f"{name}.{WIDE}"][low:high]
        return found

    def facts(self) -> Facts:
        """Facts of its structures."""
        found = Facts(*(mapped(self.folder / f"{FACT}{name}.npy") for name in Facts._fields))
        if facts_checksum(found) != self._stated["facts"]:
            raise self._damaged("its facts have another checksum")
        return found


class PreparedSet:
    """Structures of a prepared set, equal to those it was made of.

    It may be passed to DataLoader workers by fork or spawn; all of them share the mapped memory.

    Args:
        folder: of the set.
        options: how to read; what was settled at the preparation, as labels in another unit, cannot be changed.

    Raises:
        InputError: the set is unfinished, damaged, of another version, or does not fit the options.
    """

    def __init__(self, folder: Path, options: ReadOptions = DEFAULT) -> None:
        self.folder, self._options = folder, options
        if not (folder / MANIFEST).is_file():
            raise InputError(f"{folder}: its preparation is not finished; repeat the command to resume it")
        self.manifest = read_signed(folder / MANIFEST)
        self._refuse_other(self.manifest["options"])
        shards = self.manifest["shards"]
        self._shards = [Shard(folder / shard["name"], shard) for shard in shards]
        self._ends = list(accumulate(shard["structures"] for shard in shards))

    def _refuse_other(self, settled: Mapping[str, Any]) -> None:
        """Refuse options that ask for another reading than that at the preparation."""
        for name, value in stated_options(self._options).items():
            if value not in (settled[name], _USUAL[name]):
                raise InputError(
                    f"{self.folder}: was prepared with {name}={settled[name]}, and {value} is asked for; prepare the "
                    "data again with it, or leave it out"
                )

    def __getstate__(self) -> dict[str, Any]:
        # Maps are made anew in another process.
        return {"folder": self.folder, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Data:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"{self.folder}: index {index} is out of range for {len(self)} structures")
        shard, row = self._place(position)
        data, options = shard.structure(row), self._options
        if not options.charges and "charge" in data:
            # As at the preparation, had the model been known.
            options.refuse_state(data.name, float(data.charge))
            del data["charge"]
        options.refuse_slab(data.name, data.pbc[0].numpy())
        if options.labels is not None and options.labels.target not in data:
            self._suggest(data, options.labels)
        return data

    def _suggest(self, data: Data, labels: LabelSpec) -> None:
        """Say what there is in place of the label."""
        fields = {name: data[name].numpy() for name in vocabulary.FIELDS if name in data}
        found = {
            name: value.item() for name, value in fields.items() if value.size == 1 and name in vocabulary.TARGETS
        }
        found |= data.get("info") or {}
        for name, text in LabelSpec(target=labels.target).apply(fields, found.get, found, data.name).items():
            data[name] = text

    def __iter__(self) -> Iterator[Data]:
        return (self[k] for k in range(len(self)))

    @cached_property
    def n_atoms(self) -> np.ndarray:
        """(n_structures,) int64; 1 for those that cannot be used."""
        return np.maximum(self.facts().n_atoms, 1).astype(np.int64)

    @cached_property
    def _facts(self) -> Facts:
        return Facts.joined([shard.facts() for shard in self._shards])

    def facts(self) -> Facts:
        """Facts of all structures; those refused by the options count as such that cannot be used."""
        found = self._facts
        refused = (found.charge != 0) & (not self._options.charges and not self._options.allow_charged)
        if self._options.charges and not self._options.slabs:
            refused |= (found.axes > 0) & (found.axes < 3)
        if refused.any():
            found = found._replace(n_atoms=np.where(refused, 0, found.n_atoms))
        return found

    def unusable(self) -> dict[int, str]:
        """Indices of the structures that could not be used at the preparation, and the reasons."""
        places = {index: self._place(index) for index in np.flatnonzero(self._facts.n_atoms == 0).tolist()}
        return {index: str(shard.texts(row)["error"]) for index, (shard, row) in places.items()}

    def _place(self, index: int) -> tuple[Shard, int]:
        """Shard and row of a structure."""
        k = bisect_right(self._ends, index)
        return self._shards[k], index - self._ends[k] + self._shards[k].n

    def domain(self, by_element: bool) -> Domain:
        """Domain of the structures that can be used."""
        facts = self.facts()
        if facts is not self._facts:
            return domain_of(facts, np.flatnonzero(facts.n_atoms), False, by_element)
        return Domain.model_validate(self.manifest["domain"]["element" if by_element else "structure"])


def stated_options(options: ReadOptions) -> dict[str, Any]:
    """Options of reading that a preparation settles, by name.

    What is left out at the preparation, as unconverged, stays so whatever is asked for.
    """
    labels = (options.labels or LabelSpec()).model_dump(exclude={"target"})
    found = {name: getattr(options, name) for name in ("pairs", "tags")}
    return {**found, **labels}


_USUAL = stated_options(DEFAULT)
