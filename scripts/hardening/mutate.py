"""Mutation testing: break molflt in one place at a time; do tests fail?

Mutants are made by cosmic-ray: of molflt/attention and molflt/data one at each of --places random places, without
annotations, which nothing evaluates; or with --guards one for every condition in molflt that leads to an error, which
then never holds. Each meets the tests that run its statement (its module, where none is known to), shortest first and
those of --seconds at most, until one fails. What survives is for somebody to look at. Which tests run what, and for
how long, comes from one run of the default suite:

    scripts/test.sh -n 2 --cov=molflt --cov-context=test --junitxml=runs/junit.xml
    pip install -e '.[mutation]'
    python -m scripts.hardening.mutate --places 300 --junit runs/junit.xml --out runs/mutation.sqlite
    python -m scripts.hardening.mutate --guards --junit runs/junit.xml --out runs/guards.sqlite
    python -m scripts.hardening.mutate --report --out runs/mutation.sqlite

Mutants live in a copy of what git tracks. An interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from difflib import unified_diff
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

import parso
import pytest
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS, get_operator
from cosmic_ray.util import restore_contents
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult
from coverage import CoverageData
from parso.python.tree import IfStmt, PythonNode

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("attention", "data")
IMPORTED = (
    "ase.io",
    "hypothesis",
    "lightning.pytorch",
    "matplotlib.figure",
    "pydantic",
    "rdkit.Chem.AllChem",
    "safetensors.torch",
    "scipy.spatial",
    "torch_geometric.data",
    "typer.testing",
    "yaml",
)
"""Libraries that mutants find imported. None of them imports molflt."""
ADDRESS_SPACE = 12 << 30
"""Bytes, PyTorch's own libraries included: a guard may be all that bounds them."""
STARTING = 60.0
"""Seconds that a process may take before its first test."""
SLOWER = 5.0
"""A mutant whose tests take so many times as long as they did is killed."""


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
        """For tests."""
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


class Tests:
    """Which tests run which lines, and for how long.

    Args:
        coverage: data files, with a context for each test.
        junit: durations and outcomes of the same runs.
    """

    def __init__(self, coverage: list[Path], junit: list[Path]) -> None:
        self._contexts: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path in coverage:
            data = CoverageData(str(path))
            data.read()
            for name in data.measured_files():
                for line, contexts in data.contexts_by_lineno(name).items():
                    self._contexts[name.rpartition("/molflt/")[2]][line].update(contexts)
        self._seconds = {
            f"{case.get('classname')}.{case.get('name')}": float(case.get("time", "1"))
            for path in junit
            for case in ElementTree.parse(path).iter("testcase")  # noqa: S314
            if not len(case)
        }

    def seconds(self, test: str) -> float | None:
        """How long a test took; None where it did not pass."""
        path, _, name = test.partition("::")
        return self._seconds.get(f"{path.removesuffix('.py').replace('/', '.')}.{name.replace('::', '.')}")

    def of(self, module: Path, lines: range, budget: float) -> list[str]:
        """Those of a statement, or where no test is known to run it of its module, within a budget of seconds."""
        by_line = self._contexts[module.relative_to("molflt").as_posix()]
        near = {test for line in lines for test in by_line.get(line, ())} - {""}
        chosen = self._passed(near or set().union(*by_line.values()))
        sums = accumulate(seconds for seconds, _ in chosen)
        return [test for (seconds, test), total in zip(chosen, sums, strict=True) if total <= max(budget, seconds)]

    def _passed(self, contexts: set[str]) -> list[tuple[float, str]]:
        tests = {context.rpartition("|")[0] for context in contexts if context}
        return sorted((seconds, test) for test in tests if (seconds := self.seconds(test)) is not None)


def statement(source: ast.Module, line: int) -> range:
    """Lines of the innermost statement at a line, without those of the statements inside it."""
    own = [_own_lines(node) for node in ast.walk(source) if isinstance(node, ast.stmt)]
    return min((lines for lines in own if line in lines), key=len, default=range(line, line + 1))


