"""The file of a shard: a header, and a line for every batch, appended as they are computed.

Every line begins with the CRC-32 of its JSON. A process that is killed leaves at worst a line that is cut short; what
follows the last whole line counts as not computed.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from molflt.errors import InputError, naming
from molflt.files import lock
from molflt.prediction.prediction import Conformers, Prediction
from molflt.terminal_text import printable
from molflt.vocabulary import MAX_ATOMIC_NUMBER

MOST_SHARDS = 1_000_000


class ShardHeader(BaseModel):
    """What a shard is of. Shards that differ in more than the first three fields do not belong together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard: int = Field(ge=1)
    first: int = Field(ge=0)
    end: int = Field(ge=0)
    format: Literal["molflt shard 2"] = "molflt shard 2"
    n_shards: int = Field(ge=1, le=MOST_SHARDS)
    model: str
    inputs: str
    n_structures: int = Field(ge=0)
    max_atoms: int = Field(ge=1)
    frequencies: str | None
    target: str

    def mismatch(self, other: ShardHeader) -> str | None:
        """Say in words what the other was made with, where that differs."""
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
        """The number of structures that are there."""
        return sum(len(part.names) for part in self.parts)

    @property
    def n_structures(self) -> int:
        """The number of structures in the whole shard."""
        return self.header.end - self.header.first


def read_shard(path: Path) -> ShardContent:
    """Read a shard, complete or not.

    Raises:
        InputError: it is not there, or not a shard of a prediction.
    """
    try:
        with open(path, "rb") as handle:
            return _read(path, handle)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


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
        _append(self._handle, self._path, _line(_Part.of(part)))
        self.content.parts.append(part)


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
        begin = _line(header)
        # An attempt may have been killed before its first line was whole.
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


class _Part(BaseModel):
    """A batch as a line of JSON has it; null stands for NaN."""

    names: list[str]
    ids: list[str]
    energies: list[FiniteFloat | None]
    std: list[FiniteFloat | None] | None
    failures: dict[int, str]
    info: list[dict[str, str]]
    elements: list[Annotated[int, Field(ge=1, le=MAX_ATOMIC_NUMBER)]]
    contractions: dict[str, int]
    conformers: dict[int, Conformers] = Field(default_factory=dict)
    warnings: dict[int, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _of_one_length(self) -> _Part:
        n = len(self.names)
        lengths = {n, len(self.info), len(self.ids), len(self.energies), n if self.std is None else len(self.std)}
        if len(lengths) > 1 or not all(0 <= i < n for i in (*self.failures, *self.conformers, *self.warnings)):
            raise ValueError("columns of different lengths")
        return self

    @classmethod
    def of(cls, part: Prediction) -> _Part:
        return cls(
            names=part.names,
            ids=part.ids,
            energies=_numbers(part.energies),
            std=None if part.std is None else _numbers(part.std),
            failures=part.failures,
            info=[_words(info) for info in part.info],
            elements=sorted(part.elements),
            contractions=dict(part.contractions),
            conformers=part.conformers,
            warnings=part.warnings,
        )

    def prediction(self) -> Prediction:
        return Prediction(
            np.array(self.energies, dtype=np.float64),
            self.names,
            Counter(self.contractions),
            None if self.std is None else np.array(self.std, dtype=np.float64),
            self.failures,
            info=list(self.info),
            ids=self.ids,
            elements=set(self.elements),
            conformers=self.conformers,
            warnings=self.warnings,
        )


def _words(info: Mapping[str, Any]) -> dict[str, str]:
    return {printable(key): printable(str(value)) for key, value in info.items() if np.ndim(value) == 0}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


_Record = TypeVar("_Record", bound=BaseModel)


def _line(record: BaseModel) -> bytes:
    text = record.model_dump_json().encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes, kind: type[_Record]) -> _Record | None:
    """What a line holds; None where it is damaged, or of another shape: a checksum is not a signature."""
    checksum, _, text = line.partition(b" ")
    if not text.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(text[:-1]):
        return None
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        return None


def _read(path: Path, handle: BinaryIO) -> ShardContent:
    header = _parse(handle.readline(), ShardHeader)
    if header is None:
        raise InputError(f"{path}: is not a shard of a prediction, or is damaged; choose another name, or remove it")
    content = ShardContent(header, length=handle.tell())
    for line in iter(handle.readline, b""):
        part = _parse(line, _Part)
        if part is None or content.n_done + len(part.names) > content.n_structures:
            break
        content.parts.append(part.prediction())
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
