"""The soak test: what it measures, that it finds leaks, and two minutes of it."""

from __future__ import annotations

import gc
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.tools import soak

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")


def test_slope_of_a_line_with_outliers() -> None:
    x = list(range(300))
    y = [2.5 * k + 100 for k in x]
    y[150], y[220] = 1e6, -1e6
    # What comes first does not count.
    y[:90] = [0.0] * 90
    assert soak.slope(x, y) == pytest.approx(2.5)
    assert soak.slope(x, [7.0] * 300) == 0


@pytest.fixture
def little_garbage() -> Iterator[None]:
    """What other tests have left is not collected at every sample: that takes longer than the tests."""
    gc.freeze()
    yield
    gc.unfreeze()


def sampled(name: str, work: Callable[[], object]) -> soak.Series:
    series = soak.Series(name)
    for calls in range(60):
        work()
        series.sample(calls + 1)
    return series


@linux
def test_a_leak_is_found(little_garbage: None) -> None:
    held: list[mmap.mmap] = []

    def take_memory() -> None:
        # Mapped, so that no hole that earlier tests have left in the heap takes it.
        held.append(mmap.mmap(-1, 1 << 21))
        held[-1].write(b"1" * (1 << 21))

    memory = sampled("memory", take_memory)
    for pages in held:
        pages.close()
    files: list[int] = []
    descriptors = sampled("files", lambda: files.append(os.open(os.devnull, os.O_RDONLY)))
    for file in files:
        os.close(file)
    nothing = sampled("nothing", lambda: bytes(bytearray(1 << 18)))
    limits = soak.Limits(memory=64.0)
    for series, complaint in ((memory, "memory grows by"), (descriptors, "descriptors a call")):
        (found,) = series.complaints(limits)
        assert complaint in found
    assert memory.growth()[0] == pytest.approx(2048, rel=0.1)
    assert descriptors.growth()[1] == pytest.approx(1, rel=0.1)
    assert nothing.complaints(limits) == []


def test_too_few_samples_are_no_success() -> None:
    series = soak.Series("short", [1], [1.0], [1.0])
    assert "too few" in series.complaints(soak.Limits(memory=1.0))[0]


@linux
@pytest.mark.slow
def test_two_minutes(tmp_path: Path, python: Callable[..., Any]) -> None:
    result = python("-m", "scripts.tools.soak", "--minutes", "2", "--out", tmp_path / "soak.png")
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^predict +[\d,]+ ", result.stdout, re.MULTILINE)
    assert re.search(r"^train and evaluate +[\d,]+ ", result.stdout, re.MULTILINE)
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
