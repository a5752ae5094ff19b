"""The structure of the package: imports go one way (DESIGN §5)."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import molflt
from molflt.former import MOVED
from scripts.tools.house import TOP, lines_of_code, rooms

ROOT = Path(molflt.__file__).parent

FLOORS = (
    ("__init__", "errors", "files", "former", "terminal_text", "vocabulary"),
    ("attention", "data"),
    ("model",),
    ("prediction", "invariance"),
    ("training", "adsorption"),
    ("simulate", "report", "export"),
    ("cli",),
    ("__main__",),
)
"""From the ground up: a part imports from the floors below it."""

BUDGET = {
    TOP: (7, 422),
    "adsorption": (4, 691),
    "attention": (35, 3_636),
    "cli": (11, 1_469),
    "data": (55, 8_603),
    "export": (4, 463),
    "invariance": (2, 318),
    "model": (10, 890),
    "prediction": (8, 1_352),
    "report": (9, 1_147),
    "simulate": (6, 588),
    "training": (15, 2_323),
}
"""Files and lines of code that a room may have. The goal is 125 and 13,500 in all: a number may fall, and rises
only in a commit that says what for."""
LONGEST = 350
"""Lines of a file."""

ENTRANCE = "__init__"
"""Lazily hands out what stands higher up."""


def part_of(module: str) -> str:
    """``molflt.data.open`` → ``data``."""
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
    assert upward("attention", "import molflt.model.encoder") == ["molflt.model.encoder"]


def test_former_places_warn_for_one_release():
    code = (
        "from molflt.calculator import MolFLTCalculator\nfrom molflt.calculator.torch_sim_model import MolFLTModel\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("DeprecationWarning: molflt.calculator is now molflt.simulate.ase") == 1
    assert all(find_spec(place) for place in MOVED.values())


def test_every_room_keeps_its_budget():
    found = rooms()
    assert found.keys() == BUDGET.keys()
    have = {room: (len(files), sum(files.values())) for room, files in found.items()}
    over = {room: (*have[room], *BUDGET[room]) for room in BUDGET if any(map(int.__gt__, have[room], BUDGET[room]))}
    assert not over, f"files, lines of code, and what of either there may be: {over}; make room (docs/design.md)"
    lines = {path: len(path.read_text("utf-8").splitlines()) for path, _ in sources()}
    assert {path.name: n for path, n in lines.items() if n > LONGEST} == {}
    # Power: comments, blank lines and docstrings are free, and nothing else is.
    source = (
        '"""Of two\nlines."""\n\n# A remark.\na = (\n    1,\n)\n\n\ndef f():\n    """It."""\n    x = """a\nb"""\n'
    )
    assert lines_of_code(source) == 6


def unspecified_encodings(source: str) -> list[int]:
    """Lines that read or write text without saying how: where ruff does not know that a variable is a path."""
    lines = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        name, owner = call.func.attr, call.func.value
        given = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        others = isinstance(owner, ast.Name) and owner.id in ("os", "lmdb", "tarfile", "Image")
        reads = name == "read_text" and not call.args
        writes = name == "write_text" and len(call.args) < 2
        opens = name == "open" and not others and not any("b" in str(mode) for mode in given)
        if (reads or writes or opens) and "encoding" not in [keyword.arg for keyword in call.keywords]:
            lines.append(call.lineno)
    return lines


def test_text_is_utf_8_everywhere():
    repository = ROOT.parent
    files = [
        file for folder in ("molflt", "scripts", "tests") for file in sorted((repository / folder).rglob("*.py"))
    ]
    found = {str(file): unspecified_encodings(file.read_text(encoding="utf-8")) for file in files}
    assert {file: lines for file, lines in found.items() if lines} == {}
    assert unspecified_encodings("p.read_text()\np.write_text('a')\np.open('w')\np.open()") == [1, 2, 3, 4]
    assert unspecified_encodings("p.open('rb'); p.read_text('utf-8'); p.write_text('a', encoding='x')") == []
