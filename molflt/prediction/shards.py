"""Prediction in parts, by several processes or one after the other, with the same result.

A shard's file has a header and a line of JSON for every batch, appended when it is computed. A killed process leaves
at worst an incomplete last line, which counts as not computed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from molflt.data.batch import AtomBudgetSampler
from molflt.data.dataset import StructureDataset, fingerprint
from molflt.data.open import STANDARD_INPUT, paths_behind
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.errors import InputError, in_line, naming, warn_caller
from molflt.files import lock
from molflt.model.file import LoadedModel
from molflt.prediction.model import Model
from molflt.prediction.output import Conformers, Prediction, joined
from molflt.prediction.predict import DEFAULT_MAX_ATOMS, predict_batches
from molflt.terminal_text import printable
from molflt.vocabulary import MAX_ATOMIC_NUMBER, OnError


@dataclass(frozen=True)
class Shard:
    """One part of a prediction: its ``number``, from 1 to ``count``, and how many there are."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``"2/8"``; other text raises ``InputError``."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        shard = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 1 <= shard.number <= shard.count:
            raise InputError(f"--shard {text}: give I/N with I from 1 to N, as in --shard 2/8")
        return shard

    def path(self, out: Path) -> Path:
        """Path of the shard's file: the output's name, extended so that sorted files are in order."""
        width = len(str(self.count))
        return out.with_name(f"{out.name}.shard-{self.number:0{width}d}-of-{self.count}")


def predict_shard(
    model: Model,
    structures: StructureDataset,
    inputs: Sequence[str],
    shard: Shard,
    out: Path,
    on_error: OnError = "raise",
    max_atoms: int = DEFAULT_MAX_ATOMS,
    frequencies: str | None = None,
    overwrite: bool = False,
    options: ReadOptions = DEFAULT,
) -> tuple[Prediction, Path, int]:
    """Predict one shard into its own file, continuing an interrupted attempt.

    A shard is a contiguous range of batches of the undivided prediction, so not a digit depends on the division.

    Args:
        model: the model or ensemble.
        structures: all structures, of which the shard is a part.
        inputs: the inputs that the structures were read from.
        shard: the part to predict.
        out: the output of the merged prediction, after which the file is named.
        on_error: see :meth:`molflt.prediction.model.Model.predict`, as ``max_atoms``.
        max_atoms: atoms per batch.
        frequencies: the method with which the model was loaded.
        overwrite: start again, whatever the file holds.
        options: with which the structures were read.

    Returns:
        The prediction, its file, and how many of its structures had been computed before.

    Raises:
        InputError: as ``predict``; inputs that cannot be read again; a file of another prediction, or one that
            another process is writing.
        OSError: the system refuses; what was computed before stays.
    """
    sizes = structures.n_atoms
    batches = list(AtomBudgetSampler(sizes, max_atoms, shuffle=False, seed=0))
    own = divide([int(sizes[batch].sum()) for batch in batches], shard.count)[shard.number - 1]
    starts = np.cumsum([0, *map(len, batches)])
    header = ShardHeader(
        shard=shard.number,
        n_structures=int(starts[own.stop] - starts[own.start]),
        n_shards=shard.count,
        model=_model_fingerprint(model.members),
        # How bad structures are treated may differ between attempts.
        inputs=_inputs_fingerprint(inputs, str(replace(options, on_bad="stop")), sizes),
        max_atoms=max_atoms,
        frequencies=frequencies,
        target=model.target,
    )
    path = shard.path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Neither "w", which empties the file, nor "a", which cannot truncate damaged lines.
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as handle:
        if not lock(handle.fileno()):
            raise InputError(f"{path}: another process is writing it; wait for it, or end it")
        begin, there = _line(header), handle.read()
        # An attempt may have been killed before its first line was complete.
        content = ShardContent(header)
        if not overwrite and not begin.startswith(there):
            content = _parsed(path, there)
            if content.header != header:
                reason = header.mismatch(content.header) or "another division of the inputs"
                remedy = "repeat it as it was, give --overwrite to begin again, or choose another --out"
                raise InputError(f"{path}: was made with {reason}; {remedy}")
        handle.truncate(content.length)
        handle.seek(content.length)
        if not content.length:
            _append(handle, path, begin)
        before, n_batches = content.n_done, len(content.parts)
        missing = track(batches[own][n_batches:], "predicting", total=own.stop - own.start, done=n_batches)
        for part in predict_batches(model.members, structures, missing, model.device, on_error):
            _append(handle, path, _line(_Part.of(part)))
            content.parts.append(part)
        with naming(path):
            os.fsync(handle.fileno())
    prediction = joined(content.parts)
    for line in prediction.doubts():
        warn_caller(line)
    return prediction, path, before


