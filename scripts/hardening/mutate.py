"""Mutation testing by cosmic-ray: break molflt in one place at a time; do tests fail?

Of molflt/attention and molflt/data there is one mutant at each of --places random places, without annotations, which
nothing evaluates; or with --guards one for every condition in molflt that leads to an error, which then never holds.
Each meets the tests that run its line (its module, where none is known to), until one fails. What survives is for
somebody to look at. Which tests run what comes from one run of the default suite:

    scripts/test.sh -n 2 --cov=molflt --cov-context=test
    pip install -e '.[mutation]'
    python -m scripts.hardening.mutate --places 300 --out runs/mutation.sqlite
    python -m scripts.hardening.mutate --guards --out runs/guards.sqlite
    python -m scripts.hardening.mutate --report --out runs/mutation.sqlite

Mutants live in a copy of the last commit. An interrupted run goes on where it was.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import parso
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult
from coverage import CoverageData
from parso.python.tree import IfStmt, PythonNode

from scripts import results

ROOT = results.ROOT
PACKAGES = ("attention", "data")
ADDRESS_SPACE = 12 << 30
"""Bytes, PyTorch's own libraries included: a guard may be all that bounds them."""
MOST_SECONDS = 600.0
"""Of the tests of a mutant; one that takes longer counts as killed."""


