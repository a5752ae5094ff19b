"""Standard streams that are closed, hold no text, or are no longer read; and text that would command a terminal."""

import io
import json
import os
import re
import sys
from contextlib import contextmanager

import pytest
from pydantic import ValidationError
from rich.table import Table
from safetensors.torch import save_file

from molflt.cli import train
from molflt.cli.terminal import Terminal, open_streams
from molflt.data.labels import LabelSpec
from molflt.model.energy import EnergyModel
from molflt.model.file import METADATA_KEY, ModelMetadata, save_model
from tests.model.files import content_of, metadata_of, tiny


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
        (("info", "-"), b"1\n\xff\nH 0 0 0\n", "standard input #0: not UTF-8 text"),
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

    monkeypatch.setattr("molflt.cli.terminal.forget_output", lambda: None)
    monkeypatch.setattr(train.typer, "echo", broken)
    result = molflt("config", "tiny")
    assert (result.status, result.err) == (0, "")


def test_an_unforeseen_error_is_one_line(molflt, monkeypatch):
    def wrong(*_, **__):
        raise KeyError("a\x1b[2Jb\nc")

    monkeypatch.setattr(train.typer, "echo", wrong)
    result = molflt("config", "tiny", status=3)
    (line,) = result.err.splitlines()
    assert line.startswith("Error: KeyError: ")
    for part in ("train.py:", "internal error of molflt", "report", "MOLFLT_DEBUG=1"):
        assert part in line
    assert "\x1b" not in line
    monkeypatch.setenv("MOLFLT_DEBUG", "1")
    result = molflt("config", "tiny")
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1] == line


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08"
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def _poisoned(value, path=()):
    """Each place with a text, as a value or as a key, and the whole with that text changed."""
    if isinstance(value, str):
        yield path, value + HOSTILE
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        for place, changed in _poisoned(inner, (*path, key)):
            yield place, {**value, key: changed} if isinstance(value, dict) else [
                *value[:key], changed, *value[key + 1 :]
            ]  # fmt: skip
        if isinstance(value, dict):
            rest = {k: v for k, v in value.items() if k != key}
            yield (*path, key, "its name"), {**rest, key + HOSTILE: inner}


def test_no_field_of_a_model_commands_the_terminal(molflt, tmp_path):
    metadata = metadata_of(tiny({}))
    metadata.labels = LabelSpec(label="energy", force_label="forces")
    metadata.validation, metadata.standardiser = {"mae": 1.0}, {"kind": "element", "list": ["x", {"y": "z"}]}
    file = tmp_path / "model.safetensors"
    save_model(file, EnergyModel(metadata.config, metadata.seed), metadata)
    tensors, content = content_of(file)
    fields = set()
    for place, changed in list(_poisoned(content)):
        try:
            ModelMetadata.model_validate(changed)
        except ValidationError:
            refused = True
        else:
            refused = False
            fields.add(place[0])
        # a few of a kind are enough for the slow way through the command
        if not refused or place[-1] == "target":
            save_file(tensors, file, metadata={METADATA_KEY: json.dumps(changed)})
            result = molflt("info", *(() if refused else ("-v",)), file)
            assert result.status == (2 if refused else 0), (place, result)
            assert not RAW.search(result.out + result.err), place
            assert r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\x08" in result.out + result.err
    assert fields == {"units", "standardiser", "training_data", "labels", "validation", "versions"}


def test_tables_and_plain_text_pass_through_one_place():
    stream = io.StringIO()
    terminal = Terminal(file=stream, force_terminal=True, width=200, color_system=None)
    table = Table("column " + HOSTILE, title="title " + HOSTILE)
    table.add_row("cell " + HOSTILE)
    terminal.print("text " + HOSTILE, table, markup=False)
    terminal.print("[bold]markup[/bold] " + HOSTILE)
    shown = stream.getvalue()
    assert not RAW.search(re.sub(r"\x1b\[[0-9;]*m", "", shown))
    assert shown.count("owned") == 5
