"""Structures from the files that ASE reads, with a check of what a text file may ask of its reader."""

from __future__ import annotations

import io
import os
import re
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from itertools import count, islice
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import ase.db
import ase.io
from ase import Atoms
from ase.io.formats import get_ioformat, open_with_compression
from torch_geometric.data import Data

from molflt.choices import TagConvention
from molflt.data.ase_io import from_atoms
from molflt.data.labels import LabelSpec
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, Reading
from molflt.errors import InputError, noting, ordinary_file

_PATTERNS: dict[str, str] = {
    "*.extxyz": "extxyz",
    "*.xyz": "xyz",
    "*.traj": "traj",
    "*.db": "db",
    "*.json": "json",
    "*.cif": "cif",
    "*.vasp": "vasp",
    "*.poscar": "vasp",
    "*poscar*": "vasp",
    "*contcar*": "vasp",
    "*outcar*": "vasp-out",
    "*vasprun*.xml": "vasp-xml",
    "*.pdb": "proteindatabank",
    "*.gen": "gen",
    "*.xsf": "xsf",
    "*.cube": "cube",
    "*.pwi": "espresso-in",
}
"""Formats by lower-case file name. Only readers that parse and nothing else: others of ASE's unpickle, run
Python, or (``aims``: parametric constraints) evaluate expressions from the file."""
_BINARY = ("traj", "db")
_BLOCK = 1 << 20
_ALWAYS_ALLOWED = 64 << 20
_MOST_RATIO = 200
"""Structures shrink to a third or a twentieth; what shrinks a thousand times is empty."""
_MOST_COLUMNS = 1000
_MOST_LINE = 1 << 20
_MOST_DIGITS = 12
_COLUMNS = re.compile(r"properties\s*=\s*[\"']?([^\s\"']+)", re.IGNORECASE)
COMPRESSED = (".gz", ".bz2", ".xz")


def ase_format(path: Path) -> str | None:
    """The ASE format of a file by its name, or None where molflt does not read it through ASE."""
    file_name = path.name.lower()
    for ending in COMPRESSED:
        if file_name.endswith(ending):
            found = _match(file_name.removesuffix(ending))
            return None if found in _BINARY else found
    return _match(file_name)


def read_ase(
    path: str | os.PathLike[str],
    tags: TagConvention = "auto",
    labels: LabelSpec | None = None,
    bad: dict[int, InputError] | None = None,
    how: Reading = DEFAULT,
) -> list[Data]:
    """Read every frame of a file.

    Args:
        path: extxyz, xyz, cif, VASP, pdb, gen, xsf, cube or Quantum ESPRESSO input (also .gz, .bz2, .xz), ASE
            traj, db or json.
        tags: see ``from_atoms``.
        labels: see ``from_atoms``.
        bad: gets what is wrong with frames that cannot be used, by their places; None: they are refused.
        how: whether ions and radicals are taken.

    Returns:
        The structures, named ``PATH#FRAME``.

    Raises:
        InputError: a format that is not on the list, a file that cannot be read, or a frame that cannot be used.
    """
    file = Path(path)
    form = ase_format(file)
    if form is None:
        known = ", ".join(sorted(_PATTERNS))
        raise InputError(
            f"{file}: no safe reader for this kind of file; known are {known}. Convert it, for instance to "
            "extxyz with 'ase convert'"
        )
    if ordinary_file(file).stat().st_size == 0:
        raise InputError(f"{file}: the file is empty")
    structures: list[Data] = []
    frames = track(_frames(file, form), f"reading {file.name}")
    for index in count():
        name = f"{file}#{index}"
        try:
            with warnings.catch_warnings():
                # remarks on details of a format; what matters here is checked below
                warnings.simplefilter("ignore")
                atoms = next(frames, None)
        except InputError:
            raise
        # a damaged file makes ASE raise almost anything
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{name}: cannot be read as {form}: {reason[:400]}") from error
        if atoms is None:
            break
        with noting(bad, index):
            structures.append(from_atoms(atoms, name, tags, labels, how))
    if not structures and not bad:
        raise InputError(f"{file}: holds no structures")
    return structures