class RemoveGuard(Operator):
    """``if condition: raise ...`` becomes ``if False: raise ...``."""

    def mutation_positions(self, node: PythonNode) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Conditions that guard a raise."""
        for k in _guards(node):
            yield node.children[k].start_pos, node.children[k].end_pos

    def mutate(self, node: PythonNode, index: int) -> PythonNode:
        """Let one of them never hold."""
        node.children[_guards(node)[index]] = parso.parse(" False")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """For tests of cosmic-ray."""
        return (Example("if a > b:\n    raise ValueError", "if False:\n    raise ValueError"),)


def _guards(node: PythonNode) -> list[int]:
    if not isinstance(node, IfStmt):
        return []
    return [
        k + 1
        for k, child in enumerate(node.children)
        if child in ("if", "elif") and node.children[k + 3].children[-1].get_code().lstrip().startswith("raise ")
    ]


GUARDS = "molflt/RemoveGuard"
OPERATOR_PROVIDERS["molflt"] = {"RemoveGuard": RemoveGuard}


def annotated(source: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Begins and ends of the annotations of arguments and results."""
    for node in ast.walk(source):
        found = getattr(node, "returns", None) or getattr(node, "annotation", None)
        if isinstance(node, ast.FunctionDef | ast.arg) and found is not None:
            yield (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def mutants(modules: list[Path], guards: bool) -> list[WorkItem]:
    """All mutants of some modules that are guards, or that are not."""
    with use_db(":memory:") as everything:
        init(modules, everything, {})
        return [item for item in everything.work_items if (item.mutations[0].operator_name == GUARDS) == guards]


def sample(n_places: int, seed: int) -> list[WorkItem]:
    """One mutant at each of some random places, relative to the working directory."""
    modules = [path for package in PACKAGES for path in sorted(Path("molflt", package).rglob("*.py"))]
    unused = {path: list(annotated(ast.parse(path.read_text(encoding="utf-8")))) for path in modules}
    places: dict[tuple[str, tuple[int, int], str], list[WorkItem]] = defaultdict(list)
    for item in mutants(modules, guards=False):
        mutation = item.mutations[0]
        if not any(start <= mutation.start_pos < end for start, end in unused[Path(mutation.module_path)]):
            # A place has many mutants of one kind: + becomes each of the other operators.
            kind = mutation.operator_name.split("_")[0]
            places[str(mutation.module_path), mutation.start_pos, kind].append(item)
    chance = random.Random(seed)  # noqa: S311
    print(f"{len(places)} places in {len(modules)} modules")
    chosen = chance.sample(sorted(places), min(n_places, len(places)))
    return [
        chance.choice(sorted(places[p], key=lambda i: (i.mutations[0].operator_name, i.mutations[0].occurrence)))
        for p in chosen
    ]


def tests_of(mutation: MutationSpec, coverage: CoverageData) -> list[str]:
    """Tests that run a mutated line, or the one behind a guard; if none, those of the module."""
    files = [f for f in coverage.measured_files() if f.endswith(f"/{mutation.module_path}")]
    by_line = coverage.contexts_by_lineno(files[0]) if files else {}
    line = mutation.end_pos[0] + 1 if mutation.operator_name == GUARDS else mutation.start_pos[0]
    contexts = set(by_line.get(line, ())) - {""} or set().union(*by_line.values()) - {""}
    return sorted({context.rpartition("|")[0] for context in contexts})


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """The working directory is a copy of the last commit, and imports come from there."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="molflt-mutants-") as folder, contextlib.chdir(folder):
        subprocess.run(["tar", "-x"], input=archive, check=True)
        os.environ |= {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        yield


def run(database: WorkDB, coverage: CoverageData) -> None:
    """Try all mutants without a result; the working directory is the copy."""
    tests = Path("chosen-tests")
    command = f"prlimit --as={ADDRESS_SPACE} {sys.executable} -m pytest -x -q -p no:cacheprovider @{tests}"
    pending = database.pending_work_items
    for k, item in enumerate(pending):
        mutation = item.mutations[0]
        chosen = tests_of(mutation, coverage)
        tests.write_text("\n".join(chosen), encoding="utf-8")
        if chosen and k == 0 and subprocess.run(shlex.split(command), check=False, capture_output=True).returncode:
            sys.exit("tests fail without a mutation")
        found = WorkResult(WorkerOutcome.NORMAL, "", TestOutcome.SURVIVED, f"no test runs {mutation.module_path}")
        if chosen:
            found = mutate_and_test(item.mutations, command, MOST_SECONDS)
        database.set_result(item.job_id, found)
        place = f"{mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name.removeprefix('core/')}"
        print(f"{k + 1}/{len(pending)}: {place}: {found.test_outcome} ({len(chosen)} tests)", flush=True)


def report(database: WorkDB) -> None:
    """Print a line for each package, and what survived."""
    outcomes: dict[str, list[bool]] = defaultdict(list)
    survived = []
    for item, result in database.completed_work_items:
        # cosmic-ray stumbles over some operators of two words.
        if result.test_outcome in (TestOutcome.KILLED, TestOutcome.SURVIVED):
            killed = result.test_outcome == TestOutcome.KILLED
            outcomes[Path(item.mutations[0].module_path).parts[1]].append(killed)
            survived += [] if killed else [result.diff]
    for package, killed in sorted(outcomes.items()):
        share = sum(killed) / len(killed)
        error = (share * (1 - share) / len(killed)) ** 0.5
        print(f"molflt/{package}: {sum(killed)} of {len(killed)} killed, {100 * share:.0f} ± {100 * error:.0f} %")
    print(*survived, sep="\n\n")


def main() -> None:
    """Choose, run, report."""
    parser = results.command(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="SQLite file of the mutants and their results")
    parser.add_argument("--places", type=int, default=300, help="number of mutants (default 300)")
    parser.add_argument("--guards", action="store_true", help="remove every guard, instead of mutants at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="data file (default .coverage)")
    parser.add_argument("--report", action="store_true", help="only say what has been found")
    options = parser.parse_args()
    out = options.out.resolve()
    if not (out if options.report else options.coverage).exists():
        parser.error(f"{out if options.report else options.coverage}: no such file; see above")
    out.parent.mkdir(parents=True, exist_ok=True)
    with use_db(out) as database:
        if not options.report:
            coverage = CoverageData(str(options.coverage.resolve()))
            coverage.read()
            with copied():
                if not database.work_items:
                    every = sorted(Path("molflt").rglob("*.py"))
                    chosen = mutants(every, guards=True) if options.guards else sample(options.places, options.seed)
                    database.add_work_items(chosen)
                run(database, coverage)
        report(database)


if __name__ == "__main__":
    main()
