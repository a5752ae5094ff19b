"""The comment line of an extended xyz frame: key=value pairs, and their values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from ase.calculators.calculator import all_properties

from molflt.data.labels import any_array
from molflt.data.records import ENERGIES, TEXTS
from molflt.errors import InputError
from molflt.terminal_text import shown

_OWN = {word.lower(): word for word in ("Lattice", "Properties", "pbc", "virial", "sid", *ENERGIES, *TEXTS)} | {
    word: word for word in all_properties
}
"""Keys that mean something to molflt or ASE, as they are written after reading; files have them in any case."""
_NEEDS_VALUE = ("Lattice", "Properties", "pbc")
_QUOTED = r"""\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{(?:[^}\\]|\\.)*\}|\[(?:[^\]\\]|\\.)*\]"""
# Every alternative begins with another character, so nothing is tried twice.
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
    """Whether a comment is one of extended xyz: it has an equals sign behind a word. ``CC(=O)O`` has none."""
    return "=" in comment and _ASSIGNED.search(comment) is not None


def parse_comment(comment: str, where: str) -> dict[str, Any]:
    """Keys and values, as ASE's ``key_val_str_to_dict`` finds them; a word without a value is True.

    An empty value is an empty text, and does not swallow the key behind it as in ASE.

    Args:
        comment: the line.
        where: file, frame and line, for messages.

    Raises:
        InputError: a quote without its end, a value without a key, or two keys that differ at most in case.
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
    # A word that stands alone in a text, such as "final energy E=-1", is not its value.
    found.update({word: True for word in alone if word.lower() not in written and word.lower() not in _OWN})
    return found


def _pairs(comment: str, where: str) -> Iterator[tuple[str, str | None]]:
    """Keys and values as they are written; None for a word without a value."""
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
    """A value of JSON; as an array where it is one of numbers, and short enough for an array."""
    value = json.loads(text)
    try:
        array = any_array(value, "JSON", "")
    except InputError:
        return value
    return array if array.dtype.kind in "ifb" else value
