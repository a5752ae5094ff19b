"""Bars and meters change nothing about what is done, and appear on standard error only when it takes long."""

from itertools import count

import pytest

from molflt.data import progress
from molflt.data.progress import ByteMeter, size_text, track


@pytest.mark.parametrize(
    ("enabled", "patience", "shown"), [(None, 0, False), (False, 0, False), (True, -1, True), (True, 1e3, False)]
)
def test_a_bar_appears_when_it_takes_long(enabled, patience, shown, monkeypatch, capfd):
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    assert list(track(range(5), "counting", total=5, enabled=enabled)) == list(range(5))
    captured = capfd.readouterr()
    assert ("counting" in captured.err) == shown
    assert captured.out == ""


def test_meter_prints_lines_where_there_is_no_terminal(capsys):
    ticks = iter([0.0, 10.0, 31.0, 32.0, 62.0]).__next__
    with ByteMeter("downloading", None, terminal=False, clock=ticks) as meter:
        for n_bytes in (1, 2 << 20, 3 << 20, 5 << 20):
            meter.reach(n_bytes, 10 << 20 if n_bytes > 3 << 20 else None)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["downloading: 2.0 MiB", "downloading: 5.0 MiB of 10.0 MiB (50 %)"]


@pytest.mark.parametrize("step", [0.5, 3.0])
def test_meter_draws_a_bar_on_a_terminal(step, capsys):
    with ByteMeter("downloading", 100, terminal=True, clock=count(0.0, step).__next__) as meter:
        meter.reach(50)
        meter.note("a note with :smile: [red]")
    error = capsys.readouterr().err
    assert "a note with :smile: [red]" in error
    assert ("downloading" in error) == (step > 2)


def test_sizes():
    texts = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 97 << 30: "97.0 GiB", 105 << 30: "105 GiB"}
    assert {n_bytes: size_text(n_bytes) for n_bytes in texts} == texts
