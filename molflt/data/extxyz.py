"""Columns declared by Properties, and keys of the comment, of an extended xyz frame."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ase.calculators.calculator import all_properties

from molflt.data.labels import any_array
from molflt.data.record import ENERGIES, TEXTS
from molflt.data.text import element
from molflt.errors import InputError
from molflt.terminal_text import shown

PLAIN = "species:S:1:pos:R:3"
"""``Properties`` of a frame that declares none."""
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
"""ASE's names of known columns; files may write them in any case."""
_SHAPES = {
    "symbols": ("S:1", "I:1"),
    "numbers": ("I:1",),
    "positions": ("R:3", "I:3"),
    "initial_charges": ("R:1", "I:1"),
    "move_mask": ("L:1", "L:3", "I:1", "I:3"),
}
_TRUTH = {"T": True, "F": False, "TRUE": True, "FALSE": False, "1": True, "0": False}
_EXPONENT = re.compile(r"(?<=[\d.])(?:\*\^|[dD])(?=[-+\d])")
"""Exponents of Fortran, and of Mathematica, which wrote QM9."""
_Texts = Sequence[Sequence[str]]
"""Words of a column, (width, n_atoms)."""


class Column(NamedTuple):
    """Adjacent columns of one name.

    Attributes:
        name: ASE's name.
        kind: R, I, S or L.
        start: index of the first column.
        width: number of columns.
    """

    name: str
    kind: str
    start: int
    width: int


@lru_cache(maxsize=8)
def parse_properties(text: str) -> tuple[Column, ...]:
    """Parse the value of ``Properties`` into columns, in order.

    Raises:
        ValueError: an entry other than NAME:TYPE:NUMBER, a duplicate name, or no species or positions.
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
    """Convert the words of a column to (n_atoms,) or (n_atoms, width) values of its kind.

    ``symbols`` and ``numbers`` become atomic numbers.

    Args:
        column: the column.
        texts: its words, (width, n_atoms).
        at: location of a row, for messages.

    Raises:
        InputError: a word that does not fit, with its line.
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
    """Parse words as (width, n_atoms) float64; None if one is not a number.

    Exponents may be ``e``, ``d`` or ``*^``.
    """
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
        return np.array([[_TRUTH[word.upper()] for word in words] for words in texts], dtype=bool)
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


_OWN = {word.lower(): word for word in ("Lattice", "Properties", "pbc", "virial", "sid", *ENERGIES, *TEXTS)} | {
    word: word for word in all_properties
}
"""Known keys as written after reading; files may write them in any case."""
_NEEDS_VALUE = ("Lattice", "Properties", "pbc")
_QUOTED = r"""\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{(?:[^}\\]|\\.)*\}|\[(?:[^\]\\]|\\.)*\]"""

# Every alternative begins with another character, so there is no backtracking.
_KEY = rf"""(?:[^\s="'{{\[\\]|{_QUOTED})+"""
_ENTRY = re.compile(rf"({_KEY})(?:(\s*)=(\s*))?")
_VALUE = re.compile(rf"""(?:[^\s"'{{\[\\]|{_QUOTED})*""")
_NEXT_KEY = re.compile(rf"{_KEY}\s*=")
_SPACE = re.compile(r"\s*")
_UNQUOTE = re.compile(_QUOTED)
_ESCAPED = re.compile(r"\\(.)")
_ASSIGNED = re.compile(r"""[\w"'\]}]\s*=""")
_WORDS = re.compile(r"[^\s,]+")
_LOGICAL = {"T": True, "F": False} | {
    word: value for value in (True, False) for word in (str(value), str(value).lower(), str(value).upper())
}


def has_keys(comment: str) -> bool:
    """True for extended xyz: a word is followed by an equals sign. ``CC(=O)O`` has none."""
    return "=" in comment and _ASSIGNED.search(comment) is not None


def parse_comment(comment: str, where: str) -> dict[str, Any]:
    """Parse keys and values as ASE's ``key_val_str_to_dict``; a word without a value is True.

    An empty value is an empty text, and does not swallow the next key as in ASE.

    Args:
        comment: the line.
        where: file, frame and line, for messages.

    Raises:
        InputError: a quote without its end, a value without a key, or duplicate keys, whatever their case.
    """
    found: dict[str, Any] = {}
    written: dict[str, str] = {}
    alone: list[str] = []
    for key, value in _pairs(comment.strip(), where):
        folded = key.lower()
        name = _OWN.get(folded, key)
        if value is None:
            if name in _NEEDS_VALUE:
                raise InputError(f"{where}: '{key}' has no value; write {key}=...")
            alone.append(key)
            continue
        if folded in written:
            raise InputError(
                f"{where}: '{written[folded]}' and '{key}' are two values of one name; leave one of them out"
            )
        written[folded] = key
        try:
            found[name] = _value(name, value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: the value of '{key}' is {shown(value)}: {error}") from error
    # A bare word in a text, such as "final energy E=-1", is not its value.
    found.update({word: True for word in alone if word.lower() not in written and word.lower() not in _OWN})
    return found


def _pairs(comment: str, where: str) -> Iterator[tuple[str, str | None]]:
    """Yield keys and values as written; None for a word without a value."""
    at = 0
    while at < len(comment):
        if (entry := _ENTRY.match(comment, at)) is None:
            raise InputError(f"{where}: {_cannot_be_read(comment, at)}")
        at, value = entry.end(), None
        key, before, behind = entry.groups()
        if before is not None:
            value = ""
            if not (behind and _NEXT_KEY.match(comment, at)):
                value = _VALUE.match(comment, at)[0]  # type: ignore[index]
                at += len(value)
            elif before:
                raise InputError(f"{where}: it is not clear which value '{key[:40]}' has; put quotes around it")
        yield _unquoted(key), None if value is None else _unquoted(value)
        space = _SPACE.match(comment, at).end()  # type: ignore[union-attr]
        if at == space < len(comment) and value != "":
            raise InputError(f"{where}: {_cannot_be_read(comment, at)}")
        at = space


def _cannot_be_read(comment: str, at: int) -> str:
    if comment[at] == "=":
        return f"no name stands before '{comment[at : at + 20]}'; write NAME=VALUE, with quotes where it has spaces"
    return (
        f"nothing closes the {comment[at]} of {comment[at : at + 20]!r}; close it, or write \\{comment[at]} where it "
        "is a part of the text"
    )


def _unquoted(word: str) -> str:
    def inner(piece: re.Match[str]) -> str:
        text = piece[0]
        return text[1:] if text[0] == "\\" else _ESCAPED.sub(r"\1", text[1:-1])

    return _UNQUOTE.sub(inner, word)


def _value(key: str, text: str) -> Any:
    if key.lower() == "uid" or not (words := _WORDS.findall(text)):
        return text
    for kind in (int, float):
        try:
            numbers = np.array([kind(word) for word in words], dtype=kind)
        except (ValueError, OverflowError):
            continue
        if key in ("virial", "stress") and len(numbers) == 9:
            return numbers.reshape((3, 3), order="F")
        return numbers if len(numbers) > 1 else numbers[0]
    if all(word in _LOGICAL for word in words):
        logical = [_LOGICAL[word] for word in words]
        return logical if len(logical) > 1 else logical[0]
    return _json(text.removeprefix("_JSON ")) if text.startswith("_JSON ") else text


def _json(text: str) -> Any:
    """Parse a JSON value, as an array if it is a short one of numbers."""
    value = json.loads(text)
    try:
        array = any_array(value, "JSON", "")
    except InputError:
        return value
    return array if array.dtype.kind in "ifb" else value
