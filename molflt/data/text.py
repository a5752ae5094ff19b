"""Text files: limited decompression, lines and words, and remarks on ignored content."""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from ase.data import atomic_numbers
from ase.io.formats import open_with_compression

from molflt.errors import InputError, ordinary_file, warn_caller

_BLOCK = 1 << 20
_ALWAYS_ALLOWED = 64 << 20
_MOST_RATIO = 200
"""Structures shrink by a factor of 3 to 20 when compressed; a factor of a thousand means empty data."""
BYTE_ORDER_MARK = "\ufeff"
COMPRESSED = (".gz", ".bz2", ".xz")


def bare_name(file: Path) -> str:
    """Lower-case name of a file without the suffix of a compression."""
    name = file.name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def bare_suffix(file: Path) -> str:
    """Suffix of that name, with its dot."""
    return Path(bare_name(file)).suffix


def content(file: Path) -> bytes:
    """Read a file, decompressed if its name ends in ``.gz``, ``.bz2`` or ``.xz``.

    Raises:
        InputError: no such file, damaged, or it decompresses to hundreds of times its size.
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
    """Read a UTF-8 text file, with lines that end in ``\\n`` on all systems.

    Byte-order marks are dropped, also inside the text, where they come from concatenated files.

    Raises:
        InputError: as :func:`content`, or it is not text.
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
        words: its words, separated by blanks.
    """

    number: int
    words: list[str]

    @property
    def text(self) -> str:
        """The words, joined by single blanks."""
        return " ".join(self.words)


def numbered(lines: Iterable[str], comment: str) -> list[Line]:
    """Return the lines that are neither blank nor start with a comment character."""
    split = ((number, line.split()) for number, line in enumerate(lines, 1))
    return [Line(number, words) for number, words in split if words and words[0][0] not in comment]


def numbers(words: Iterable[str]) -> list[float] | None:
    """Convert words to numbers; None if one is not a number."""
    try:
        return list(map(float, words))
    except ValueError:
        return None


def refuse(where: str, lines: Sequence[Line], why: str) -> NoReturn:
    """Refuse a file because of the first of some lines.

    Raises:
        InputError: with the line's number, or that the file is truncated if there is no line.
    """
    raise InputError(f"{where}: line {lines[0].number}: {why}" if lines else f"{where}: cut short: {why}")


def remark(where: str, text: str) -> None:
    """Warn about something ignored or assumed in a file or folder."""
    warn_caller(f"{where}: {text}")


class Notes:
    """Collection of remarks on a file, each given once, however many records it concerns.

    Args:
        where: the file.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._records: dict[str, list[str]] = {}

    def add(self, remark: str, record: str = "") -> None:
        """Note something about a record, named ``FILE#INDEX`` or by its line, or about the file."""
        records = self._records.setdefault(remark, [])
        if record:
            records.append(record)

    def give(self) -> None:
        """Warn of all remarks, and forget them."""
        for remark, records in self._records.items():
            n = len(records)
            which = "" if n == 0 else f" ({records[0]})" if n == 1 else f" ({n:,} structures, first: {records[0]})"
            warn_caller(f"{self._where}: {remark}{which}")
        self._records.clear()


_LABEL = re.compile(r"([A-Za-z]{1,2})[_-]?[0-9]+")
_AMBIGUOUS = frozenset(
    "CA CD CE CF CN CO CS HE HF HG HO HS NA NB ND NE NH NO NP OG OS SB SC SE SG SN".split()  # noqa: SIM905
)
"""Symbols that, in capitals or small letters, are also usual atom names of C, H, N, O and S: an element and a
position (CA, HG, in PDB and in force fields), or two elements (CO)."""
_ISOTOPES = ("D", "T")


@lru_cache(maxsize=1024)
def element(word: str) -> int:
    """Return the atomic number of a word for an atom.

    The word is a symbol, an atomic number (not checked for existence), or a label: a symbol followed by digits
    (``C1``, ``H_12``). D and T are hydrogen, X is 0. A symbol may be all in capitals or in small letters if it is
    unambiguous.

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
        raise ValueError(f"'{word[:20]}' is not an element; write its symbol or atomic number")
    if letters != symbol and letters.upper() in _AMBIGUOUS:
        raise ValueError(
            f"'{word[:20]}' may be {symbol} or the label of an atom of {symbol[0]}; write {symbol} or {symbol[0]}"
        )
    return atomic_numbers[symbol]


def is_label(word: str) -> bool:
    """True if a word accepted by :func:`element` is a label, whose digits are ignored."""
    return not word.isdigit() and word[-1:].isdigit()


def hydrogen_of(symbol: str, notes: Notes) -> str:
    """Replace deuterium and tritium by H, with a note; other symbols are unchanged."""
    if symbol not in _ISOTOPES:
        return symbol
    notes.add(f"{symbol} is read as hydrogen")
    return "H"
