"""Isotopes of hydrogen in the files of other programs."""

from __future__ import annotations

from molflt.data.notes import Notes

_ISOTOPES = ("D", "T")


def hydrogen_of(symbol: str, notes: Notes) -> str:
    """H for deuterium and tritium, which a note says; other symbols as they are."""
    if symbol not in _ISOTOPES:
        return symbol
    notes.add(f"{symbol} is read as hydrogen")
    return "H"
