"""The fit of the costs and the regret of the choice, on small structures; and the table, from given times."""

import itertools
import json
from functools import partial

import numpy as np
import pytest

from molflt.attention.far.costs import DIRECTIONS, THREADS, VARIABLE, Work, costs
from scripts import results
from scripts.benchmarks import method_choice


@pytest.fixture
def command(monkeypatch, tmp_path, call):
    # The fit sets it; this puts it back.
    monkeypatch.setenv(VARIABLE, "")
    return partial(call, method_choice.main, "--out", tmp_path, "--quick", "--threads", 1, "--repeats", 1)


def test_costs_are_fitted_and_choices_measured_with_them(command, monkeypatch, tmp_path, capsys):
    path = tmp_path / "costs.json"
    command("--fit", str(path))
    times = results.read(tmp_path / "method_fit.csv")
    assert {row["kind"] for row in times} == {"isolated", "slab", "bulk"}
    monkeypatch.setenv(VARIABLE, str(path))
    assert set(costs().table()) == set(THREADS)
    assert json.loads(path.read_text(encoding="utf-8"))["machine"]
    # A second call goes on where the first one stopped: nothing is measured twice.
    command("--fit", str(path))
    assert results.read(tmp_path / "method_fit.csv") == times
    monkeypatch.setenv(VARIABLE, str(path))
    command()
    rows = results.read(tmp_path / "method_choice.csv")
    for _, of_point in itertools.groupby(rows, key=lambda row: [row[name] for name in method_choice.POINT[:5]]):
        ways = list(of_point)
        expected = [float(way["expected"]) for way in ways]
        assert [way["chosen"] for way in ways] == [str(int(e == min(expected))) for e in expected]
        left_out = [way["seconds"] == "" for way in ways]
        assert left_out == [e > method_choice.AT_MOST * min(expected) for e in expected]
    assert "| isolated | 16 | exact, " in capsys.readouterr().out
    # Times under other costs are another choice, and are not mixed with these.
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(SystemExit, match="other conditions"):
        command()


def test_rates_are_found_from_times_that_they_explain():
    """Power of the fit: known seconds of every kind of work come back, and those of a kind that is nowhere stay."""
    rng = np.random.default_rng(0)
    names = [*Work().amounts(), *method_choice.COMMON]
    assert set(names) == set(method_choice.NOMINAL)
    nominal = np.array([method_choice.NOMINAL[name] for name in names])
    truth = nominal * 10 ** rng.uniform(-0.3, 0.3, len(nominal))
    amounts = 10 ** rng.uniform(-2, 2, (400, len(nominal))) / nominal
    amounts[:, names.index("grid_spread")] = 0.0
    observed = [(list(row), float(row @ truth)) for row in amounts]
    rates, error = method_choice.explain(observed)
    assert error < 0.01
    found = rates.amounts()
    for name, seconds in zip(names, truth, strict=True):
        if name in found and name != "grid_spread":
            assert found[name] == pytest.approx(seconds, rel=0.2)
    assert found["grid_spread"] == pytest.approx(method_choice.NOMINAL["grid_spread"])


def test_the_table_has_the_regret(tmp_path):
    def row(method: str, seconds: str, chosen: int, direction: str) -> results.Row:
        known = method_choice.point("slab", 1024, "both", 1, direction, (method, "linear"))
        return {**known, "seconds": seconds, "expected": "1", "chosen": str(chosen)}

    rows = []
    for direction in DIRECTIONS:
        rows += [
            row("mesh", "0.012", 1, direction),
            row("lattice", "0.01", 0, direction),
            row("exact", "", 0, direction),
        ]
    results.write(tmp_path / "method_choice.csv", rows)
    found = method_choice.table("both", tmp_path)
    assert "| slab | 1,024 | mesh, 12 ms, 1.20 | mesh, 12 ms, 1.20 |" in found
    assert found.endswith("The largest regret is 1.20.\n")
    assert method_choice.table("gaussians", tmp_path) == "Not measured yet.\n"