def divide(costs: Sequence[int], n: int) -> list[slice]:
    """Cut a sequence into ``n`` runs of about the same cost; some may be empty.

    The middle of every item lies in its run's n-th of the total, so a run differs from the mean by at most one item.
    """
    ends = np.cumsum(costs)
    middles = ends - np.asarray(costs) / 2
    bounds = np.searchsorted(middles, ends[-1] * np.arange(n + 1) / n)
    return [slice(int(a), int(b)) for a, b in pairwise(bounds)]


def merge(paths: Iterable[Path]) -> tuple[Prediction, str]:
    """Put the shards of one prediction together.

    paths: all its files, in any order.

    Returns:
        The prediction, the same as without shards, and its target.

    Raises:
        InputError: shards of different predictions, or shards that are missing, duplicate or incomplete.
    """
    found: dict[int, tuple[Path, ShardContent]] = {}
    for path in paths:
        content = read_shard(path)
        header = content.header
        for other_path, other in found.values():
            if reason := other.header.mismatch(header):
                raise InputError(f"{path}: was made with {reason}, compared with {other_path}; merge one prediction")
        if header.shard in found:
            twice = f"{found[header.shard][0]} and {path}"
            raise InputError(f"shard {header.shard} of {header.n_shards} is there twice: {twice}; give it once")
        found[header.shard] = path, content
    if not found:
        raise InputError("no shards: give the files that 'molflt predict --shard' wrote")
    shards = [found[number] for number in sorted(found)]
    first = shards[0][1].header
    if missing := [str(number) for number in range(1, first.n_shards + 1) if number not in found]:
        raise InputError(
            f"{len(missing)} of {first.n_shards} shards {'is' if len(missing) == 1 else 'are'} missing: "
            f"{in_line(missing, 20)}; predict with --shard {missing[0]}/{first.n_shards}"
        )
    if unfinished := [
        f"{path} ({content.n_done:,} of {content.header.n_structures:,} structures)"
        for path, content in shards
        if content.n_done < content.header.n_structures
    ]:
        raise InputError(f"not complete: {', '.join(unfinished)}; repeat the command of each to resume")
    return joined(part for _, content in shards for part in content.parts), first.target


