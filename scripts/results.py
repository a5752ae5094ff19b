"""Results as data: a CSV for each measurement, its tables in the pages, its figures.

This is the only place that writes any of them. Every row says under which conditions it was measured, on which
machine, with which software, when, and at which commit (:data:`PROVENANCE`).
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from molflt.errors import InputError
from molflt.files import atomic_file

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PROVENANCE = ("conditions", "machine", "software", "date", "commit")
"""The last columns of every CSV: ``name=value`` pairs; processor, cores, memory and system; names and versions; the
day; the commit of the code, with a ``+`` where it had been changed. In the results that are older than this format
the day and the commit are those with which the result entered the repository."""
EACH = "each"
"""A column for the values of the single seeds, which tables leave out."""
_PACKAGES = ("molflt", "torch", "torch-geometric", "vesin", "numpy", "ase")
_TABLE = re.compile(r"(<!-- table: ([^>\n]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Row = dict[str, str]


def provenance(conditions: Mapping[str, Any] | None = None) -> Row:
    """Values of :data:`PROVENANCE` for a measurement that is made here and now."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    system = f"{platform.system()} {platform.release()}"
    machine = [processor(), f"{os.cpu_count()} cores", f"{pages / 2**30:.1f} GiB", *gpu, system]
    software = [f"Python {platform.python_version()}", *(f"{name} {metadata.version(name)}" for name in _PACKAGES)]
    return {
        "conditions": _listed(conditions),
        "machine": ", ".join(machine),
        "software": ", ".join(software),
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": _commit(),
    }


def processor() -> str:
    """Its name, or its architecture where it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def read(path: Path) -> list[Row]:
    """The rows of a CSV; none where there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def find(rows: Iterable[Row], /, **wanted: Any) -> Row | None:
    """The first row that has these values in these columns."""
    cells = {name: text(value) for name, value in wanted.items()}
    return next((row for row in rows if cells.items() <= row.items()), None)


def write(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = (), digits: int = 4) -> None:
    """Write a CSV, whole or not at all.

    Args:
        path: of the file.
        rows: values by column. A list becomes numbers with spaces between them, None becomes nothing.
        columns: in this order; by default those of the first row.
        digits: significant ones of a float.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(columns or rows[0]), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: text(value, digits) for name, value in row.items()} for row in rows)


def record(
    path: Path, rows: Iterable[Mapping[str, Any]], conditions: Mapping[str, Any] | None = None, digits: int = 4
) -> None:
    """Write what has just been measured: :func:`write` with :data:`PROVENANCE`."""
    known = provenance(conditions)
    write(path, [{**row, **known} for row in rows], digits=digits)


def unmixed(path: Path, conditions: Mapping[str, Any] | None) -> list[Row]:
    """Rows of a CSV that goes on under these conditions.

    Raises:
        SystemExit: the file was made under other conditions, which must not be mixed.
    """
    rows, mine = read(path), _listed(conditions)
    if other := {row["conditions"] for row in rows} - {mine}:
        raise SystemExit(
            f"error: {path} was measured under other conditions ({other.pop()}; now {mine}); choose another place, "
            "or move the file away"
        )
    return rows


def _listed(conditions: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{name}={text(value, 6)}" for name, value in (conditions or {}).items())


def extend(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, Any] | None = None,
    digits: int = 4,
    columns: Sequence[str] = (),
) -> None:
    """Write what has just been measured behind what is there: as :func:`record`.

    A row may know better than this process by which software it was made. ``columns`` are those that are kept, by
    default all of the first row. Raises as :func:`unmixed`.
    """
    known, before = provenance(conditions), unmixed(path, conditions)
    names = tuple(dict.fromkeys((*(columns or rows[0]), *PROVENANCE)))
    new = [{name: value for name, value in {**known, **row}.items() if name in names} for row in rows]
    write(path, [*before, *new], names, digits)


def text(value: Any, digits: int = 4) -> str:
    """A value as it stands in a CSV."""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, list | tuple):
        return " ".join(text(item, digits) for item in value)
    return "" if value is None else str(value)


def numbers(cell: str) -> list[float]:
    """The numbers of a cell."""
    return [float(part) for part in cell.split()]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of rows as they are, without how and where they were measured."""
    shown = [column for column in rows[0] if column not in (*PROVENANCE, EACH)]
    return markdown(shown, [[text(row[column]) for column in shown] for row in rows])