def _match(file_name: str) -> str | None:
    return next((form for pattern, form in _PATTERNS.items() if fnmatch(file_name, pattern)), None)


def _frames(file: Path, form: str) -> Iterator[Atoms]:
    if form == "db":
        yield from _database_rows(file)
        return
    # Readers go back a little at every frame, and in a compressed stream that means from its start: unpack all of it.
    compressed = file.name.lower().endswith(COMPRESSED)
    with io.BytesIO(_unpacked(file)) if compressed else file.open("rb") as raw:
        content: IO[Any] = raw if get_ioformat(form).isbinary else io.TextIOWrapper(raw, encoding="utf-8")
        if form == "xyz" and _has_keys(content):
            form = "extxyz"
        if form == "extxyz":
            for refuse in (refuse_columns, refuse_counts):
                content.seek(0)
                refuse(content, str(file))
        content.seek(0)
        yield from ase.io.iread(content, index=":", format=form, do_not_split_by_at_sign=True)


def _has_keys(lines: IO[str]) -> bool:
    """Whether an xyz file is extended xyz: key=value in the comment line of its first frame."""
    lines.readline()
    return "=" in lines.readline()


def _database_rows(file: Path) -> Iterator[Atoms]:
    # connecting ASE to a database that is not its own would create tables in it
    with sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type='table' AND name='systems'"
        if connection.execute(query).fetchone() is None:
            raise InputError(f"{file}: not an ASE database")
    connection.close()
    with ase.db.connect(str(file.absolute()), type="db", serial=True, use_lock_file=False) as database:
        for row in database.select():
            atoms = row.toatoms()
            atoms.info.update(row.key_value_pairs)
            yield atoms


def _unpacked(file: Path) -> bytes:
    """Content of a ``.gz``, ``.bz2`` or ``.xz`` file.

    Raises:
        InputError: it unpacks to hundreds of times its size.
    """
    most = max(_ALWAYS_ALLOWED, _MOST_RATIO * file.stat().st_size)
    blocks, n_bytes = [], 0
    with open_with_compression(str(file), "rb") as stream:
        while block := stream.read(_BLOCK):
            blocks.append(block)
            n_bytes += len(block)
            if n_bytes > most:
                raise InputError(f"{file}: refused, it unpacks to more than {_MOST_RATIO} times its size; unpack it")
    return b"".join(blocks)


def refuse_columns(lines: Iterable[str], where: str) -> None:
    """Refuse extended xyz that announces more columns than its reader should take memory for.

    Raises:
        InputError: ``Properties=...`` names more columns than any file has.
    """
    for line in lines:
        if "=" not in line:
            continue
        for found in _COLUMNS.finditer(line[:_MOST_LINE]):
            counts = [
                int(word) if len(word) < 7 else _MOST_COLUMNS for word in found[1].split(":")[2::3] if word.isdigit()
            ]
            if sum(counts) >= _MOST_COLUMNS:
                raise InputError(f"{where}: 'Properties' names {_MOST_COLUMNS:,} columns or more; correct that line")


def refuse_counts(lines: Iterable[str], where: str) -> None:
    """Refuse extended xyz that announces more atoms than it has lines: its reader would count to any number.

    Raises:
        InputError: a frame is longer than the file.
    """
    lines = iter(lines)
    for header in lines:
        if header.lstrip().startswith("VEC"):
            continue
        word = header.strip()
        if not word.isdecimal():
            return
        n_atoms = int(word) if len(word) < _MOST_DIGITS else 10**_MOST_DIGITS
        # the comment line comes first
        n_lines = sum(1 for _ in islice(lines, n_atoms + 1))
        if n_lines < n_atoms:
            raise InputError(
                f"{where}: a frame announces {word[:_MOST_DIGITS]} atoms, and the file ends after {n_lines} lines; "
                "it is cut short, or that number is wrong"
            )
