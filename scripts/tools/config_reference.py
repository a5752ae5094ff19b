"""docs/config.md: every key of the configuration, from the schema itself.

python -m scripts.tools.config_reference           # writes the page
python -m scripts.tools.config_reference --check   # exit status 1 if the page is not what the schema says
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from molflt.attention.config import MechanismConfig
from molflt.attention.registry import (
    ATTENTIONS,
    COMPONENT_FUNCTIONS,
    DEFAULT_MECHANISM,
    MECHANISMS,
    RANDOM_FEATURES,
    WEIGHT_MATRICES,
)
from molflt.files import atomic_file
from molflt.training.config import PRESETS, TrainConfig

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
HEADER = """\
# Configuration

Every key, from the schema. This page is written by `scripts/tools/config_reference.py`; a test fails when it is not
current. `molflt config PRESET` prints the same keys as YAML with a preset's values.

A key is given in the YAML file, or on the command line behind it, where the last one wins:

    molflt train tiny.yaml --out runs/tiny trainer.max_epochs=5 model.attention=local data.unit=kcal/mol

A key that does not exist is an error that names the nearest one that does. Paths are relative to the folder in which
the command runs. `bundled:NAME` is one of the data sets that come with molflt: `bundled:fg/train.lmdb`.
"""


@dataclass(frozen=True)
class Key:
    """One key that holds a value."""

    name: str
    kind: str
    bounds: str
    default: str
    description: str


@dataclass(frozen=True)
class Section:
    """Keys under one heading."""

    prefix: str
    summary: str
    keys: tuple[Key, ...]


def sections(schema: type[BaseModel], prefix: str = "") -> Iterator[Section]:
    """The keys of a schema, then those of each section in it."""
    nested: list[tuple[str, type[BaseModel]]] = []
    keys = []
    for name, field in schema.model_fields.items():
        annotation = field.annotation
        if name == "attention":
            nested += [(f"{prefix}{name}.", mechanism.config) for mechanism in MECHANISMS.values()]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            nested.append((f"{prefix}{name}.", annotation))
        elif name != "mechanism":
            words = field.description or ""
            if issubclass(schema, MechanismConfig) and name in schema.only_with:
                words += f" (only with {schema.only_with[name][0]})"
            keys.append(Key(f"{prefix}{name}", kind(annotation), bounds(field), default(field), words))
    summary = " ".join((schema.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    yield Section(prefix.rstrip("."), of_mechanism(schema) + summary, tuple(keys))
    for inner_prefix, inner in nested:
        yield from sections(inner, inner_prefix)


def of_mechanism(schema: type[BaseModel]) -> str:
    """Mechanism of attention that a schema belongs to, as the beginning of its summary."""
    if not issubclass(schema, MechanismConfig):
        return ""
    name = schema.model_fields["mechanism"].default
    return f"**`mechanism={name}`**{', the default' if name == DEFAULT_MECHANISM else ''}. "


def kind(annotation: Any) -> str:
    """Choices or type of a value, in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        parts = list(dict.fromkeys(kind(member) for member in arguments))
        choices = all(part.startswith("`") for part in parts)
        return (", " if choices else " or ").join(parts)
    if origin is list:
        return f"list of {kind(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} × {kind(arguments[0])}"
    if origin is dict:
        return f"mapping of {kind(arguments[0])} to {kind(arguments[1])}"
    names = {bool: "`true`, `false`", int: "integer", float: "number", str: "text", types.NoneType: "`null`"}
    return names.get(annotation, str(getattr(annotation, "__name__", annotation)))


def bounds(field: FieldInfo) -> str:
    """≥, >, <, ≤ of a number."""
    signs: dict[type, tuple[str, str]] = {
        annotated_types.Ge: ("ge", "≥"),
        annotated_types.Gt: ("gt", ">"),
        annotated_types.Le: ("le", "≤"),
        annotated_types.Lt: ("lt", "<"),
    }
    found = []
    for constraint in field.metadata:
        if type(constraint) in signs:
            attribute, sign = signs[type(constraint)]
            found.append(f"{sign} {number(getattr(constraint, attribute))}")
        elif isinstance(constraint, annotated_types.MinLen):
            found.append(f"at least {constraint.min_length}")
    return ", ".join(found)


def number(value: float) -> str:
    """A bound, with commas in long integers."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def default(field: FieldInfo) -> str:
    """The value that holds when the key is not given."""
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def changes(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A preset's values as key=value."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from changes(value, f"{prefix}{name}.")
        else:
            shown = list(value) if isinstance(value, tuple) else value
            yield f"`{prefix}{name}={shown if isinstance(shown, str) else json.dumps(shown)}`"


def cell(text: str) -> str:
    """Text that does not end a table's cell."""
    return text.replace("|", "\\|")


def page() -> str:
    """The whole page."""
    lines = [HEADER]
    for section in sections(TrainConfig):
        title = f"`{section.prefix}`" if section.prefix else "Top level"
        if f"## {title}" not in lines:
            lines += [f"## {title}", ""]
        lines += [section.summary, ""]
        if section.keys:
            lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
            for key in section.keys:
                value = ", ".join(filter(None, (key.kind, key.bounds)))
                lines.append(f"| `{key.name}` | {cell(value)} | {cell(key.default)} | {cell(key.description)} |")
            lines.append("")
    lines += [*attention_presets(), "", *training_presets()]
    return "\n".join(lines) + "\n"


def attention_presets() -> list[str]:
    """Names for ``model.attention``, and what each changes."""
    lines = [
        "## Names for `model.attention`",
        "",
        "A name stands for the keys it changes from the defaults above; further keys may follow it, as in",
        "`model.attention=flt-undamped model.attention.n_frequencies=32`.",
        "",
        "| name | sets |",
        "|---|---|",
    ]
    for name, values in ATTENTIONS.items():
        if name not in RANDOM_FEATURES:
            lines.append(f"| `{name}` | {', '.join(changes(values)) or 'nothing: the defaults'} |")
    components = ", ".join(f"`{component}`" for component in COMPONENT_FUNCTIONS)
    matrices = ", ".join(f"`{matrix}`" for matrix in WEIGHT_MATRICES)
    lines.append(
        f"| `COMPONENT-WEIGHTS` | `mechanism=kernelised`, `kernel=COMPONENT-WEIGHTS`; COMPONENT is one of "
        f"{components}, WEIGHTS one of {matrices}, as in `posrf-orf` |"
    )
    return lines


def training_presets() -> list[str]:
    """Names for ``molflt config``, and what each changes."""
    lines = [
        "## Presets of `molflt config`",
        "",
        "All train on the bundled data as they stand, but for `forces`, which needs files of your own.",
        "",
        "| name | what | sets |",
        "|---|---|---|",
    ]
    for name, values in PRESETS.items():
        summary, sets = values["summary"], changes({key: values[key] for key in values if key != "summary"})
        lines.append(f"| `{name}` | {cell(summary)} | {', '.join(sets) or 'nothing'} |")
    return lines


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="do not write; exit status 1 if the page is not current")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page")
    arguments = parser.parse_args()
    text = page()
    if not arguments.check:
        with atomic_file(arguments.out) as path:
            path.write_text(text, encoding="utf-8")
        return
    written = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else ""
    if written != text:
        sys.stdout.writelines(
            difflib.unified_diff(written.splitlines(True), text.splitlines(True), "written", "schema", n=0)
        )
        sys.exit(f"{arguments.out} is not current: python -m scripts.tools.config_reference writes it again")


if __name__ == "__main__":
    main()
