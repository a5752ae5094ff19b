"""Tables of the comparisons: CSV files with the conditions they were made under, and Markdown in a page."""

from __future__ import annotations

import csv
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from molflt import __version__
from molflt.files import atomic_file


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """One line for each row, numbers with four digits; all rows have the keys of the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{x:.4g}" if isinstance(x, float) else x for key, x in row.items()})


def write_record(path: Path, **content: Any) -> None:
    """JSON of everything that was measured, with versions and machine."""
    versions = {"molflt": __version__, "torch": torch.__version__, "python": platform.python_version()}
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps({"versions": versions, "machine": machine, **content}, indent=1))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"


def insert(page: Path, mark: str, text: str) -> None:
    """Replace what stands in ``page`` between ``<!-- mark: begin -->`` and ``<!-- mark: end -->``.

    Raises:
        ValueError: the page has no such marks.
    """
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    content = page.read_text(encoding="utf-8")
    if begin not in content or end not in content:
        raise ValueError(f"{page} has no lines '{begin}' and '{end}' to write between")
    before, _, rest = content.partition(begin)
    after = rest.partition(end)[2]
    with atomic_file(page) as temporary:
        temporary.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
