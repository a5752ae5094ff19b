"""What a text file from strangers may ask of its reader, checked before the reader sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from ase.io.formats import open_with_compression

from molflt.errors import InputError

_BLOCK = 1 << 20
_ALWAYS_ALLOWED = 64 << 20
_MOST_RATIO = 200
"""Structures shrink to a third or a twentieth; what shrinks a thousand times is empty."""
_MOST_COLUMNS = 1000
_MOST_LINE = 1 << 20
_MOST_DIGITS = 12
_COLUMNS = re.compile(r"properties\s*=\s*[\"']?([^\s\"']+)", re.IGNORECASE)
COMPRESSED = (".gz", ".bz2", ".xz")


def unpacked(file: Path) -> bytes:
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


def refuse_counts(lines: Iterator[str], where: str) -> None:
    """Refuse extended xyz that announces more atoms than it has lines: its reader would count to any number.

    Raises:
        InputError: a frame is longer than the file.
    """
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
