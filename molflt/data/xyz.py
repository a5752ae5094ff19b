"""Frames of xyz and extended xyz files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

import ase.io
from ase import Atoms

from molflt.data.notes import Notes
from molflt.errors import InputError

_MOST_COLUMNS = 1000
_MOST_LINE = 1 << 20
_MOST_DIGITS = 12
_COLUMNS = re.compile(r"properties\s*=\s*[\"']?([^\s\"']+)", re.IGNORECASE)


def xyz_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Every frame of an xyz file, extended or not.

    Raises:
        InputError: it cannot be read.
    """
    form = "extxyz" if where.endswith(".extxyz") or _has_keys(stream) else "xyz"
    if form == "extxyz":
        for check in (refuse_columns, refuse_counts):
            stream.seek(0)
            check(stream, where)
    stream.seek(0)
    yield from ase.io.iread(stream, index=":", format=form, do_not_split_by_at_sign=True)


def _has_keys(lines: IO[str]) -> bool:
    """Whether an xyz file is extended xyz: key=value in the comment line of its first frame."""
    lines.readline()
    return "=" in lines.readline()


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
