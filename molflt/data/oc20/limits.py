"""Limits on untrusted pickles: opcodes are checked before a run, copies counted during it.

``pickletools.genops`` sees the same opcodes as this module, but decodes every argument, which would take most of the
time to read a record. Copies are counted because a pickle can copy the same bytes a million times with a few bytes
of its own for each copy.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LEFT: ContextVar[list[int]] = ContextVar("bytes left")
_STOP = ord(".")
_EXTENSIONS = frozenset(b"\x82\x83\x84")
_PUT, _BINPUT, _LONG_BINPUT = ord("p"), ord("q"), ord("r")
_TUPLES = frozenset(b"t\x85\x86\x87")
_MOST_TUPLES = 20_000
"""Most tuples: Python hashes nested tuples by unlimited recursion; beyond 80,000 the process dies."""
_INTEGERS = frozenset(b"IL\x8a\x8b")
_COLLIDING, _MOST_COLLIDING = (1 << 61) - 1, 256
"""Python's hash of an integer is its remainder by this number, so larger ones can be chosen to collide: a dict of a
hundred thousand such keys takes minutes. No record has many integers as large."""
_LINES, _PREFIXED = "lines", "prefixed"
_KNOWN: list[tuple[str, int, bool] | None] = [None] * 256
"""Shape of the argument by opcode: ("fixed", bytes), ("lines", how many end it) or ("prefixed", bytes of the
length, whether it has a sign); None: no opcode."""


def _shape(argument: pickletools.ArgumentDescriptor | None) -> tuple[str, int, bool]:
    if argument is None:
        return "fixed", 0, False
    if argument.n >= 0:
        return "fixed", argument.n, False
    if argument.n == pickletools.UP_TO_NEWLINE:
        return _LINES, 2 if argument.name == "stringnl_noescape_pair" else 1, False
    prefixes = {
        pickletools.TAKEN_FROM_ARGUMENT1: (1, False),
        pickletools.TAKEN_FROM_ARGUMENT4: (4, True),
        pickletools.TAKEN_FROM_ARGUMENT4U: (4, False),
        pickletools.TAKEN_FROM_ARGUMENT8U: (8, False),
    }
    return _PREFIXED, *prefixes[argument.n]


for _opcode in pickletools.opcodes:
    _KNOWN[ord(_opcode.code)] = _shape(_opcode.arg)
_FIXED = [shape[1] + 1 if shape and shape[0] == "fixed" else 0 for shape in _KNOWN]
"""Length by opcode if it is constant, else 0."""
_FIXED[_STOP] = 0
for _code in (*_EXTENSIONS, *_TUPLES, _PUT, _BINPUT, _LONG_BINPUT):
    _FIXED[_code] = 0


def refuse_opcodes(raw: bytes) -> None:
    """Refuse harmful opcodes before any name is looked up, without running any.

    Args:
        raw: a pickle, perhaps followed by other bytes.

    Raises:
        pickle.UnpicklingError: an extension code, a memo index beyond the length of the pickle, more tuples or huge
            integers than any record has, an unknown opcode, or a pickle that ends early.
    """
    position, end, n_tuples, n_colliding = 0, len(raw), 0, 0
    fixed = _FIXED
    while position < end:
        code = raw[position]
        if step := fixed[code]:
            position += step
            continue
        if code == _STOP:
            return
        if code in _TUPLES:
            position, n_tuples = position + 1, n_tuples + 1
            if n_tuples > _MOST_TUPLES:
                raise pickle.UnpicklingError(f"refused: more than {_MOST_TUPLES} tuples")
            continue
        # an extension code registered and used by some library comes from a cache, bypassing find_class
        if code in _EXTENSIONS:
            raise pickle.UnpicklingError("refused: pickle extension codes")
        start, position = position + 1, _behind(raw, position)
        # memory is allocated for every index up to the given one
        if code == _BINPUT and position <= end:
            _refuse_place(raw[start], end)
        elif code == _LONG_BINPUT and position <= end:
            _refuse_place(int.from_bytes(raw[start:position], "little"), end)
        elif code == _PUT:
            _refuse_place(int(raw[start : position - 1]), end)
        elif code in _INTEGERS and _may_collide(code, raw[start:position]):
            n_colliding += 1
            if n_colliding > _MOST_COLLIDING:
                raise pickle.UnpicklingError(f"refused: more than {_MOST_COLLIDING} integers of 62 bits or more")
    raise pickle.UnpicklingError("the pickle ends before its last opcode")


def _refuse_place(place: int, n_bytes: int) -> None:
    if place > n_bytes:
        raise pickle.UnpicklingError(f"refused: memo place {place} in {n_bytes} bytes")


def _may_collide(code: int, argument: bytes) -> bool:
    """True if an opcode's argument makes an integer large enough for a hash collision."""
    if code in b"IL":
        # including a minus sign, an L and the end of the line
        return len(argument) > 18 and len(argument.strip(b"-+L\n\r 0_")) > 17
    digits = argument[1:] if code == 0x8A else argument[4:]
    return len(digits) > 7 and abs(int.from_bytes(digits[-9:], "little", signed=True)) >= (
        _COLLIDING if len(digits) < 10 else 0
    )


def _behind(raw: bytes, position: int) -> int:
    """Position after the opcode at ``position``, and its argument; past the end if truncated."""
    shape = _KNOWN[raw[position]]
    if shape is None:
        raise pickle.UnpicklingError(f"unknown opcode {raw[position : position + 1]!r}")
    kind, size, signed = shape
    position += 1
    if kind == _LINES:
        for _ in range(size):
            found = raw.find(b"\n", position)
            if found < 0:
                raise pickle.UnpicklingError("a line of the pickle has no end")
            position = found + 1
        return position
    if kind == _PREFIXED:
        length = int.from_bytes(raw[position : position + size], "little", signed=signed)
        if length < 0:
            raise pickle.UnpicklingError(f"an argument of {length} bytes")
        return position + size + length
    return position + size


@contextmanager
def allowance(n_bytes: int) -> Iterator[None]:
    """Set the bytes that one pickle may copy in all, while it runs."""
    token = _LEFT.set([n_bytes])
    try:
        yield
    finally:
        _LEFT.reset(token)


def take(n_bytes: int) -> None:
    """Count bytes that are about to be copied.

    Raises:
        pickle.UnpicklingError: more than allowed.
        LookupError: outside of ``allowance``.
    """
    left = _LEFT.get()
    left[0] -= n_bytes
    if left[0] < 0:
        raise pickle.UnpicklingError("refused: it unfolds to many times its size")
