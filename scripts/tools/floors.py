"""Try the oldest packages that molflt says it works with, and write down the outcome.

    python -m scripts.tools.floors                               # prints them, as a constraints file
    python -m scripts.tools.floors --try runs/floors             # in an environment there, tests of ``TESTS``
    python -m scripts.tools.floors --try runs/new --newest --python python3.13 tests/data
                                                                 # the newest packages, another Python, these tests

The environment and a copy of the last commit are made in a new folder outside of the repository. The outcome replaces
the row of that Python and these packages in ``docs/results/environments.csv``. That the floors of ``pyproject.toml``
are those that were tried is a test: :func:`stated`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

from scripts import results
from scripts.tools import tables

RESULTS = results.DOCS / "results" / "environments.csv"
TESTS = ("tests/data", "tests/model", "tests/prediction", "tests/cli", "tests/attention", "tests/training")
_NEEDED_BY_TESTS = ("pytest", "hypothesis", "pytest-xdist")
_COUNTED = re.compile(r"(\d+) (passed|failed|errors?)\b")


def stated() -> dict[str, str]:
    """Lowest version of each package that builds molflt or that it and its tests run with."""
    content = tomllib.loads((results.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, extras = content["project"], content["project"]["optional-dependencies"]
    wanted = [Requirement(text) for text in [*project["dependencies"], *content["build-system"]["requires"]]]
    wanted += [needed for needed in map(Requirement, extras["dev"]) if needed.name in _NEEDED_BY_TESTS]
    lowest: dict[str, str] = {}
    for requirement in wanted:
        (floor,) = (one for one in requirement.specifier if one.operator == ">=")
        lowest[requirement.name] = floor.version
    return dict(sorted(lowest.items()))


def tried(path: Path = RESULTS) -> dict[str, str]:
    """The same, as they were tried last."""
    (row,) = (row for row in results.read(path) if row["packages"].startswith("oldest"))
    return dict(pair.split("=") for pair in row["conditions"].split(", "))


def main() -> None:
    """Print the floors, or try an environment."""
    parser = results.command(__doc__)
    parser.add_argument("--try", dest="folder", type=Path, help="new folder for the environment")
    parser.add_argument("--newest", action="store_true", help="the newest packages instead of the oldest")
    parser.add_argument("--python", default="python3.11", help="interpreter (default python3.11)")
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest runs there")
    options = parser.parse_args()
    constraints = "".join(f"{name}=={version}\n" for name, version in stated().items())
    if options.folder is None:
        print(constraints, end="")
        return
    python, source = _install(options.folder, options.python, "" if options.newest else constraints)
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "pytest", "-q", *options.tests]
    done = subprocess.run(command, cwd=source, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)
    record(python, not options.newest, done.stdout.splitlines()[-1], options.tests)
    tables.write(tables.pages())


def _install(folder: Path, python: str, constraints: str) -> tuple[str, Path]:
    """Make an environment with molflt in it, installed from a copy of the last commit."""
    source, own = folder / "source", str(folder / "environment" / "bin" / "python")
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=results.ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
    (folder / "constraints.txt").write_text(constraints, encoding="utf-8")
    subprocess.run([python, "-m", "venv", folder / "environment"], check=True)
    install = [own, "-m", "pip", "install", "--quiet", "--constraint", folder / "constraints.txt"]
    subprocess.run([*install, "setuptools"], check=True)
    # Built by the setuptools that is there, and not by the newest.
    subprocess.run([*install, "--no-build-isolation", "--editable", source, *_NEEDED_BY_TESTS], check=True)
    return own, source


def record(python: str, oldest: bool, summary: str, tests: Sequence[str]) -> None:
    """Replace the row of a Python and its packages, from the last line of pytest."""
    show = "import platform, sys; from importlib.metadata import version as v; print(platform.python_version(), "
    show += "*(f'{name}=={v(name)}' for name in sys.argv[1:]))"
    lowest = stated()
    command = [python, "-c", show, *lowest]
    version, *pairs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found = dict(pair.split("==") for pair in pairs)
    packages = "oldest" if oldest else "newest"
    counts = {"passed": 0, "failed": 0}
    for number, word in _COUNTED.findall(summary):
        counts["passed" if word == "passed" else "failed"] += int(number)
    row = {
        "Python": version,
        "packages": packages,
        "torch": found["torch"],
        "tests": " ".join(tests),
        **{word: str(number) for word, number in counts.items()},
        # As stated, not as normalised by the package: 13 and not 13.0.0.
        **results.provenance(lowest if oldest else found),
        "software": f"Python {version}",
    }
    rows = {(old["Python"].rpartition(".")[0], old["packages"]): old for old in results.read(RESULTS)}
    rows[version.rpartition(".")[0], packages] = row
    in_order = sorted(rows.values(), key=lambda row: (row["packages"] != "oldest", row["Python"]))
    results.write(RESULTS, in_order, list(row))


if __name__ == "__main__":
    main()
