"""Write every table of the pages under docs, and of some others, from its CSV.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. NAME is ``accuracy SET [GROUP]``,
``acetylacetone``, ``adsorb_guesses``, ``adsorb_intervals``, ``compare_attention``, ``divisions``, ``fg VIEW``,
``house``, ``loader``, ``nested``, ``organic VIEW`` or ``speed VIEW [KIND DIRECTION]``, which have layouts of their
own, or the path of a CSV below docs, without its ending. Such a CSV is printed as it is, without the columns that
say how a row was measured. With ``rows=COLUMN,COLUMN across=COLUMN value=COLUMN`` behind the path it is turned
about: one row for each value of some columns, one column for each value of another.

    python -m scripts.tools.tables               # writes the pages
    python -m scripts.tools.tables --check       # exit status 1 if a page is not what the CSV files say
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from molflt.files import atomic_file
from scripts import results
from scripts.benchmarks import (
    accuracy,
    acetylacetone,
    adsorb_guesses,
    compare_attention,
    loader,
    speed_report,
)
from scripts.tools import house
from scripts.tools.fg import ship
from scripts.tools.organic import ship as organic

LAYOUTS: dict[str, Callable[..., str]] = {
    "accuracy": accuracy.table,
    "acetylacetone": acetylacetone.table,
    "adsorb_guesses": adsorb_guesses.table,
    "adsorb_intervals": adsorb_guesses.intervals,
    "compare_attention": compare_attention.table,
    "divisions": accuracy.divisions,
    "nested": accuracy.nested,
    "fg": ship.table,
    "house": house.table,
    "loader": loader.table,
    "organic": organic.table,
    "speed": speed_report.table,
}
ELSEWHERE = ("README.md", "data/fg/README.md", *(f"molflt/pretrained/{name}.md" for name in ("fg", "organic", "wwl")))
"""Pages that are not under docs."""


def table(name: str, folder: Path = results.DOCS) -> str:
    """Markdown of a table.

    Raises:
        ValueError: there is no such table.
    """
    first, *arguments = name.split()
    try:
        if first in LAYOUTS:
            return LAYOUTS[first](*arguments)
        rows, options = results.read(folder / f"{first}.csv"), dict(part.split("=") for part in arguments)
        if options:
            return turned(rows, options["rows"].split(","), options["across"], options["value"])
        return results.table(rows)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"there is no table '{name}' ({type(error).__name__}: {error})") from error


def turned(rows: list[results.Row], names: list[str], across: str, value: str) -> str:
    """A Markdown table with a column for each value of ``across``."""
    # Numbers by size, after whatever is a word.
    words = dict.fromkeys(row[across] for row in rows)
    columns = sorted(words, key=lambda x: float(x) if x.replace(".", "").isdigit() else -1.0)
    found: dict[tuple[str, ...], results.Row] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), {})[row[across]] = row[value]
    header = [*names, *(f"{across} = {column}" for column in columns)]
    return results.markdown(header, [[*key, *(cells.get(c, "") for c in columns)] for key, cells in found.items()])


def pages(folder: Path = results.DOCS) -> dict[Path, tuple[str, str, list[str]]]:
    """Each page with a table: as it is, as it should be, and the names of its tables.

    Raises:
        SystemExit: a table has no end, or no data; the message names the page.
    """
    found = {}
    elsewhere = [results.ROOT / name for name in ELSEWHERE] if folder == results.DOCS else []
    for path in [*sorted(folder.rglob("*.md")), *elsewhere]:
        text = path.read_text(encoding="utf-8")
        try:
            new, names = results.fill(text, lambda name: table(name, folder))
        except ValueError as error:
            raise SystemExit(f"error: {path}: {error}") from error
        if names:
            found[path] = text, new, names
    return found


def write(found: dict[Path, tuple[str, str, list[str]]]) -> None:
    """Write those of :func:`pages` that are not as they should be."""
    for path, (text, new, _) in found.items():
        if text != new:
            with atomic_file(path) as temporary:
                temporary.write_text(new, encoding="utf-8")
            print(path)


def main() -> None:
    """Write the pages, or check them."""
    parser = results.command(__doc__)
    parser.add_argument("--check", action="store_true", help="do not write; exit status 1 if a page is not current")
    options = parser.parse_args()
    found = pages()
    stale = [path for path, (text, new, _) in found.items() if text != new]
    if options.check and stale:
        sys.exit(f"{', '.join(map(str, stale))}: python -m scripts.tools.tables writes the tables again")
    write(found)


if __name__ == "__main__":
    main()
