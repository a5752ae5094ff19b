"""The rooms of the package: their files, their lines of code, and what each holds.

    python -m scripts.tools.house            # prints them, and every file

A line of code is one that is neither blank nor comment nor docstring. ``tests/test_structure.py`` holds the budget;
``scripts.tools.tables`` writes the map into docs/design.md.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

import molflt
from scripts import results

ROOT = Path(molflt.__file__).parent
TOP = "(top)"
"""The room of the files that are in none."""

_SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def lines_of_code(source: str) -> int:
    """Count the lines of a source that are neither blank nor comment nor docstring."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                lines.difference_update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return len(lines)


def rooms(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """Lines of code of every file of every room, by the room's name and the file's path."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        room = inner.parts[0] if len(inner.parts) > 1 else TOP
        found[room][inner.as_posix()] = lines_of_code(path.read_text(encoding="utf-8"))
    return dict(found)


def holds(room: str, root: Path = ROOT) -> str:
    """Return the first line of a room's own docstring."""
    file = root / "__init__.py" if room == TOP else root / room / "__init__.py"
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    return (docstring or "").partition("\n")[0].rstrip(".")


def table() -> str:
    """Return the map for docs/design.md, in Markdown."""
    rows = [
        [
            f"`{'molflt' if room == TOP else 'molflt/' + room}/`",
            str(len(files)),
            f"{round(sum(files.values()), -2):,}",
            holds(room),
        ]
        for room, files in rooms().items()
    ]
    return results.markdown(["room", "files", "lines of code, about", "what it holds"], rows)


def main() -> None:
    """Print the rooms."""
    results.command(__doc__).parse_args()
    found = rooms()
    for room, files in found.items():
        print(f"{room:12} {len(files):4} files {sum(files.values()):6,} lines of code")
        for name, lines in files.items():
            print(f"    {name:40} {lines:6,}")
    total = sum(sum(files.values()) for files in found.values())
    print(f"{'all':12} {sum(map(len, found.values())):4} files {total:6,} lines of code")


if __name__ == "__main__":
    main()
