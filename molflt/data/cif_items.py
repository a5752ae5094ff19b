"""The items of a block of CIF by their names, in either spelling of the dictionaries, with their lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemmi import cif

from molflt.errors import InputError

DEUTERIUM = "D and T are read as hydrogen"
"""A remark."""


class Items:
    """Names in lower case and with underscores: ``_cell.length_a`` of newer dictionaries is ``_cell_length_a``.

    Args:
        block: of a document.

    Raises:
        InputError: an item stands there twice, or atoms are in a save frame.
    """

    def __init__(self, block: cif.Block) -> None:
        self.block = block
        self._found: dict[str, tuple[cif.Item, int]] = {}
        spelt = set()
        for item in block:
            tags = item.loop.tags if item.loop else _pair(item)[:1]
            for place, tag in enumerate(tags):
                name = tag.lower().replace(".", "_")
                if name in self._found:
                    raise InputError(f"line {item.line_number}: {tag} stands there a second time; delete one of them")
                self._found[name] = item, place
                spelt.add(tag.lower())
            if item.frame and any(Items(item.frame).starting("_atom_site_")):
                raise InputError(f"line {item.line_number}: atoms in a save frame; move them into a data block")
        self.is_mmcif = "_atom_site.cartn_x" in spelt and any(
            tag.startswith(("_atom_site.label_", "_atom_site.auth_")) for tag in spelt
        )

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def starting(self, start: str) -> list[str]:
        """All names that begin so."""
        return [name for name in self._found if name.startswith(start)]

    def line(self, name: str) -> int:
        """Where an item, or its loop, begins."""
        return int(self._found[name][0].line_number)

    def column(self, name: str, n: int = 0) -> Sequence[str]:
        """All values of an item; unknown ones, written ? or ., are empty. A missing item has ``n`` of these.

        Raises:
            InputError: there are not ``n`` of them.
        """
        if name not in self._found:
            return [""] * n
        item, place = self._found[name]
        values = item.loop.values[place :: item.loop.width()] if item.loop else _pair(item)[1:]
        if n and len(values) != n:
            raise InputError(f"line {item.line_number}: {name} has {len(values)} values for {n} atoms")
        return ["" if cif.is_null(value) else cif.as_string(value) for value in values]

    def text(self, name: str) -> str:
        """The value of an item, empty where it is missing or unknown."""
        column = self.column(name)
        return " ".join(column[0].split()) if len(column) == 1 else ""

    def number(self, name: str) -> float | None:
        """The value of an item without its uncertainty; None: missing, unknown or no number."""
        value = cif.as_number(self.text(name) or "?")
        return value if value == value else None


def _pair(item: cif.Item) -> list[str]:
    """Name and value of an item that is in no loop; a comment and a frame have neither."""
    pair: Any = item.pair
    return list(pair or ())
