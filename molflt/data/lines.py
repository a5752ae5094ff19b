"""Numbered lines of a text file, and errors that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

from molflt.errors import InputError


class Line(NamedTuple):
    """A line that is not blank.

    Attributes:
        number: counted from 1.
        words: what stands in it between blanks.
    """

    number: int
    words: list[str]

    @property
    def text(self) -> str:
        """The words, with one blank between two."""
        return " ".join(self.words)


def numbered(lines: Iterable[str], comment: str) -> list[Line]:
    """The lines that are neither blank nor begin with one of the characters that mark a comment."""
    split = ((number, line.split()) for number, line in enumerate(lines, 1))
    return [Line(number, words) for number, words in split if words and words[0][0] not in comment]


def numbers(words: Iterable[str]) -> list[float] | None:
    """The words as numbers; None where one is none."""
    try:
        return list(map(float, words))
    except ValueError:
        return None


def refuse(where: str, lines: Sequence[Line], why: str) -> NoReturn:
    """Refuse a file for the first of some of its lines.

    Raises:
        InputError: with the line's number, or that the file is cut short where there is none.
    """
    raise InputError(f"{where}: line {lines[0].number}: {why}" if lines else f"{where}: cut short: {why}")
