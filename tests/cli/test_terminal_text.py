"""What strangers write into files reaches the terminal as text that commands nothing."""

import io
import json
import re

from pydantic import ValidationError
from rich.table import Table
from safetensors.torch import save_file

from molflt.cli.terminal import Terminal
from molflt.data.labels import LabelSpec
from molflt.model.energy_model import EnergyModel
from molflt.model.model_file import METADATA_KEY, ModelMetadata, save_model
from tests.model.files import content_of, metadata_of, tiny

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
            result = molflt("info", file)
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
