"""Text from untrusted sources, made safe for terminals and files."""

from __future__ import annotations

import re
import reprlib
import sys

import numpy as np

_HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, keep: str = "") -> str:
    """Replace unprintable characters by escapes such as ``\\x1b``.

    Control characters command terminals and break lines of files in two, direction marks show a text in another
    order, and half of a surrogate pair cannot be written at all. NumPy text may hold numbers beyond Unicode, which
    can be written but never read.

    Args:
        text: any text.
        keep: characters to leave as they are.
    """
    raw = text.encode("utf-8", "surrogatepass")
    try:
        raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        # Not by the expression below: Python cannot even extract such a character from its text.
        text = raw.decode("utf-8", "backslashreplace")
    return _HARMFUL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def holds_text(array: np.ndarray) -> bool:
    """True if an array of text is valid Unicode; NumPy takes any number for a character.

    Args:
        array: in native byte order.
    """
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    return numbers.size == 0 or int(numbers.max()) <= sys.maxunicode


def shown(value: object) -> str:
    """Return the first 40 characters of a value's ``repr``, or its type.

    The plain ``repr`` of a list of lists of one list has no end, and Python writes no integer of 5,000 digits.
    """
    try:
        return reprlib.repr(value)[:40]
    except ValueError:
        return type(value).__name__
