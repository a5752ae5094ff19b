"""Text from strangers, made fit for terminals and files."""

from __future__ import annotations

import re
import reprlib

_HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """The text with ``\\x1b`` and the like in place of what is no printed character.

    Control characters command terminals and break lines of files in two, marks of direction show a text in another
    order than it has, and half of a surrogate pair cannot be written at all.

    Args:
        text: any text.
        keep: characters to leave as they are.
    """
    return _HARMFUL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def shown(value: object) -> str:
    """The first 40 characters of a value's ``repr``, or its type.

    The plain ``repr`` of a list of lists of one list has no end, and Python writes no integer of 5,000 digits.
    """
    try:
        return reprlib.repr(value)[:40]
    except ValueError:
        return type(value).__name__
