"""Rows of the text files that name molecules: SMILES or InChI, one a line, or in a column of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from molflt.data.compression import bare_suffix, read_text
from molflt.data.records import ENERGIES
from molflt.errors import InputError

TABLES, LISTS = (".csv", ".tsv"), (".smi", ".smiles", ".inchi")
_MOLECULES = ("smiles", "inchi")
_NAMES = ("name", "title", "id", "compound")
"""Columns, in any capitalisation, that name a record; the first of them that a table has and a row fills."""


@dataclass(frozen=True)
class Row:
    """A molecule of a file.

    Attributes:
        molecule: SMILES or InChI.
        columns: every cell by the name of its column.
        labels: filled cells, among which labels are looked for.
        problem: what is wrong with the row, if anything is.
    """

    molecule: str
    columns: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def own_name(self) -> str:
        """What the file calls the molecule; where it has no name, the SMILES or InChI."""
        found = {column.lower(): text for column, text in self.columns.items() if text}
        return next((found[name] for name in _NAMES if name in found), self.molecule)


def read_rows(file: Path) -> list[Row]:
    """Read a list of SMILES or InChI (and perhaps a title on each line), or a table with a column of them.

    Cells are separated by commas, semicolons or tabs, whichever makes sense of the first line.

    Raises:
        InputError: the file cannot be read, no such column, or no rows.
    """
    text = read_text(file)
    rows = list(_table_rows(file, text) if bare_suffix(file) in TABLES else _list_rows(text))
    if not rows:
        raise InputError(f"{file}: holds no molecules")
    return rows


def _list_rows(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        words = line.split(maxsplit=1)
        if words and not words[0].startswith("#"):
            title = {"name": words[1].strip()} if len(words) > 1 else {}
            yield Row(words[0], {"smiles": words[0], **title})


def _table_rows(file: Path, text: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter(text, _MOLECULES))
    begin = 1
    try:
        columns = {column.strip().lower(): column for column in reader.fieldnames or () if column}
        key = next((columns[name] for name in _MOLECULES if name in columns), None)
        if key is None:
            raise InputError(f"{file}: no column 'smiles' (or 'inchi'); found: {', '.join(columns) or 'none'}")
        begin = reader.line_num + 1
        for row in reader:
            # Cells without a column stand under None, columns without a cell hold None: empty ones.
            cells = {column.strip(): (text or "").strip() for column, text in row.items() if column}
            # Names under which labels are looked for may be written in any case.
            labels = cells | {name: cells[columns[name].strip()] for name in ENERGIES if name in columns}
            # RDKit takes names with an underscore for notes of its own.
            labels = {name: text for name, text in labels.items() if text and not name.startswith("_")}
            molecule = cells[key.strip()]
            yield Row(molecule, cells, labels, _wrong_with(row, molecule, begin, len(columns)))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{file}: cannot be read from line {begin} on ({error}); is a quotation mark there not closed?"
        ) from error


def delimiter(text: str, columns: Collection[str]) -> str:
    """What separates the cells of the first line, so that one of them is one of these columns."""
    header = text.split("\n", 1)[0].strip("\r")

    def sense(separator: str) -> tuple[bool, int]:
        cells = [cell.strip(' "').lower() for cell in header.split(separator)]
        return any(name in cells for name in columns), len(cells)

    return max(",;\t", key=sense)


def _wrong_with(row: Mapping[Any, Any], molecule: str, line: int, n_columns: int) -> str:
    if "\n" in molecule:
        return f"the SMILES goes on over several lines from line {line} on; is a quotation mark not closed?"
    if any(text.strip() for text in row.get(None) or ()):
        return (
            f"line {line} has more cells than the {n_columns} columns of the header; put text with commas in quotes"
        )
    return ""
