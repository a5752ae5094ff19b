"""Text files: unpacked within limits, line by line, with words for elements and remarks on what is passed over."""

from __future__ import annotations

import lzma
import re
import warnings
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from ase.data import atomic_numbers
from ase.io.formats import open_with_compression

from molflt.errors import InputError, InputWarning, ordinary_file

_BLOCK = 1 << 20
_ALWAYS_ALLOWED = 64 << 20
_MOST_RATIO = 200
"""Structures shrink to a third or a twentieth; what shrinks a thousand times is empty."""
BYTE_ORDER_MARK = "\ufeff"
COMPRESSED = (".gz", ".bz2", ".xz")


def bare_name(file: Path) -> str:
    """Name of a file in lower case, without the ending of a compression."""
    name = file.name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def bare_suffix(file: Path) -> str:
    """Ending of that name, with its dot."""
    return Path(bare_name(file)).suffix


def content(file: Path) -> bytes:
    """Content of a file, unpacked where its name ends in ``.gz``, ``.bz2`` or ``.xz``.

    Raises:
        InputError: no such file, damaged, or it unpacks to hundreds of times its size.
    """
    size = ordinary_file(file).stat().st_size
    if not file.name.lower().endswith(COMPRESSED):
        return file.read_bytes()
    most = max(_ALWAYS_ALLOWED, _MOST_RATIO * size)
    blocks, n_bytes = [], 0
    try:
        with open_with_compression(str(file), "rb") as stream:
            while block := stream.read(_BLOCK):
                blocks.append(block)
                n_bytes += len(block)
                if n_bytes > most:
                    raise InputError(
                        f"{file}: refused, it unpacks to more than {_MOST_RATIO} times its size; unpack it"
                    )
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise InputError(f"{file}: cannot be unpacked ({error}); copy or compress it again") from error
    return b"".join(blocks)


def read_text(file: Path) -> str:
    """Content of a text file in UTF-8, with lines that end in ``\\n`` whatever the system that wrote them.

    Byte-order marks are left out, also within the text, where they come from files put one behind the other.

    Raises:
        InputError: as of :func:`content`, or it is not text.
    """
    try:
        text = content(file).decode().replace(BYTE_ORDER_MARK, "")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not a readable text file: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


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
    """The words as numbers; None where one is not."""
    try:
        return list(map(float, words))
    except ValueError:
        return None


def refuse(where: str, lines: Sequence[Line], why: str) -> NoReturn:
    """Refuse a file for the first of some of its lines.

    Raises:
        InputError: with the line's number, or that the file is cut short where there is no line.
    """
    raise InputError(f"{where}: line {lines[0].number}: {why}" if lines else f"{where}: cut short: {why}")


def remark(where: str, text: str) -> None:
    """Warn of what was passed over or taken for granted in a file or folder."""
    warnings.warn(f"{where}: {text}", InputWarning, stacklevel=3)


class Notes:
    """Collects remarks on a file, to be given as one ``InputWarning`` each, however many records they concern.

    Args:
        where: the file.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._records: dict[str, list[str]] = {}

    def add(self, remark: str, record: str = "") -> None:
        """Note something about a record, named ``FILE#INDEX`` or by its line, or about the whole file."""
        records = self._records.setdefault(remark, [])
        if record:
            records.append(record)

    def give(self) -> None:
        """Warn of everything that was noted, and forget it."""
        for remark, records in self._records.items():
            n = len(records)
            which = "" if n == 0 else f" ({records[0]})" if n == 1 else f" ({n:,} structures, first: {records[0]})"
            warnings.warn(f"{self._where}: {remark}{which}", InputWarning, stacklevel=3)
        self._records.clear()


_LABEL = re.compile(r"([A-Za-z]{1,2})[_-]?[0-9]+")
_AMBIGUOUS = frozenset(
    "CA CD CE CF CN CO CS HE HF HG HO HS NA NB ND NE NH NO NP OG OS SB SC SE SG SN".split()  # noqa: SIM905
)
"""Symbols that in capitals or small letters are also usual names of atoms of C, H, N, O and S: an element and a place
(CA, HG, in PDB and in force fields), or two elements (CO)."""
_ISOTOPES = ("D", "T")


@lru_cache(maxsize=1024)
def element(word: str) -> int:
    """The atomic number of a word for an atom.

    The word is a symbol, an atomic number (whether there is such an element is not asked), or a label: a symbol with
    digits behind it (``C1``, ``H_12``). D and T are hydrogen, X is 0. A symbol may be all in capitals or in small
    letters where nothing else could be meant.

    Raises:
        ValueError: another word; with a reason and the remedy.
    """
    if word in atomic_numbers:
        return atomic_numbers[word]
    if word.isascii() and word.isdigit() and len(word) <= 3:
        return int(word)
    label = _LABEL.fullmatch(word)
    letters = label[1] if label else word
    symbol = letters.capitalize()
    if symbol in _ISOTOPES:
        return atomic_numbers["H"]
    if symbol not in atomic_numbers or symbol == "X":
        raise ValueError(f"'{word[:20]}' is no element; write its symbol or atomic number")
    if letters != symbol and letters.upper() in _AMBIGUOUS:
        raise ValueError(
            f"'{word[:20]}' may be {symbol} or the label of an atom of {symbol[0]}; write {symbol} or {symbol[0]}"
        )
    return atomic_numbers[symbol]


def is_label(word: str) -> bool:
    """True if a word that :func:`element` knows is a label, whose digits are passed over."""
    return not word.isdigit() and word[-1:].isdigit()


def hydrogen_of(symbol: str, notes: Notes) -> str:
    """H for deuterium and tritium, which a note says; other symbols as they are."""
    if symbol not in _ISOTOPES:
        return symbol
    notes.add(f"{symbol} is read as hydrogen")
    return "H"
