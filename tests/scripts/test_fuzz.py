"""The fuzzer finds nothing in molflt, and finds what is put there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

import pytest

from scripts.tools import fuzz
from scripts.tools.fuzz_targets import TARGETS, Target

N = {
    "smiles": 60, "config": 100, "model": 200, "names": 60, "encodings": 60, "bombs": 10, "extents": 100,
    "archive": 100,
}  # fmt: skip
"""Inputs of a target; the quick ones get more."""


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(target: str) -> None:
    assert fuzz.run(target, 0, N.get(target, 400)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "n"), [("names", 500), ("encodings", 3_000), ("bombs", 50), ("extents", 1200), ("archive", 1200)]
)
def test_nothing_is_found_by_many(target: str, n: int) -> None:
    assert fuzz.run(target, 100_000, n) == []


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_comes_from_its_seed(target: str, tmp_path: Path) -> None:
    make = TARGETS[target](tmp_path).make
    first, again, other = (make(Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


def _raises(raw: bytes) -> None:
    raise KeyError("x")


def _sleeps(raw: bytes) -> None:
    time.sleep(60)


def _dies(raw: bytes) -> None:
    os.abort()


def _runs(raw: bytes) -> None:
    os.system("true")


def _grows(raw: bytes) -> None:
    # written to: what is only reserved takes no memory
    _ = b"x" * (fuzz.MOST_MEMORY + (64 << 20))


def _takes_all(raw: bytes) -> None:
    bytearray(2 * fuzz.ADDRESS_SPACE)


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (_raises, "KeyError: \"'x'\""),
        (_sleeps, "took more than 0 s"),
        (_dies, "the process ended with status -6"),
        (_runs, "it ran: os.system"),
        (_grows, "it took 1"),
        (_takes_all, "MemoryError"),
    ],
)
def test_what_is_wrong_is_found_and_the_next_seed_runs(
    read: object, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "MOST_MEMORY", 1 << 26)
    monkeypatch.setitem(TARGETS, "pyg1", lambda folder: Target(lambda random: b"", read))  # type: ignore[arg-type]
    found = fuzz.run("pyg1", 5, 2, seconds=0.3 if read is _sleeps else 60.0)
    assert len(found) == 2
    for seed, line in zip((5, 6), found, strict=True):
        assert line.startswith(f"pyg1 seed {seed}: ")
        assert expected in line