class ShardHeader(BaseModel):
    """Identity of a shard; shards of one prediction differ in the first two fields at most."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shard: int = Field(ge=1)
    n_structures: int = Field(ge=0)
    format: Literal["molflt shard 3"] = "molflt shard 3"
    n_shards: int = Field(ge=1, le=1_000_000)
    model: str
    inputs: str
    max_atoms: int = Field(ge=1)
    frequencies: str | None
    target: str

    def mismatch(self, other: ShardHeader) -> str | None:
        """Describe the first difference from another header in words; None without any."""
        words = {
            "model": "another model",
            "inputs": "other inputs, or inputs that have changed since",
            "n_shards": f"another number of shards ({other.n_shards}, not {self.n_shards})",
            "max_atoms": f"another --max-atoms ({other.max_atoms}, not {self.max_atoms})",
            "frequencies": "another --far-field-method",
            "target": "another model",
        }
        return next((text for key, text in words.items() if getattr(self, key) != getattr(other, key)), None)


class _Part(BaseModel):
    """A batch as a line of JSON."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    names: list[str]
    ids: list[str]
    energies: list[float]
    uncertainty_eV: list[float] | None  # noqa: N815 (as in files)
    failures: dict[int, str]
    info: list[dict[str, str]]
    elements: set[Annotated[int, Field(ge=1, le=MAX_ATOMIC_NUMBER)]]
    contractions: dict[str, int]
    conformers: dict[int, Conformers]
    warnings: dict[int, str]

    @model_validator(mode="after")
    def _of_one_length(self) -> _Part:
        n = len(self.names)
        columns = (self.info, self.ids, self.energies, self.uncertainty_eV)
        lengths = {len(column) for column in columns if column is not None}
        if lengths != {n} or not all(0 <= i < n for i in (*self.failures, *self.conformers, *self.warnings)):
            raise ValueError("columns of different lengths")
        return self

    @classmethod
    def of(cls, part: Prediction) -> _Part:
        values = {name: getattr(part, name) for name in cls.model_fields}
        values["energies"] = part.energies.tolist()
        if part.uncertainty_eV is not None:
            values["uncertainty_eV"] = part.uncertainty_eV.tolist()
        values["info"] = [
            {printable(key): printable(str(value)) for key, value in info.items() if np.ndim(value) == 0}
            for info in part.info
        ]
        return cls(**values)

    def prediction(self) -> Prediction:
        values: dict[str, Any] = dict(self)
        given = {"energies": self.energies, "uncertainty_eV": self.uncertainty_eV}
        known = {key: None if of is None else np.array(of, dtype=np.float64) for key, of in given.items()}
        return Prediction(**{**values, **known, "contractions": Counter(self.contractions)})


@dataclass
class ShardContent:
    """Header and batches of a shard's file, and the length in bytes of its complete lines."""

    header: ShardHeader
    parts: list[Prediction] = field(default_factory=list)
    length: int = 0

    @property
    def n_done(self) -> int:
        """Number of structures already computed."""
        return sum(len(part.names) for part in self.parts)


def read_shard(path: Path) -> ShardContent:
    """Read a shard, complete or not; ``InputError`` if it is missing or not a shard."""
    try:
        return _parsed(path, path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _parsed(path: Path, text: bytes) -> ShardContent:
    # Text after the last line break is an incomplete line.
    *lines, _ = text.split(b"\n")
    header = _parse(lines[0], ShardHeader) if lines else None
    if header is None:
        raise InputError(f"{path}: is not a shard of a prediction, or is damaged; remove it, or give another")
    content = ShardContent(header, length=len(lines[0]) + 1)
    for line in lines[1:]:
        part = _parse(line, _Part)
        if part is None or content.n_done + len(part.names) > header.n_structures:
            break
        content.parts.append(part.prediction())
        content.length += len(line) + 1
    return content


_Record = TypeVar("_Record", bound=BaseModel)


def _parse(line: bytes, kind: type[_Record]) -> _Record | None:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        return None


def _line(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _append(handle: BinaryIO, path: Path, line: bytes) -> None:
    with naming(path):
        while line:
            line = line[handle.write(line) :]


def _model_fingerprint(members: Sequence[LoadedModel]) -> str:
    digest = hashlib.sha256()
    for member in members:
        digest.update(member.metadata.model_dump_json().encode("utf-8", "surrogatepass"))
    for path in dict.fromkeys(member.path for member in members):
        with open(path, "rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _inputs_fingerprint(inputs: Sequence[str], options: str, sizes: np.ndarray) -> str:
    """Digest of the given inputs, from which names come, and of the files behind them."""
    if STANDARD_INPUT in inputs:
        raise InputError("--shard: standard input cannot be read again by other shards; save it to a file")
    digest = hashlib.sha256("\0".join([options, *inputs]).encode("utf-8", "surrogatepass"))
    digest.update(sizes.astype("<i8").tobytes())
    for text in inputs:
        for path in paths_behind(text):
            digest.update(fingerprint(path).encode())
    return digest.hexdigest()
