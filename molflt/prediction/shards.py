"""A prediction in parts: by several processes at once, or one after the other, with the same result."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from molflt.data.batch import AtomBudgetSampler
from molflt.data.dataset import StructureDataset, fingerprint
from molflt.data.open import STANDARD_INPUT, paths_behind
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.errors import InputError
from molflt.model.model_file import LoadedModel
from molflt.prediction.prediction import Prediction, joined
from molflt.prediction.predictor import DEFAULT_MAX_ATOMS, predict_batches
from molflt.prediction.shard_file import ShardContent, ShardHeader, open_shard, read_shard
from molflt.vocabulary import OnError


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
    options: ReadOptions = DEFAULT,
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
        options: molecules were read.

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
        inputs=_inputs_fingerprint(inputs, f"{tags} {options}", sizes),
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


def _model_fingerprint(members: Sequence[LoadedModel]) -> str:
    digest = hashlib.sha256()
    for member in members:
        # Of the members of one file, which they are.
        digest.update(member.metadata.model_dump_json().encode("utf-8", "surrogatepass"))
    for path in dict.fromkeys(member.path for member in members):
        with open(path, "rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _inputs_fingerprint(inputs: Sequence[str], options: str, sizes: np.ndarray) -> str:
    """Of what was given, since names come from it, and of what it stands for."""
    if STANDARD_INPUT in inputs:
        raise InputError("--shard: standard input cannot be read again by other shards; save it to a file")
    digest = hashlib.sha256("\0".join([options, *inputs]).encode("utf-8", "surrogatepass"))
    digest.update(sizes.astype("<i8").tobytes())
    for text in inputs:
        for path in paths_behind(text):
            digest.update(fingerprint(path).encode())
    return digest.hexdigest()
