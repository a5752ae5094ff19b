"""Put the tables of docs/literature/*.csv between the marks of docs/literature.md.

A table NAME.csv goes between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->``, as it is or turned about: one row
for each value of a column and one column for each value of another.

    python scripts/literature/fill_page.py
"""

from __future__ import annotations

import csv
from pathlib import Path

from tables import insert, markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"
PIVOTS = {
    "approximation_error": ("length", "attention", "samples", "mse"),
    "query_norm": ("matrix", "radius", "features", "error"),
    "convert_softmax": ("variant", None, "m", "bits"),
}
"""Name → (two columns that name a row, the column that names columns, the column of values)."""


def pivoted(rows: list[dict[str, str]], first: str, second: str | None, across: str, value: str) -> str:
    """A Markdown table with a column for each value of ``across``."""
    # Numbers by size, after whatever is a word.
    columns = sorted({row[across] for row in rows}, key=lambda x: float(x) if x.replace(".", "").isdigit() else -1.0)
    names = [first] if second is None else [first, second]
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), {})[row[across]] = row[value]
    header = [*names, *(f"{across} = {column}" for column in columns)]
    return markdown(header, [[*key, *(cells.get(column, "") for column in columns)] for key, cells in found.items()])


def main() -> None:
    """Fill every mark that has a table."""
    page = DOCS / "literature.md"
    for path in sorted((DOCS / "literature").glob("*.csv")):
        name = path.stem
        # compare_attention.py --page writes its own tables.
        if name == "compare_attention" or f"<!-- {name}: begin -->" not in page.read_text(encoding="utf-8"):
            continue
        with open(path, newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        if name in PIVOTS:
            text = pivoted(rows, *PIVOTS[name])
        else:
            text = markdown(list(rows[0]), [list(row.values()) for row in rows])
        insert(page, name, text)


if __name__ == "__main__":
    main()