def _own_lines(node: ast.stmt) -> range:
    body = getattr(node, "body", None)
    end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
    return range(node.lineno, max(end, node.lineno) + 1)


def guarded(source: ast.Module, line: int) -> range:
    """Lines that the condition at a line leads to: only tests that get there can miss it."""
    found = [node for node in ast.walk(source) if isinstance(node, ast.If) and line in _own_lines(node)]
    body = max(found, key=lambda node: node.lineno).body
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def annotations(source: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations of arguments and results begin and end."""
    for node in ast.walk(source):
        found = None
        if isinstance(node, ast.FunctionDef):
            found = node.returns
        elif isinstance(node, ast.arg):
            found = node.annotation
        if found is not None and found.end_lineno is not None and found.end_col_offset is not None:
            yield (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def mutants(modules: list[Path]) -> tuple[WorkItem, ...]:
    """All of them."""
    with use_db(":memory:") as everything:
        init(modules, everything, {})
        return everything.work_items


def guards() -> list[WorkItem]:
    """One mutant for every guard of molflt, relative to the working directory."""
    return [
        item for item in mutants(sorted(Path("molflt").rglob("*.py"))) if item.mutations[0].operator_name == GUARDS
    ]


def sample(n_places: int, seed: int) -> list[WorkItem]:
    """One mutant at each of some random places of the packages, relative to the working directory."""
    modules = [path for package in PACKAGES for path in sorted(Path("molflt", package).rglob("*.py"))]
    items = [item for item in mutants(modules) if item.mutations[0].operator_name != GUARDS]
    unused = {path: list(annotations(ast.parse(path.read_text(encoding="utf-8")))) for path in modules}
    places: dict[tuple[str, tuple[int, int], str], list[WorkItem]] = defaultdict(list)
    for item in items:
        mutation = item.mutations[0]
        if any(start <= mutation.start_pos < end for start, end in unused[mutation.module_path]):
            continue
        # A place has many mutants of one kind: + becomes each of the other operators.
        places[str(mutation.module_path), mutation.start_pos, mutation.operator_name.split("_")[0]].append(item)
    chance = random.Random(seed)  # noqa: S311
    print(f"{len(items)} mutants at {len(places)} places in {len(modules)} modules")
    chosen = chance.sample(sorted(places), min(n_places, len(places)))
    return [chance.choice(sorted(places[place], key=_kind)) for place in chosen]


def _kind(item: WorkItem) -> tuple[str, int]:
    return item.mutations[0].operator_name, item.mutations[0].occurrence


def copy_tracked(folder: Path) -> None:
    """What git tracks, as it is here."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    # Files whose bytes have changed are compiled anew, and nothing else is.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "molflt", "tests"],
        cwd=folder,
        check=True,
    )


def run_tests(chosen: list[str], limit: float | None) -> tuple[TestOutcome, str]:
    """Whether a mutant survives tests within some seconds, and what they print."""
    if not chosen:
        return TestOutcome.SURVIVED, "no test is known to run it"
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        # Forked, so that libraries need not be imported anew: that takes longer than most tests.
        process = get_context("fork").Process(target=_run_pytest, args=(chosen, printed.fileno()))
        process.start()
        process.join(limit)
        late = process.exitcode is None
        # Some mutants leave processes behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        printed.seek(0)
        output = "timeout" if late else printed.read()
    return (TestOutcome.SURVIVED if process.exitcode == 0 else TestOutcome.KILLED), output


def _run_pytest(chosen: list[str], file: int) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.path.insert(0, os.getcwd())
    # Not sys.exit, which would wait for what a mutant has started.
    os._exit(pytest.main(["-x", "-q", "-m", "", "-p", "no:cacheprovider", *chosen]))


