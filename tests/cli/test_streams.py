"""Standard streams that are closed, hold bytes that are no text, or are no longer read; and unforeseen errors."""

import io
import os
import sys
from contextlib import contextmanager

import pytest

from molflt.cli import train
from molflt.cli.terminal import open_streams


@contextmanager
def standard_input(content, monkeypatch):
    """As in a terminal whose text is UTF-8 and nothing else."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="strict"))
        yield


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        (("info", "-"), b"CCO\n\xff\xfe\n", "standard input: not a readable text file"),
        (("info", "-"), b"1\n\xff\nH 0 0 0\n", "standard input #0: not text in UTF-8"),
        (("info", "-"), b"", "standard input is empty"),
        (("train", "-", "--out", "run"), b"\xff: 1\n", "-: not readable as YAML"),
    ],
)
def test_bytes_that_are_no_text(command, content, message, molflt, monkeypatch):
    with standard_input(content, monkeypatch):
        result = molflt(*command)
    assert result.status == 2, result
    assert result.err.startswith(f"Error: {message}"), result


def test_closed_standard_input(molflt, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    result = molflt("info", "-")
    assert (result.status, result.err.split(";")[0]) == (2, "Error: standard input is empty"), result


def test_closed_streams_are_opened_on_nothing(monkeypatch):
    before = os.dup(1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        os.close(1)
        try:
            open_streams()
            assert os.path.samestat(os.fstat(1), os.stat(os.devnull))
            print("goes nowhere", flush=True)
        finally:
            os.dup2(before, 1)
            os.close(before)


@pytest.mark.parametrize("by_rich", [False, True])
def test_a_reader_that_has_enough_whatever_prints(by_rich, molflt, monkeypatch):
    """Click would end with status 1, and so does rich on consoles that are not ours."""

    def broken(*_, **__):
        try:
            raise BrokenPipeError(32, "Broken pipe")
        except BrokenPipeError:
            if by_rich:
                raise SystemExit(1)  # noqa: B904 (as rich does)
            raise

    monkeypatch.setattr("molflt.cli.main.forget_output", lambda: None)
    monkeypatch.setattr(train.typer, "echo", broken)
    result = molflt("config", "tiny")
    assert (result.status, result.err) == (0, "")


def test_what_nobody_thought_of(molflt, monkeypatch):
    def wrong(*_, **__):
        raise KeyError("a\x1b[2Jb\nc")

    monkeypatch.setattr(train.typer, "echo", wrong)
    result = molflt("config", "tiny")
    assert result.status == 3, result
    (line,) = result.err.splitlines()
    assert line.startswith("Error: KeyError: ")
    for part in ("train.py:", "defect of molflt", "report", "MOLFLT_DEBUG=1"):
        assert part in line
    assert "\x1b" not in line
    monkeypatch.setenv("MOLFLT_DEBUG", "1")
    result = molflt("config", "tiny")
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1] == line
