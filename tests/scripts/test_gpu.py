"""The benchmark of a GPU runs where there is none."""

import sys

import pytest

from scripts.benchmarks import gpu


def test_every_row_is_measured_on_a_cpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--quick"])
    gpu.main()
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header.startswith("| CPU ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {"eager", "eager, deterministic", "SchNet", "molflt train", "small"} <= {how for _, how, _ in rows}
    for name, how, found in rows:
        # PaiNN is in the peers' environment only.
        if how != "PaiNN":
            assert float(found) > 0, (name, how, found)


def test_without_time_there_are_no_numbers(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--quick", "--seconds", "-1"])
    gpu.main()
    assert all("no time was left" in line for line in capsys.readouterr().out.splitlines()[2:])


@pytest.mark.skipif("not __import__('torch').cuda.is_available()")
def test_every_row_is_measured_on_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--quick"])
    gpu.main()
    assert "error" not in capsys.readouterr().out.lower()
