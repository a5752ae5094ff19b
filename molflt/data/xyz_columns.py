"""The columns of an xyz frame: what ``Properties`` says they are, and arrays of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from ase.calculators.calculator import all_properties

from molflt.data.symbols import element
from molflt.errors import InputError
from molflt.terminal_text import shown

PLAIN = "species:S:1:pos:R:3"
"""``Properties`` of a frame without them."""
_MOST_COLUMNS = 1000
_NAMES = {
    **{name: name for name in (*all_properties, "positions", "numbers", "symbols", "force", "move_mask", "tags")},
    **{name: name for name in ("initial_charges", "initial_magmoms", "masses", "momenta")},
    **{name: name for name in ("positions_relaxed", "pos_relaxed", "fixed")},
    "species": "symbols",
    "pos": "positions",
    "z": "numbers",
    "charge": "charges",
}
"""ASE's names of columns that mean something to ASE or molflt; files have them in any case."""
_SHAPES = {
    "symbols": ("S:1", "I:1"),
    "numbers": ("I:1",),
    "positions": ("R:3", "I:3"),
    "initial_charges": ("R:1", "I:1"),
    "move_mask": ("L:1", "L:3", "I:1", "I:3"),
}
_LOGICAL = {"T": True, "F": False, "TRUE": True, "FALSE": False, "1": True, "0": False}
_EXPONENT = re.compile(r"(?<=[\d.])(?:\*\^|[dD])(?=[-+\d])")
"""Of Fortran, and of Mathematica, which wrote QM9."""
_Texts = Sequence[Sequence[str]]
"""Words of a column, (width, n_atoms)."""


class Column(NamedTuple):
    """Neighbouring columns of one name.

    Attributes:
        name: ASE's.
        kind: R, I, S or L.
        start: place of the first among all.
        width: how many they are.
    """

    name: str
    kind: str
    start: int
    width: int


@lru_cache(maxsize=8)
def parse_properties(text: str) -> tuple[Column, ...]:
    """Columns in their order, by the value of ``Properties``.

    Raises:
        ValueError: they are not NAME:TYPE:NUMBER each, two have one name, or species or positions are missing.
    """
    words = text.strip().split(":")
    columns: dict[str, Column] = {}
    start = 0
    for place in range(0, len(words), 3):
        given, kind, number = (*words[place : place + 3], "", "")[:3]
        if (
            not given
            or kind.upper() not in _READ
            or not (number.isascii() and number.isdigit() and number.strip("0"))
        ):
            entry = ":".join((given, kind, number))
            raise ValueError(f"has {shown(entry)}; write NAME:TYPE:NUMBER with a TYPE of R, I, S and L")
        name = _NAMES.get(given.lower(), given)
        if (folded := name.lower()) in columns:
            raise ValueError(f"names '{given}', which is there already: two things of one name; rename one of them")
        columns[folded] = column = Column(
            name, kind.upper(), start, int(number) if len(number) < 7 else _MOST_COLUMNS
        )
        start += column.width
        if start >= _MOST_COLUMNS:
            raise ValueError(f"names {_MOST_COLUMNS:,} columns or more; correct that line")
        shape, allowed = f"{column.kind}:{column.width}", _SHAPES.get(name, ())
        if allowed and shape not in allowed:
            raise ValueError(f"has {given}:{shape}; expected {' or '.join(allowed)}")
    if "positions" not in columns or not ("symbols" in columns or "numbers" in columns):
        raise ValueError(f"names no species or no positions; begin it with {PLAIN}")
    return tuple(columns.values())


def read_column(column: Column, texts: _Texts, at: Callable[[int], str]) -> np.ndarray:
    """(n_atoms,) or (n_atoms, width): atomic numbers of ``symbols`` and ``numbers``, else what the kind says.

    Args:
        column: which.
        texts: its words, (width, n_atoms).
        at: where a row is, for messages.

    Raises:
        InputError: a word is none of its kind, with its line.
    """
    if column.name in ("symbols", "numbers"):
        return _elements(texts[0], at)
    array = _READ[column.kind](texts)
    if array is None:
        for row, words in enumerate(zip(*texts, strict=True)):
            if _READ[column.kind]([[word] for word in words]) is None:
                what = {"R": "numbers", "I": "whole numbers", "L": "T or F"}[column.kind]
                raise InputError(f"{at(row)}: column '{column.name}' has {shown(' '.join(words))}, expected {what}")
    assert array is not None
    return array[0] if column.width == 1 else array.T


def reals(texts: _Texts) -> np.ndarray | None:
    """(width, n_atoms) float64; None where a word is no number. Exponents may be ``e``, ``d`` or ``*^``."""
    try:
        return np.array([list(map(float, words)) for words in texts])
    except ValueError:
        pass
    try:
        return np.array([[float(_EXPONENT.sub("e", word)) for word in words] for words in texts])
    except ValueError:
        return None


def _whole(texts: _Texts) -> np.ndarray | None:
    try:
        return np.array([list(map(int, words)) for words in texts], dtype=np.int32)
    except (ValueError, OverflowError):
        return None


def _logical(texts: _Texts) -> np.ndarray | None:
    try:
        return np.array([[_LOGICAL[word.upper()] for word in words] for words in texts], dtype=bool)
    except KeyError:
        return None


def _words(texts: _Texts) -> np.ndarray:
    return np.array(texts, dtype=object)


_READ: dict[str, Callable[[_Texts], np.ndarray | None]] = {"R": reals, "I": _whole, "L": _logical, "S": _words}
_READ |= {kind.lower(): read for kind, read in _READ.items()}


def _elements(words: Sequence[str], at: Callable[[int], str]) -> np.ndarray:
    table: dict[str, int] = {}
    for row, word in enumerate(words):
        if word not in table:
            try:
                table[word] = element(word)
            except ValueError as error:
                raise InputError(f"{at(row)}: {error}") from error
    return np.array([table[word] for word in words], dtype=np.int64)
