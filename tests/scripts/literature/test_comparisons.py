"""Every script of the literature page at its smallest: it ends well, and its table is there and finite."""

import math
import os
import subprocess
import sys

import pytest

from scripts import results

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MOLFLT_DATA": ""}


def call(script, out, *arguments):
    command = [sys.executable, "-m", f"scripts.{script}", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, env=ENVIRONMENT)


def run(script, out, *arguments):
    done = call(script, out, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = out.glob(f"{script.rpartition('.')[2]}*.csv")
    return results.read(table)


def numbers(rows, column):
    found = [float(row[column]) for row in rows]
    assert all(math.isfinite(x) for x in found)
    return found


def test_query_norm(tmp_path):
    """Longer queries are worse, more features better (Luo Theorem 3)."""
    rows = run("literature.query_norm", tmp_path, "--quick")
    numbers(rows, "error")
    error = {(row["matrix"], row["radius"], row["features"]): float(row["error"]) for row in rows}
    assert error["iid", "1", "256"] < error["iid", "1", "16"] < error["iid", "3", "16"]


@pytest.mark.parametrize(
    ("script", "needs", "small"),
    [
        ("approximation_error", "sklearn", "--quick"),
        ("layer_cost", "torch", "--figure flt --quick"),
        ("layer_cost", "torch", "--figure lara --quick"),
        ("digits", "sklearn", "--quick"),
        ("language_model", "torch", "--quick"),
    ],
)
def test_it_ends_well(script, needs, small, tmp_path):
    pytest.importorskip(needs)
    rows = run(f"literature.{script}", tmp_path, *small.split())
    for column, most in (("seconds", 1e9), ("bits", 9)):
        if column in rows[0]:
            assert 0 < min(numbers(rows, column)) <= max(numbers(rows, column)) < most


def test_finished_runs_are_kept_and_not_mixed_with_others(tmp_path):
    rows = run("literature.language_model", tmp_path, "--quick", "--attention", "performer", "flt-local")
    again = run("literature.language_model", tmp_path, "--quick", "--attention", "performer", "flt-local")
    assert [row["each"] for row in again] == [row["each"] for row in rows]
    mixed = call("literature.language_model", tmp_path, "--steps", "9", "--seeds", "0")
    assert mixed.returncode == 1
    assert "other conditions" in mixed.stderr
