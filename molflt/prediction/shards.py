"""A prediction in parts: by several processes at once, or one after the other, with the same result.

A shard's file has a header and a line for every batch, appended as they are computed. Every line begins with the
CRC-32 of its JSON. A process that is killed leaves at worst a line that is cut short; what follows the last whole
line counts as not computed.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from molflt.choices import OnError
from molflt.data.batching import AtomBudgetSampler
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, Reading
from molflt.data.sources import STANDARD_INPUT, StructureDataset, fingerprint
from molflt.errors import InputError, naming
from molflt.files import lock
from molflt.model.model_file import LoadedModel
from molflt.prediction.predictor import DEFAULT_MAX_ATOMS, Conformers, Prediction, joined, predict_batches
from molflt.printable import printable
from molflt.vocabulary import MAX_ATOMIC_NUMBER

MOST_SHARDS = 1_000_000


@dataclass(frozen=True)
class Shard:
    """Which part of a prediction.

    Attributes:
        number: from 1 to ``count``.
        count: how many parts there are.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``"2/8"``.

        Raises:
            InputError: the text is anything else.
        """
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        shard = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 1 <= shard.number <= shard.count:
            raise InputError(f"--shard {text}: give I/N with I from 1 to N, as in --shard 2/8")
        return shard

    def path(self, out: Path) -> Path:
        """The file of the shard: beside the output, whose name it extends; sorted, the files are in order."""
        width = len(str(self.count))
        return out.with_name(f"{out.name}.shard-{self.number:0{width}d}-of-{self.count}")


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


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard.

    Attributes:
        path: its file.
        prediction: of its structures.
        n_before: how many of them were there already.
    """

    path: Path
    prediction: Prediction
    n_before: int


def predict_shard(
    members: Sequence[LoadedModel],
    structures: StructureDataset,
    inputs: Sequence[str],
    shard: Shard,
    out: Path,
    device: torch.device | str = "cpu",
    max_atoms: int = DEFAULT_MAX_ATOMS,
    on_error: OnError = "raise",
    tags: str = "auto",
    frequencies: str | None = None,
    overwrite: bool = False,
    how: Reading = DEFAULT,
) -> ShardResult:
    """Predict one shard into a file of its own, going on where an interrupted attempt stopped.

    A shard is a run of whole batches of the undivided prediction, so not a digit depends on the division.

    Args:
        members: the model or ensemble.
        structures: all structures, of which the shard is a part.
        inputs: what the structures were read from.
        shard: which part.
        out: what all shards will be merged to; it names the file.
        device: see :func:`molflt.prediction.predictor.predict`.
        max_atoms: see :func:`molflt.prediction.predictor.predict`.
        on_error: see :func:`molflt.prediction.predictor.predict`.
        tags: how the tags of the inputs were read.
        frequencies: the method with which the model was loaded.
        overwrite: begin again, whatever is there.
        how: molecules were read.

    Raises:
        InputError: as ``predict``; inputs that cannot be read again; a file that is of something else.
    """
    sizes = structures.n_atoms
    batches = list(AtomBudgetSampler(sizes, max_atoms, shuffle=False, seed=0))
    own = divide([int(sizes[batch].sum()) for batch in batches], shard.count)[shard.number - 1]
    starts = np.cumsum([0, *map(len, batches)])
    header = ShardHeader(
        shard=shard.number,
        first=int(starts[own.start]),
        end=int(starts[own.stop]),
        n_shards=shard.count,
        model=_model_fingerprint(members),
        inputs=_inputs_fingerprint(inputs, f"{tags} {how}", sizes),
        n_structures=len(structures),
        max_atoms=max_atoms,
        frequencies=frequencies,
        target=members[0].metadata.target,
    )
    path = shard.path(out)
    with open_shard(path, header, overwrite) as writer:
        before, n_batches = writer.content.n_done, len(writer.content.parts)
        missing = track(batches[own][n_batches:], "predicting", total=own.stop - own.start, done=n_batches)
        for part in predict_batches(members, structures, missing, device, on_error):
            writer.append(part)
        return ShardResult(path, joined(writer.content.parts), before)


def divide(costs: Sequence[int], n: int) -> list[slice]:
    """Cut a sequence into ``n`` runs of about the same cost; some are empty when there are few items.

    The middle of every item lies in its run's n-th of the total, so a run differs from the mean by at most one item.
    """
    ends = np.cumsum(costs)
    middles = ends - np.asarray(costs) / 2
    bounds = np.searchsorted(middles, ends[-1] * np.arange(n + 1) / n)
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def merge(paths: Iterable[Path]) -> tuple[Prediction, str]:
    """Put the shards of one prediction together.

    Args:
        paths: all its files, in any order.

    Returns:
        The prediction, as it would have been without shards, and its target.

    Raises:
        InputError: shards that do not belong together, are missing, are there twice, or are not complete.
    """
    found: dict[int, tuple[Path, ShardContent]] = {}
    for path in paths:
        content = read_shard(path)
        header = content.header
        for other_path, other in found.values():
            if reason := other.header.mismatch(header):
                raise InputError(f"{path}: was made with {reason}, compared with {other_path}; merge one prediction")
        if header.shard in found:
            raise InputError(
                f"shard {header.shard} of {header.n_shards} is there twice: {found[header.shard][0]} and {path}; "
                "give it once"
            )
        found[header.shard] = path, content
    if not found:
        raise InputError("no shards: give the files that 'molflt predict --shard' wrote")
    shards = [found[number] for number in sorted(found)]
    first = shards[0][1].header
    if missing := [str(number) for number in range(1, first.n_shards + 1) if number not in found]:
        raise InputError(
            f"{len(missing)} of {first.n_shards} shards {'is' if len(missing) == 1 else 'are'} missing: "
            f"{', '.join(missing[:20])}{', ...' if len(missing) > 20 else ''}; "
            f"predict with --shard {missing[0]}/{first.n_shards}"
        )
    unfinished = [
        f"{path} ({content.n_done:,} of {content.n_structures:,} structures)"
        for path, content in shards
        if content.n_done < content.n_structures
    ]
    if unfinished:
        raise InputError(
            f"not complete: {', '.join(unfinished)}; repeat the command of each, and it goes on from there"
        )
    return joined(part for _, content in shards for part in content.parts), first.target


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


def _model_fingerprint(members: Sequence[LoadedModel]) -> str:
    digest = hashlib.sha256()
    for member in members:
        with open(member.path, "rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _inputs_fingerprint(inputs: Sequence[str], how: str, sizes: np.ndarray) -> str:
    """Of what was given, since names come from it, and of what it stands for."""
    if STANDARD_INPUT in inputs:
        raise InputError("--shard: standard input cannot be read again by other shards; save it to a file")
    digest = hashlib.sha256("\0".join([how, *inputs]).encode("utf-8", "surrogatepass"))
    digest.update(sizes.astype("<i8").tobytes())
    for text in inputs:
        for path in [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True)):
            digest.update(fingerprint(path).encode())
    return digest.hexdigest()
