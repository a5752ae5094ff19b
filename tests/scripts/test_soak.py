"""The soak test: what it measures, that it finds leaks, and two minutes of it."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import soak  # noqa: E402

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")


def test_slope_of_a_line_with_outliers() -> None:
    x = list(range(300))
    y = [2.5 * k + 100 for k in x]
    y[150], y[220] = 1e6, -1e6
    # What comes first does not count.
    y[:90] = [0.0] * 90
    assert soak.slope(x, y) == pytest.approx(2.5)
    assert soak.slope(x, [7.0] * 300) == 0


@linux
@pytest.mark.parametrize(("leak", "complaint"), [("memory", "memory grows by"), ("files", "descriptors a call")])
def test_a_leak_is_found(leak: str, complaint: str) -> None:
    held: list[object] = []

    def work(calls: int) -> None:
        if leak == "memory":
            # Mapped, so that no hole that earlier tests have left in the heap takes it.
            pages = mmap.mmap(-1, 1 << 21)
            pages.write(b"1" * (1 << 21))
            held.append(pages)
        else:
            held.append(open(os.devnull))  # noqa: SIM115

    series = soak.Series(leak)
    for calls in range(60):
        work(calls)
        series.sample(calls + 1)
    complaints = series.complaints(soak.Limits(memory=64.0))
    for item in held:
        if hasattr(item, "close"):
            item.close()
    assert len(complaints) == 1
    assert complaint in complaints[0]
    memory, files = series.growth()
    assert (memory if leak == "memory" else files) == pytest.approx(2048 if leak == "memory" else 1, rel=0.1)


@linux
def test_no_leak_is_none() -> None:
    series = soak.Series("nothing")
    for calls in range(60):
        bytes(bytearray(1 << 18))
        series.sample(calls + 1)
    assert series.complaints(soak.Limits(memory=64.0)) == []


def test_too_few_samples_are_no_success() -> None:
    series = soak.Series("short", [1], [1.0], [1.0])
    assert "too few" in series.complaints(soak.Limits(memory=1.0))[0]


@linux
@pytest.mark.slow
def test_two_minutes(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / "soak.py"), "--minutes", "2", "--out", str(tmp_path / "soak.png")],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPTS.parent)},
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"^predict +[\d,]+ ", result.stdout, re.MULTILINE)
    assert re.search(r"^train and evaluate +[\d,]+ ", result.stdout, re.MULTILINE)
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
