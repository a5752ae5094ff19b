"""Damage structure files and see if anything is lost or changed in silence.

    python -m scripts.hardening.damage --n 20000                    # files, from seed 0
    python -m scripts.hardening.damage --n 1 --seed 1234 --show     # one of them again, with its text

Each file holds random structures, written by ASE, RDKit or pymatgen in one of the formats that molflt reads, and is
damaged in one of the ways of ``DAMAGES``. Reading it must give the structures and labels that were written, in the
order that the damage leaves them in, or end in an ``InputError`` that names a line. A label or an entry of ``info``
that is not read must be named by a warning. Exit status 1 where anything is lost or changed in silence.
"""

from __future__ import annotations

import multiprocessing
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch_geometric.data import Data

from molflt.data.ase import to_atoms
from molflt.data.open import open_dataset
from molflt.data.reading import ReadOptions
from molflt.errors import InputError, InputWarning
from scripts import results
from scripts.hardening.damage_files import WRITERS, File, summary
from scripts.hardening.damage_ways import DAMAGES

_HOW = ReadOptions(allow_charged=True, conformers=1)
_PLACE = re.compile(r"\bline \d+|\blines \d+|#\d+")
"""Place that an error must name: a line, or the record where the format has no lines."""
_TOLERANCE = 1e-5
_ROUNDED = 2e-3
"""Å, eV and eV/Å, between two readings and to what was written: PDB has three decimals."""
_CHUNK = 250


def main() -> int:
    """Damage files and print what came of them."""
    parser = results.command(__doc__)
    parser.add_argument("--n", type=int, default=1000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--format", choices=WRITERS, action="append", help="which; may be repeated; default: all")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--show", action="store_true", help="print every damaged text and what came of it")
    options = parser.parse_args()
    start = time.monotonic()
    outcomes, found = find(options.seed, options.n, options.format or list(WRITERS), options.workers, options.show)
    print(f"{options.n:,} files in {time.monotonic() - start:.0f} s: {dict(outcomes)}, {len(found)} findings")
    return 1 if found else 0


def find(
    seed: int, n: int, formats: Sequence[str] = tuple(WRITERS), workers: int = 1, show: bool = False
) -> tuple[Counter[str], list[str]]:
    """Judge the files of ``n`` seeds: counts of the ways they ended, and findings, printed too."""
    outcomes, found = Counter[str](), list[str]()
    chunks = [(range(first, min(first + _CHUNK, seed + n)), formats, show) for first in range(seed, seed + n, _CHUNK)]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for some in (pool.map if workers > 1 else map)(_judge_many, chunks):
            for outcome, text in some:
                outcomes[outcome] += 1
                if outcome == "found":
                    found.append(text)
                    print(text, flush=True)
    return outcomes, found


def _judge_many(chunk: tuple[Sequence[int], Sequence[str], bool]) -> list[tuple[str, str]]:
    seeds, formats, show = chunk
    return [judge(seed, formats, show) for seed in seeds]


def judge(seed: int, formats: Sequence[str], show: bool = False) -> tuple[str, str]:
    """Make the damaged file of a seed and read it.

    Returns:
        "same", "refused" or "found", and of what was found a description.
    """
    random = Random(seed)  # noqa: S311 (inputs, not secrets)
    name = random.choice(list(formats))
    file = WRITERS[name](random)
    way = random.choice(sorted(set(DAMAGES) - file.spared))
    damaged, expected = DAMAGES[way](random, file)
    what = f"seed {seed}: {name} ({file.name}), {way}"
    with TemporaryDirectory() as folder:
        whole, refusal, _ = _read(Path(folder) / file.name, file.raw())
        if whole is None:
            return "found", f"{what}: the undamaged file is refused: {refusal}\n{file.text()}"
        if wrong := _misread(whole, file):
            return "found", f"{what}: the undamaged file is misread: {wrong}\n{file.text()}"
        ending = ".gz" if damaged.startswith(b"\x1f\x8b") else ""
        read, refusal, said = _read(Path(folder) / "damaged" / (file.name + ending), damaged)
    if show:
        shown = refusal if read is None else f"{len(read)} structures {said}"
        print(f"--- {what}: {shown}\n{damaged.decode('utf-8', 'replace') if not ending else '(gzip)'}")
    if read is None:
        # Of a file in which nothing is left, no line is at fault.
        if isinstance(refusal, InputError) and (_PLACE.search(str(refusal)) or not any(expected)):
            return "refused", ""
        return "found", f"{what}: {type(refusal).__name__} without a line: {refusal}"
    wrong = [_differences(read, [whole[k] for k in kept], said) for kept in expected]
    # Of a PDB file without an end nobody can tell whether it is whole.
    told = way == "truncated at the end of a line" and "cut short" in said
    return ("found", f"{what}: {wrong[0]}") if all(wrong) and not told else ("same", "")


def _read(path: Path, raw: bytes) -> tuple[list[Data] | None, Exception | None, str]:
    """The structures of a file, or why there are none; and the warnings."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            dataset = open_dataset(path, options=_HOW)
            structures = [dataset[k] for k in range(len(dataset))]
        except Exception as error:
            return None, error, ""
    return structures, None, "; ".join(str(w.message) for w in caught if issubclass(w.category, InputWarning))


def _misread(read: Sequence[Data], file: File) -> str:
    """Compare the structures of an undamaged file with those that were written."""
    found = []
    for data in read:
        found.append(_values(data) | summary(to_atoms(data)))
    return _compared(found, file.expected, "", _ROUNDED)


def _differences(read: Sequence[Data], expected: Sequence[Data], said: str) -> str:
    """Compare structures with those expected; a missing label must have been said."""
    return _compared([_values(data) for data in read], [_values(data) for data in expected], said)


def _compared(
    read: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]], said: str, tolerance: float = _TOLERANCE
) -> str:
    if len(read) != len(expected):
        return f"{len(read)} structures, expected {len(expected)}"
    for k, (mine, wanted) in enumerate(zip(read, expected, strict=True)):
        for key, value in wanted.items():
            if key not in mine:
                if not re.search(rf"\b{key.removeprefix('info.')}\b", said, re.IGNORECASE):
                    return f"structure {k}: {key} is missing; said: {said or 'nothing'}"
            elif not _same(mine[key], value, tolerance):
                return f"structure {k}: {key} is {mine[key]!r}, expected {value!r}"
    return ""


def _values(data: Data) -> dict[str, Any]:
    found = {key: value.numpy() for key, value in data.to_dict().items() if hasattr(value, "numpy")}
    if not found["pbc"].any():
        # A cell that nothing repeats by means nothing.
        del found["cell"]
    return {**found, **{f"info.{key.lower()}": value for key, value in (data.get("info") or {}).items()}}


def _same(value: Any, other: Any, tolerance: float) -> bool:
    if isinstance(value, str) or isinstance(other, str):
        return str(value).split() == str(other).split()
    a, b = np.atleast_1d(value), np.atleast_1d(other)
    return a.shape == b.shape and np.allclose(a.astype(float), b.astype(float), atol=tolerance, rtol=0)


if __name__ == "__main__":
    sys.exit(main())
