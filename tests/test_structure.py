"""The structure of the package: imports go one way, and nothing but the registry knows the literature (DESIGN §5)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import molflt

ROOT = Path(molflt.__file__).parent

FLOORS = (
    ("__init__", "bundled", "choices", "errors", "files", "memory", "printable", "vocabulary"),
    ("attention", "data"),
    ("model", "literature"),
    ("prediction", "invariance"),
    ("training",),
    ("calculator", "report"),
    ("cli",),
    ("__main__",),
)
"""From the ground up: a part imports from the floors below it."""

ENTRANCE = "__init__"
"""Lazily hands out what stands higher up."""


def part_of(module: str) -> str:
    """``molflt.data.sources`` → ``data``."""
    return module.split(".")[1] if "." in module else ENTRANCE


def imports(source: str) -> Iterator[str]:
    """Modules of molflt that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "molflt":
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "molflt")


def upward(part: str, source: str) -> list[str]:
    """What a file of a part imports from its own floor's neighbours or from above."""
    floor = {name: k for k, names in enumerate(FLOORS) for name in names}
    return [m for m in imports(source) if part_of(m) != part and floor[part_of(m)] >= floor[part] > 0]


def sources() -> Iterator[tuple[Path, str]]:
    """Every file with the part that it belongs to."""
    for path in sorted(ROOT.rglob("*.py")):
        inner = path.relative_to(ROOT)
        yield path, inner.parts[0] if len(inner.parts) > 1 else inner.stem


def test_imports_go_one_way():
    assert {str(path): found for path, part in sources() if (found := upward(part, path.read_text("utf-8")))} == {}
    # Power: also an import inside of a function counts.
    assert upward("data", "def f():\n    from molflt.model import config\n") == ["molflt.model"]
    assert upward("attention", "import molflt.literature.lara") == ["molflt.literature.lara"]


def test_only_the_registry_names_the_literature():
    named = {path.relative_to(ROOT).as_posix() for path, part in sources() if part != "literature"}
    named = {path for path in named if "molflt.literature" in (ROOT / path).read_text("utf-8")}
    assert named <= {"attention/registry.py"}
