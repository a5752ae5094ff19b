"""Every script of the literature page at its smallest: it ends well, and its table is there and finite."""

import math
import os
import subprocess
import sys

import pytest

from scripts import results
from scripts.literature.learned_optimiser import METHODS

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MOLFLT_DATA": ""}


def call(script, out, *arguments):
    command = [sys.executable, "-m", f"scripts.{script}", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, env=ENVIRONMENT)


def run(script, out, *arguments):
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


@pytest.mark.parametrize(
    ("script", "needs", "small"),
    [
        ("approximation_error", "sklearn", "--side 8 --steps 3 --further-steps 1 --images 2 --samples 4 64"),
        ("layer_cost", "torch", "--figure flt --lengths 64 --repeats 1 --threads 1"),
        ("layer_cost", "torch", "--figure lara --lengths 64 --repeats 1 --threads 1"),
        ("local_rpe_shapes", "torch", "--frequencies 64 1024 --seeds 2 --points 21"),
        ("convert_softmax", "torch", "--steps 2 --seeds 0 --draws 1"),
        ("digits", "sklearn", "--steps 2 --seeds 0 --layers 1 --dim 16"),
        ("listops", "torch", "--steps 2 --seeds 0 --kernel posrf-orf softmax --size 200 50 --length 8 16"),
    ],
)
def test_it_ends_well(script, needs, small, tmp_path):
    pytest.importorskip(needs)
    rows = run(f"literature.{script}", tmp_path, *small.split())
    for column, most in (("seconds", 1e9), ("bits", 9)):
        if column in rows[0]:
            assert 0 < min(numbers(rows, column)) <= max(numbers(rows, column)) < most


@pytest.mark.parametrize(
    ("script", "needs", "weights", "small", "n_rows"),
    [
        ("learned_optimiser", "cma", "population", "--dims 2", 3),
        ("learned_optimiser_time", "sklearn", "history", "--steps 40", 6),
    ],
)
def test_meta_training_and_then_the_figure(script, needs, weights, small, n_rows, tmp_path):
    pytest.importorskip(needs)
    seeds = ("--meta-seeds", "0")
    trained = ("--weights", str(tmp_path / f"{weights}.safetensors"), "--seeds", "2")
    for options in (("--meta-train", "--iterations", "1"), (*trained, *small.split())):
        done = call(f"literature.{script}", tmp_path, *seeds, *options)
        assert done.returncode == 0, done.stdout + done.stderr
    rows = results.read(tmp_path / f"{script}.csv")
    assert len(rows) == n_rows
    if script == "learned_optimiser":
        for median, low, high in (results.numbers(row[method]) for row in rows for method in METHODS):
            assert 0 < low <= median <= high < 1000
    assert (tmp_path / f"{script}.png").exists()


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