def run(database: WorkDB, tests: Tests, budget: float) -> None:
    """All mutants without a result; the working directory is the copy."""
    os.environ |= {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    for name in IMPORTED:
        importlib.import_module(name)
    pending, start = database.pending_work_items, time.monotonic()
    if pending:
        chosen = tests.of(pending[0].mutations[0].module_path, range(0), 10.0)
        if run_tests(chosen, None)[0] != TestOutcome.SURVIVED:
            sys.exit("tests fail without a mutation")
    for k, item in enumerate(pending):
        mutation = item.mutations[0]
        before = mutation.module_path.read_text(encoding="utf-8")
        find = guarded if mutation.operator_name == GUARDS else statement
        chosen = tests.of(mutation.module_path, find(ast.parse(before), mutation.start_pos[0]), budget)
        limit = STARTING + SLOWER * sum(tests.seconds(test) or 0.0 for test in chosen)
        try:
            after = mutate_code(before, get_operator(mutation.operator_name)(), mutation.occurrence)
        except AttributeError as error:
            # cosmic-ray stumbles over some operators of two words.
            database.set_result(item.job_id, WorkResult(WorkerOutcome.EXCEPTION, str(error)))
            continue
        with restore_contents(mutation.module_path):
            mutation.module_path.write_text(after, encoding="utf-8")
            outcome, output = run_tests(chosen, limit)
        diff = "\n".join(
            unified_diff(before.splitlines(), after.splitlines(), str(mutation.module_path), n=2, lineterm="")
        )
        database.set_result(item.job_id, WorkResult(WorkerOutcome.NORMAL, output, outcome, diff))
        minutes = (time.monotonic() - start) / 60
        print(
            f"{k + 1}/{len(pending)}, {minutes:.0f} min: {mutation.module_path}:{mutation.start_pos[0]} "
            f"{mutation.operator_name.removeprefix('core/')}: {outcome.value} ({len(chosen)} tests)",
            flush=True,
        )


def report(database: WorkDB) -> None:
    """A line for each package, and what survived."""
    completed = [(item.mutations[0], result) for item, result in database.completed_work_items]
    done = sorted(
        ((mutation, result) for mutation, result in completed if result.test_outcome is not None),
        key=lambda pair: (str(pair[0].module_path), pair[0].start_pos),
    )
    for package in sorted({mutation.module_path.parts[1] for mutation, _ in done}):
        results = [result for mutation, result in done if mutation.module_path.parts[1] == package]
        killed = sum(result.test_outcome == TestOutcome.KILLED for result in results)
        late = sum(result.output == "timeout" for result in results)
        share = killed / len(results)
        error = (share * (1 - share) / len(results)) ** 0.5
        print(
            f"molflt/{package}: {killed} of {len(results)} killed, {100 * share:.0f} ± {100 * error:.0f} %; "
            f"{late} of them were stopped for the time they took"
        )
    for _, result in done:
        if result.test_outcome != TestOutcome.KILLED:
            print(f"\n{result.diff or result.output}")


def main() -> None:
    """Choose, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="SQLite file of the mutants and their results")
    parser.add_argument("--places", type=int, default=300, help="number of mutants (default 300)")
    parser.add_argument("--guards", action="store_true", help="remove every guard, instead of mutants at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (default 0)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for each mutant at most (default 60)")
    default = [ROOT / ".coverage"]
    parser.add_argument("--coverage", type=Path, nargs="+", default=default, help="data files (default .coverage)")
    parser.add_argument("--junit", type=Path, nargs="+", default=[], help="durations of tests, from --junitxml")
    parser.add_argument("--report", action="store_true", help="only say what has been found")
    options = parser.parse_args()
    out = options.out.resolve()
    if not options.report:
        if not options.junit or not all(path.exists() for path in options.junit + options.coverage):
            parser.error("--junit and --coverage want files of a run of the tests; see above")
        tests = Tests(options.coverage, options.junit)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="molflt-mutants-") as folder, use_db(out) as database:
            copy_tracked(Path(folder))
            os.chdir(folder)
            if not database.work_items:
                database.add_work_items(guards() if options.guards else sample(options.places, options.seed))
            run(database, tests, options.seconds)
            os.chdir(ROOT)
    if not out.exists():
        parser.error(f"{out}: no such file")
    with use_db(out) as database:
        report(database)


if __name__ == "__main__":
    main()