def fill(page: str, render: Callable[[str], str]) -> tuple[str, list[str]]:
    """Write the tables of a page anew.

    Args:
        page: text with tables between ``<!-- table: NAME -->`` and ``<!-- end -->``.
        render: Markdown of a table from its NAME.

    Returns:
        The text, and the names that are in it.

    Raises:
        ValueError: a table has no end.
    """
    found = _TABLE.findall(page)
    if len(found) != page.count("<!-- table: ") or any("<!-- table: " in inside for _, _, inside, _ in found):
        raise ValueError("every line '<!-- table: NAME -->' needs a line '<!-- end -->' below its table")
    return _TABLE.sub(lambda match: match[1] + render(match[2]) + match[4], page), [name for _, name, _, _ in found]


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=140)


def output_folder(path: str) -> Path:
    """The folder that ``--out`` names, made if it is not there; a type of argparse."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be the output folder ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be the output folder (no permission to write in it)")
    return folder


@contextmanager
def input_errors(parser: argparse.ArgumentParser) -> Iterator[None]:
    """A mistake in the user's files ends the process with one line and status 2."""
    try:
        yield
    except InputError as error:
        parser.exit(2, f"error: {error}\n")


def sweep(
    path: Path,
    points: Iterable[Mapping[str, Any]],
    judge: Callable[..., Mapping[str, Any] | Sequence[Mapping[str, Any]]],
    conditions: Mapping[str, Any] | None = None,
    digits: int = 4,
    columns: Sequence[str] = (),
) -> None:
    """Judge every point that a CSV does not have yet, and write its rows before the next.

    Args:
        path: of the CSV.
        points: values by column, which are the first ones; keywords of ``judge``.
        judge: returns the other columns, of one row or of several.
        conditions: see :data:`PROVENANCE`.
        digits: significant ones of a float.
        columns: that are kept, in their order; by default all of the first row.

    Raises as :func:`unmixed`.
    """
    for point in points:
        if find(unmixed(path, conditions), **point):
            continue
        found = judge(**point)
        rows = [found] if isinstance(found, Mapping) else found
        extend(path, [{**point, **row} for row in rows], conditions, digits, columns)
        for row in rows:
            print("  ".join(text(value, digits) for value in (*point.values(), *row.values())), flush=True)


def command(description: str | None) -> argparse.ArgumentParser:
    """A command line with the module's text as its help."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def parser(description: str | None, out: str = "", required: bool = True, kept: Path | None = None) -> Any:
    """The command line of a benchmark.

    Args:
        description: of the module; it says how the command is called.
        out: what the folder ``--out`` is for; empty: there is no such option.
        required: whether ``--out`` has to be given.
        kept: the published CSV, in place of which ``--results`` names another.

    Returns:
        A parser that knows ``--quick``, which wants other ``--results`` than the published ones.
    """
    made = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        made.add_argument("--out", type=output_folder, required=required, help=f"folder for {out}")
    if kept is not None:
        made.add_argument("--results", type=Path, default=kept, help="CSV to write; its figures beside it")
    made.add_argument("--quick", action="store_true", help="tiny sizes, which tell nothing but that all runs")
    return made


class _Parser(argparse.ArgumentParser):
    def parse_args(self, *arguments: Any) -> Any:  # type: ignore[override]
        options = super().parse_args(*arguments)
        kept = self.get_default("results")
        if options.quick and kept is not None and options.results == kept:
            self.error("--quick needs --results: what is in docs/results is published")
        return options


def figure_path(csv: Path) -> Path:
    """Path of a PNG: in docs/figures if the CSV is published, else beside it."""
    folder = DOCS / "figures" if csv.parent == DOCS / "results" else csv.parent
    return folder / f"{csv.stem}.png"
