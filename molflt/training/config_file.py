"""YAML and dotted overrides to a checked configuration, and back to YAML that explains itself."""

from __future__ import annotations

import difflib
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml import YAMLError

from molflt.attention.config import ATTENTION_PRESETS
from molflt.bundled import resolve_path as resolve_path
from molflt.errors import InputError
from molflt.training.config import TrainConfig
from molflt.training.plain_yaml import MOST_CHARACTERS, check_plain_yaml

STANDARD_INPUT = "-"
_MOST_MISTAKES = 50
"""That are explained: finding the nearest right key takes a while for each."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file (``-``: standard input) and apply ``key.sub=value`` overrides.

    Raises:
        InputError: no such file, not YAML, a misspelt key (with the nearest right one), a wrong value.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the YAML file")
    if not path.exists() and str(path) != STANDARD_INPUT:
        raise InputError(f"{path}: no such file; 'molflt config tiny > {path}' makes one")
    try:
        text = _read(path)
        check_plain_yaml(text, str(path))
        content = OmegaConf.load(io.StringIO(text))
        if not isinstance(content, DictConfig):
            raise InputError(f"{path}: must be a mapping of keys to values; 'molflt config tiny' prints one")
        _expand_attention(content)
    except InputError:
        raise
    # ValueError: bytes that are no text, and numbers of too many digits
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path}: not readable as YAML ({_one_line(error)})") from error
    for override in overrides:
        _apply(content, override)
    try:
        values = OmegaConf.to_container(content, resolve=True)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise InputError(f"{path}: {_one_line(error)}") from error
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        lines = dict.fromkeys(_explain(detail) for detail in error.errors()[:_MOST_MISTAKES])
        raise InputError("\n  ".join([f"{path}: the configuration is not valid", *lines])) from error


def _read(path: Path) -> str:
    """No more than what is refused as too long."""
    if str(path) == STANDARD_INPUT:
        return sys.stdin.read(MOST_CHARACTERS + 1)
    with path.open(encoding="utf-8") as stream:
        return stream.read(MOST_CHARACTERS + 1)


def _apply(content: DictConfig, override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)*", key):
        raise InputError(f"override '{override}' is not of the form key.sub=value, as in trainer.max_epochs=5")
    try:
        parsed = OmegaConf.from_dotlist([f"value={value}"])["value"]
        # Sections are completed; a value, such as a name for a section, and the free list of splits are replaced.
        OmegaConf.update(content, key, parsed, merge=OmegaConf.is_dict(parsed) and key != "data.val", force_add=True)
        _expand_attention(content)
    except (OmegaConfBaseException, YAMLError) as error:
        raise InputError(f"override '{override}' cannot be applied ({_one_line(error)})") from error


def _expand_attention(content: DictConfig) -> None:
    """Write a preset's name out, so that model.attention=flt can be followed by model.attention.n_features=32."""
    name = OmegaConf.select(content, "model.attention")
    if isinstance(name, str) and name in ATTENTION_PRESETS:
        OmegaConf.update(content, "model.attention", OmegaConf.create(ATTENTION_PRESETS[name]), merge=False)


def _one_line(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


def to_yaml(config: BaseModel, header: str = "") -> str:
    """Every key with its value and, as a comment, its meaning."""
    lines = [f"# {line}" for line in header.splitlines()]
    return "\n".join([*lines, *_yaml_lines(config, 0)]) + "\n"


def _yaml_lines(config: BaseModel, depth: int) -> list[str]:
    lines: list[str] = []
    indent = "  " * depth
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            summary = (type(value).__doc__ or "").splitlines()[0]
            lines += ["", f"{indent}# {summary}"] if depth == 0 else []
            lines += [f"{indent}{name}:", *_yaml_lines(value, depth + 1)]
        elif isinstance(value, dict):
            lines.append(f"{indent}{name}:  # {field.description}")
            lines += [f"{indent}  {_quoted(key)}: {_scalar(item)}" for key, item in value.items()]
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}  # {field.description}")
    return lines


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML 1.1 reads 1e-06 as text: it wants a point in the mantissa.
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    # A dollar before a brace would be an interpolation.
    return _quoted(value.replace("${", r"\${")) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """Text as it stands where YAML reads it back as that text, else quoted as JSON, which YAML reads as well."""
    plain = re.fullmatch(r"\w[\w./:+-]*", text) and OmegaConf.to_container(OmegaConf.create(f"value: {text}"))
    return text if plain == {"value": text} else json.dumps(text, ensure_ascii=False)


def _explain(detail: ErrorDetails) -> str:
    # For a union, pydantic adds the names of its members to the path.
    parts = [str(part) for part in detail["loc"] if not re.match(r"literal\[|bool$|\[key\]$", str(part))]
    key = ".".join(parts)
    match detail["type"]:
        case "extra_forbidden":
            near = _nearest(key)
            return f"{key}: there is no such key" + (f"; did you mean {near}?" if near else "")
        case "missing":
            return f"{key}: is missing"
        case "model_type" | "dict_type":
            return f"{key}: must be a mapping of keys to values, not {detail['input']!r}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    given = detail["input"]
    if detail["type"] == "value_error" or not isinstance(given, str | int | float):
        return f"{key}: {message}"
    # pydantic goes on about how it tried to read the number; the value says as much.
    reading = re.compile(r", (unable to|got a number)")
    return f"{key}: {reading.split(message)[0]}, not {given!r}"


def _nearest(key: str) -> str | None:
    """The right spelling: of the whole path, or of its last part wherever that stands."""
    known = _known_keys(TrainConfig)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return near[0]
    last = {name.rpartition(".")[2]: name for name in known}
    match = difflib.get_close_matches(key.rpartition(".")[2], list(last), n=1, cutoff=0.6)
    return last[match[0]] if match else None


def _known_keys(schema: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in schema.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _known_keys(field.annotation, f"{prefix}{name}.")
    return keys
