"""Every script of the literature page at its smallest: it ends well, and its table is there and finite."""

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
pytestmark = pytest.mark.slow
pytest.importorskip("matplotlib")


def run(script: str, out: Path, *arguments: str) -> list[dict[str, str]]:
    """Run a script and read the table it left."""
    command = [sys.executable, str(SCRIPTS / script), "--out", str(out), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOLFLT_DATA": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = out.glob("*.csv")
    with open(table, newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def numbers(rows: list[dict[str, str]], column: str) -> list[float]:
    found = [float(row[column]) for row in rows]
    assert all(math.isfinite(x) for x in found)
    return found


def test_query_norm(tmp_path):
    """Longer queries are worse, more features better (Luo Theorem 3)."""
    rows = run("literature/query_norm.py", tmp_path, "--seeds", "4", "--features", "16", "256", "--radii", "1", "3")
    numbers(rows, "error")
    error = {(row["matrix"], row["radius"], row["features"]): float(row["error"]) for row in rows}
    assert error["iid", "1", "256"] < error["iid", "1", "16"] < error["iid", "3", "16"]


def test_approximation_error(tmp_path):
    pytest.importorskip("sklearn")
    small = ["--side", "8", "--steps", "3", "--further-steps", "1", "--images", "2", "--samples", "4", "64"]
    run("literature/approximation_error.py", tmp_path, *small)


@pytest.mark.parametrize("figure", ["flt", "lara"])
def test_layer_cost(figure, tmp_path):
    rows = run(
        "literature/layer_cost.py",
        tmp_path,
        "--figure",
        figure,
        "--lengths",
        "64",
        "--repeats",
        "1",
        "--threads",
        "1",
    )
    assert min(numbers(rows, "seconds")) > 0


def test_local_rpe_shapes(tmp_path):
    run("literature/local_rpe_shapes.py", tmp_path, "--frequencies", "64", "1024", "--seeds", "2", "--points", "21")


def test_language_model_and_its_attention(tmp_path):
    rows = run(
        "literature/language_model.py",
        tmp_path / "runs",
        *("--steps", "10", "--seeds", "0", "--attention", "performer", "log-linear", "flt-gaussian", "flt-local"),
    )
    assert max(numbers(rows, "bits")) < 8
    command = [sys.executable, str(SCRIPTS / "literature/attention_matrices.py")]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "runs")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "farthest tenth" in done.stdout
    missing = subprocess.run(
        [*command, "--runs", str(tmp_path / "none"), "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert missing.returncode == 2
    assert "run language_model.py" in missing.stderr


def test_convert_softmax(tmp_path):
    rows = run("literature/convert_softmax.py", tmp_path, "--steps", "2", "--seeds", "0", "--draws", "1")
    assert max(numbers(rows, "bits")) < 9


def test_digits(tmp_path):
    pytest.importorskip("sklearn")
    run("literature/digits.py", tmp_path, "--steps", "2", "--seeds", "0", "--layers", "1", "--dim", "16")


def test_listops(tmp_path):
    small = ["--steps", "2", "--seeds", "0", "--kernel", "posrf-orf", "softmax", "--size", "200", "50"]
    run("literature/listops.py", tmp_path, *small, "--length", "8", "16")


def test_compare_attention(tmp_path):
    small = ["--attention", "performer", "lara-rpe", "--data", "adsorption", "--seeds", "0", "--steps", "2"]
    rows = run("compare_attention.py", tmp_path, *small)
    assert [row["attention"] for row in rows] == ["performer", "lara-rpe"]
    assert max(numbers(rows, "rotation")) < 1e-4
    assert min(numbers(rows, "step_ms")) > 0
