"""Rows of the text files that name molecules: SMILES or InChI, one a line, or in a column of a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from molflt.data.compression import bare_suffix, read_text
from molflt.data.notes import Notes
from molflt.data.reading import KNOWN_VALUES
from molflt.data.records import ENERGIES
from molflt.errors import InputError, in_line

TABLES, LISTS = (".csv", ".tsv"), (".smi", ".smiles", ".inchi")
_MOLECULES = ("smiles", "inchi")
_SEPARATORS = ",;\t"
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
        InputError: the file cannot be read, no such column, two columns of one name, or no rows.
    """
    text = read_text(file)
    rows = list((_table_rows if bare_suffix(file) in TABLES else _list_rows)(file, text))
    if not rows:
        raise InputError(f"{file}: holds no molecules")
    return rows


def _list_rows(file: Path, text: str) -> Iterator[Row]:
    lines = [words for line in text.split("\n") if (words := line.split(maxsplit=1))]
    kept = [words for words in lines if not words[0].startswith("#")]
    if comments := len(lines) - len(kept):
        _note(file, f"lines that begin with # are passed over: {comments:,}")
    # A header; as a SMILES it would be none.
    for words in kept[1:] if kept and kept[0][0].lower() in _MOLECULES else kept:
        title = {"name": words[1].strip()} if len(words) > 1 else {}
        yield Row(words[0], {"smiles": words[0], **title})


def _table_rows(file: Path, text: str) -> Iterator[Row]:
    columns, rows = read_table(file, text, _MOLECULES)
    key = next((columns[name] for name in _MOLECULES if name in columns), None)
    if key is None:
        found = ", ".join(columns) or "none"
        raise InputError(f"{file}: no column 'smiles' (or 'inchi'); found: {found}")
    for line, cells, problem in rows:
        # Names under which labels are looked for may be written in any case.
        labels = cells | {name: cells[columns[name]] for name in ENERGIES if name in columns}
        # RDKit takes names with an underscore for notes of its own.
        labels = {name: text for name, text in labels.items() if text and not name.startswith("_")}
        molecule = cells[key]
        if "\n" in molecule:
            problem = f"the SMILES goes on over several lines from line {line} on; is a quotation mark not closed?"
        yield Row(molecule, cells, labels, problem)


def read_table(
    file: Path, text: str, wanted: Collection[str]
) -> tuple[dict[str, str], list[tuple[int, dict[str, str], str]]]:
    """Read a table with a header; lines that are blank, and comments (#) before the header, say nothing.

    Args:
        file: for messages.
        text: of it; lines end in ``\\n``.
        wanted: names, in any capitalisation, of which a column should have one.

    Returns:
        The names of columns by the same in lower case; and for each row the number of its first line, its cells by
        the names of columns, and what is wrong with it, if anything is.

    Raises:
        InputError: two columns of one name, or quotation marks that do not match.
    """
    lines, rows, short = text.split("\n"), [], list[str]()
    above = next((k for k, line in enumerate(lines) if not _is_comment(line, wanted)), 0)
    if comments := sum(1 for line in lines[:above] if line.strip()):
        _note(file, f"lines that begin with # are passed over: {comments:,}")
    text, begin = "\n".join(lines[above:]), above + 1
    separator = delimiter(text, wanted)
    reader = csv.reader(io.StringIO(text), strict=True, delimiter=separator)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _refuse_doubles(file, header, {*wanted, *_NAMES, *ENERGIES, *KNOWN_VALUES})
        begin = above + reader.line_num + 1
        for cells in reader:
            if len(cells) > 1 or any(map(str.strip, cells)):
                problem = _wrong_with(cells, header, separator, begin, above + reader.line_num)
                if any(header[len(cells) :]):
                    short.append(str(begin))
                filled = zip_longest(header, cells[: len(header)], fillvalue="")
                rows.append((begin, {name: cell.strip() for name, cell in filled if name}, problem))
            begin = above + reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{file}: cannot be read from line {begin} on ({error}); is a quotation mark there not closed?"
        ) from error
    if short:
        _note(file, f"cells that are missing at the end of rows are taken as empty: line {in_line(short)}")
    return {name.lower(): name for name in header if name}, rows


def _note(file: Path, remark: str) -> None:
    notes = Notes(str(file))
    notes.add(remark)
    notes.give()


def delimiter(text: str, columns: Collection[str]) -> str:
    """What separates the cells of the first line, so that one of them is one of these columns."""
    return max(_SEPARATORS, key=lambda separator: _sense(text.split("\n", 1)[0], separator, columns))


def _sense(header: str, separator: str, columns: Collection[str]) -> tuple[bool, int]:
    cells = [cell.strip(' "').lower() for cell in header.split(separator)]
    return any(name in cells for name in columns), len(cells)


def _is_comment(line: str, columns: Collection[str]) -> bool:
    """Whether a line is no header: blank, or behind # without one of these columns."""
    if not line.lstrip().startswith("#"):
        return not line.strip()
    return not any(_sense(line, separator, columns)[0] for separator in _SEPARATORS)


def _refuse_doubles(file: Path, header: list[str], in_any_case: Collection[str]) -> None:
    seen: dict[str, int] = {}
    for place, name in enumerate(header):
        key = name.lower() if name.lower() in in_any_case else name
        if name and (first := seen.setdefault(key, place)) != place:
            other = "" if header[first] == name else f" (and '{header[first]}': case does not count)"
            raise InputError(
                f"{file}: two columns are named '{name}'{other}, columns {first + 1} and {place + 1}; rename one"
            )


def _wrong_with(cells: list[str], header: list[str], separator: str, line: int, last: int) -> str:
    n_columns = len(header)
    if any(cell.strip() for cell in cells[n_columns:]):
        return (
            f"line {line} has more cells than the {n_columns} columns of the header; put text with commas in quotes"
        )
    for place, cell in enumerate(cells):
        # The rest of a row, whole rows, and the beginning of one.
        parts = [part for part in cell.split("\n") if part]
        if len(parts) > 1:
            first, *between, end = (part.count(separator) for part in parts)
            whole = {*between, first + place, end + len(cells) - 1 - place}
            if whole == {n_columns - 1}:
                return f"the cell '{header[place]}' holds lines {line} to {last}; is a quotation mark not closed?"
    return ""
