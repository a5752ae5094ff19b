"""One shard of a prediction on disk: a header and a line for every batch, appended as they are computed.

Every line begins with the CRC-32 of its JSON. A process that is killed leaves at worst a line that is cut short; what
follows the last line that is whole counts as not computed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from molflt.errors import InputError, naming
from molflt.files import lock
from molflt.prediction.predictor import Prediction
from molflt.vocabulary import MAX_ATOMIC_NUMBER

MOST_SHARDS = 1_000_000


class ShardHeader(BaseModel):
    """What a shard is of. Shards that differ in more than the first three do not belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard: int = Field(ge=1)
    first: int = Field(ge=0)
    end: int = Field(ge=0)
    format: Literal["molflt shard 1"] = "molflt shard 1"
    n_shards: int = Field(ge=1, le=MOST_SHARDS)
    model: str
    inputs: str
    n_structures: int = Field(ge=0)
    max_atoms: int = Field(ge=1)
    frequencies: str | None
    target: str

    @property
    def name(self) -> str:
        """For messages, "shard 2 of 8"."""
        return f"shard {self.shard} of {self.n_shards}"

    def mismatch(self, other: ShardHeader) -> str | None:
        """What the other was made with, in words, where that differs."""
        words = {
            "model": "another model",
            "inputs": "other inputs, or inputs that have changed since",
            "n_structures": "other inputs",
            "n_shards": f"another number of shards ({other.n_shards}, not {self.n_shards})",
            "max_atoms": f"another --max-atoms ({other.max_atoms}, not {self.max_atoms})",
            "frequencies": "another --frequencies",
            "target": "another model",
        }
        return next((text for key, text in words.items() if getattr(self, key) != getattr(other, key)), None)


class _Part(BaseModel):
    """A batch as a line of JSON has it."""

    names: list[str]
    ids: list[str]
    energies: list[float | None]
    std: list[float | None] | None
    failures: dict[int, str]
    elements: list[Annotated[int, Field(ge=1, le=MAX_ATOMIC_NUMBER)]]
    contractions: dict[str, int]


@dataclass
class ShardContent:
    """What stands in a shard's file.

    Attributes:
        header: what it is of.
        parts: the batches that are there, from the shard's first on.
        length: bytes of the lines that are whole.
    """

    header: ShardHeader
    parts: list[Prediction] = field(default_factory=list)
    length: int = 0

    @property
    def n_done(self) -> int:
        """Structures that are there."""
        return sum(len(part.names) for part in self.parts)

    @property
    def n_structures(self) -> int:
        """Structures of the whole shard."""
        return self.header.end - self.header.first


def read_shard(path: Path) -> ShardContent:
    """Read a shard, complete or not.

    Raises:
        InputError: it is not there, or no shard of a prediction.
    """
    try:
        with open(path, "rb") as handle:
            return _read(path, handle)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


@contextmanager
def open_shard(path: Path, header: ShardHeader, overwrite: bool = False) -> Iterator[ShardWriter]:
    """Begin a shard, or go on with it.

    Args:
        path: its file.
        header: what it is to be of.
        overwrite: begin again, whatever is there.

    Raises:
        InputError: another process writes it; or the file holds something else, or a shard of something else.
        OSError: the system refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Neither "w", which empties the file, nor "a", which cannot cut off what is damaged.
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as handle:
        if not lock(handle.fileno()):
            raise InputError(f"{path}: another process is writing it; wait for it, or end it")
        begin = _line(header.model_dump())
        # Killed before its first line was whole.
        if overwrite or begin.startswith(handle.read(len(begin) + 1)):
            _cut(handle, 0)
            _append(handle, path, begin)
            content = ShardContent(header, length=len(begin))
        else:
            handle.seek(0)
            content = _read(path, handle)
            if (reason := header.mismatch(content.header)) or header != content.header:
                raise InputError(
                    f"{path}: was made with {reason or 'another division of the inputs'}; repeat it as it was, give "
                    "--overwrite to begin again, or choose another --out"
                )
        _cut(handle, content.length)
        yield ShardWriter(handle, path, content)
        with naming(path):
            os.fsync(handle.fileno())


class ShardWriter:
    """Appends batches to a shard.

    Attributes:
        content: what is there.
    """

    def __init__(self, handle: BinaryIO, path: Path, content: ShardContent) -> None:
        self._handle, self._path = handle, path
        self.content = content

    def append(self, part: Prediction) -> None:
        """Keep a batch: from here on, no signal to this process loses it.

        Raises:
            OSError: the system refuses; what was kept before stays.
        """
        _append(self._handle, self._path, _line(_to_json(part)))
        self.content.parts.append(part)


def _read(path: Path, handle: BinaryIO) -> ShardContent:
    raw = _parse(handle.readline())
    try:
        content = ShardContent(ShardHeader.model_validate(raw), length=handle.tell())
    except ValidationError as error:
        raise InputError(
            f"{path}: is no shard of a prediction, or damaged; choose another name, or remove it"
        ) from error
    for line in iter(handle.readline, b""):
        part = _from_json(_parse(line))
        if part is None or content.n_done + len(part.names) > content.n_structures:
            break
        content.parts.append(part)
        content.length += len(line)
    return content


def _cut(handle: BinaryIO, length: int) -> None:
    """Drop what follows, and stand there."""
    os.ftruncate(handle.fileno(), length)
    os.lseek(handle.fileno(), length, os.SEEK_SET)


def _append(handle: BinaryIO, path: Path, line: bytes) -> None:
    """Write without a buffer, which would be written again, and fail again, when the file is closed."""
    with naming(path):
        while line:
            line = line[os.write(handle.fileno(), line) :]


def _line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> Any:
    """The JSON of a line; None where it is damaged."""
    checksum, _, text = line.partition(b" ")
    if not text.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text[:-1]):
        return None
    try:
        return json.loads(text)
    # a checksum is no signature: what it belongs to may be of any shape
    except (ValueError, RecursionError):
        return None


def _to_json(part: Prediction) -> dict[str, Any]:
    return {
        "names": part.names,
        "ids": part.ids,
        "energies": _numbers(part.energies),
        "std": None if part.std is None else _numbers(part.std),
        "failures": {str(i): reason for i, reason in part.failures.items()},
        "elements": sorted(part.elements),
        "contractions": dict(part.contractions),
    }


def _from_json(value: Any) -> Prediction | None:
    try:
        part = _Part.model_validate(value)
    except ValidationError:
        return None
    n = len(part.names)
    lengths = {n, len(part.ids), len(part.energies), n if part.std is None else len(part.std)}
    if len(lengths) > 1 or not all(0 <= i < n for i in part.failures):
        return None
    return Prediction(
        np.array(part.energies, dtype=np.float64),
        part.names,
        Counter(part.contractions),
        None if part.std is None else np.array(part.std, dtype=np.float64),
        part.failures,
        ids=part.ids,
        elements=set(part.elements),
    )


def _numbers(values: np.ndarray) -> list[float | None]:
    """JSON has no NaN; numpy reads null as one."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
