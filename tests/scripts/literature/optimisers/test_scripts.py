"""The scripts of both panels at their smallest: meta-training, and then the figure from what was trained."""

import os
import subprocess
import sys

import pytest

from scripts import results
from scripts.literature.learned_optimiser import METHODS

pytestmark = pytest.mark.slow


def run(script, out, *arguments):
    command = [sys.executable, "-m", f"scripts.literature.{script}", "--out", str(out), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_learned_optimiser(tmp_path):
    pytest.importorskip("cma")
    run("learned_optimiser", tmp_path, "--meta-train", "--iterations", "1", "--meta-seeds", "0")
    small = ["--meta-seeds", "0", "--weights", str(tmp_path / "population.safetensors")]
    run("learned_optimiser", tmp_path, *small, "--seeds", "2", "--dims", "2")
    rows = results.read(tmp_path / "learned_optimiser.csv")
    assert len(rows) == 3
    for median, low, high in (results.numbers(row[method]) for row in rows for method in METHODS):
        assert 0 < low <= median <= high < 1000
    assert (tmp_path / "learned_optimiser.png").exists()


def test_learned_optimiser_time(tmp_path):
    pytest.importorskip("sklearn")
    run("learned_optimiser_time", tmp_path, "--meta-train", "--iterations", "1", "--meta-seeds", "0")
    small = ["--meta-seeds", "0", "--weights", str(tmp_path / "history.safetensors")]
    run("learned_optimiser_time", tmp_path, *small, "--seeds", "2", "--steps", "40")
    rows = results.read(tmp_path / "learned_optimiser_time.csv")
    assert len(rows) == 6
    assert (tmp_path / "learned_optimiser_time.png").exists()
