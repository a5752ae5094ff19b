"""Elements by the words that files have for them."""

from __future__ import annotations

import re
from functools import lru_cache

from ase.data import atomic_numbers

from molflt.data.notes import Notes

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
        ValueError: it is none of these; with a reason and the remedy.
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
    """Whether a word that :func:`element` knows is a label, of which the digits are passed over."""
    return not word.isdigit() and word[-1:].isdigit()


def hydrogen_of(symbol: str, notes: Notes) -> str:
    """H for deuterium and tritium, which a note says; other symbols as they are."""
    if symbol not in _ISOTOPES:
        return symbol
    notes.add(f"{symbol} is read as hydrogen")
    return "H"
