"""Every promise of SECURITY.md names tests that hold it, and each of them is there."""

import re

from tests.docs.pages import REPOSITORY


def rows(text):
    """Promise and tests, as ``FILE::NAME``, of the table of SECURITY.md."""
    found = {}
    for promise, cell in re.findall(r"^\| (?!promise|---)([^|]+) \| ([^|]+) \|$", text, re.M):
        file = ""
        for name in re.findall(r"`([^`]*::[^`]+)`", cell):
            file = name.partition("::")[0] or file
            found.setdefault(promise, []).append(f"{file}::{name.partition('::')[2]}")
    return found


def missing(names):
    """Names that are no function of their file."""
    pieces = [name.partition("::") for name in names]
    return [
        f"{file}::{name}"
        for file, _, name in pieces
        if not (REPOSITORY / file).is_file() or f"def {name}(" not in (REPOSITORY / file).read_text(encoding="utf-8")
    ]


def test_each_promise_is_held_by_tests_that_are_there():
    text = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")
    promises = rows(text)
    assert len(promises) >= 15
    assert {promise: absent for promise, names in promises.items() if (absent := missing(names))} == {}
    # Power: a test that was renamed is missed.
    assert missing(["tests/docs/test_security.py::test_gone", "tests/gone.py::test_x"]) != []
