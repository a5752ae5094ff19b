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
    """Run a script and read the table it left."""
    done = call(script, out, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = out.glob("*.csv")
    return results.read(table)


def numbers(rows, column):
    found = [float(row[column]) for row in rows]
    assert all(math.isfinite(x) for x in found)
    return found


def test_query_norm(tmp_path):
    """Longer queries are worse, more features better (Luo Theorem 3)."""
    rows = run("literature.query_norm", tmp_path, "--seeds", "4", "--features", "16", "256", "--radii", "1", "3")
    numbers(rows, "error")
    error = {(row["matrix"], row["radius"], row["features"]): float(row["error"]) for row in rows}
    assert error["iid", "1", "256"] < error["iid", "1", "16"] < error["iid", "3", "16"]


def test_approximation_error(tmp_path):
    pytest.importorskip("sklearn")
    small = ["--side", "8", "--steps", "3", "--further-steps", "1", "--images", "2", "--samples", "4", "64"]
    run("literature.approximation_error", tmp_path, *small)


@pytest.mark.parametrize("figure", ["flt", "lara"])
def test_layer_cost(figure, tmp_path):
    small = ["--lengths", "64", "--repeats", "1", "--threads", "1"]
    rows = run("literature.layer_cost", tmp_path, "--figure", figure, *small)
    assert min(numbers(rows, "seconds")) > 0


def test_local_rpe_shapes(tmp_path):
    run("literature.local_rpe_shapes", tmp_path, "--frequencies", "64", "1024", "--seeds", "2", "--points", "21")


def test_language_model_and_its_attention(tmp_path):
    rows = run(
        "literature.language_model",
        tmp_path / "runs",
        *("--steps", "10", "--seeds", "0", "--attention", "performer", "log-linear", "flt-gaussian", "flt-local"),
    )
    assert max(numbers(rows, "bits")) < 8
    runs = ["--runs", str(tmp_path / "runs")]
    done = call("literature.attention_matrices", tmp_path / "runs", *runs)
    assert done.returncode == 0, done.stderr
    assert "farthest tenth" in done.stdout
    missing = call("literature.attention_matrices", tmp_path, "--runs", str(tmp_path / "none"))
    assert missing.returncode == 2
    assert "scripts.literature.language_model --out" in missing.stderr
    # Finished runs are kept, and not mixed with others.
    mixed = call("literature.language_model", tmp_path / "runs", "--steps", "9", "--seeds", "0")
    assert mixed.returncode == 1
    assert "other settings" in mixed.stderr


def test_convert_softmax(tmp_path):
    rows = run("literature.convert_softmax", tmp_path, "--steps", "2", "--seeds", "0", "--draws", "1")
    assert max(numbers(rows, "bits")) < 9


def test_digits(tmp_path):
    pytest.importorskip("sklearn")
    run("literature.digits", tmp_path, "--steps", "2", "--seeds", "0", "--layers", "1", "--dim", "16")


def test_listops(tmp_path):
    small = ["--steps", "2", "--seeds", "0", "--kernel", "posrf-orf", "softmax", "--size", "200", "50"]
    run("literature.listops", tmp_path, *small, "--length", "8", "16")
