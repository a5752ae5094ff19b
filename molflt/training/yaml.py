"""Reading of a configuration from YAML and dotted overrides, and writing with explanations."""

from __future__ import annotations

import difflib
import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from molflt.attention.config import MechanismConfig
from molflt.attention.registry import ATTENTIONS, MECHANISMS, preset_keys
from molflt.errors import InputError
from molflt.files import standard_input
from molflt.training.config import PRESETS, TrainConfig, preset_config

STANDARD_INPUT = "-"
_MOST_MISTAKES = 50
"""Mistakes that are explained: finding the nearest right key takes a while for each."""
MOST_CHARACTERS = 1 << 18
"""A configuration with every key explained has some ten thousand."""


class _Loader(yaml.SafeLoader):
    """YAML without dates, where 1e-6 is a number, as in YAML 1.2."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, form) for tag, form in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse keys that come twice, in place of merging mappings, which may unfold without limit."""
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, n in names.most_common(1):
            if n > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name} comes twice", node.start_mark)


_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file or a preset and apply ``key.sub=value`` overrides.

    ``-`` is standard input. A preset's architecture is left out where a trained model is given to start from.

    Raises:
        InputError: no such file, not YAML, a misspelt key (with the nearest right one), a wrong value.
    """
    content = _read_yaml(Path(path), any(re.match(r"init(\.model)?=", override) for override in overrides))
    for override in overrides:
        content = _override(content, override)
    return _checked(content, str(path))


def make_config(
    config: TrainConfig | Mapping[str, Any] | str | os.PathLike[str], overrides: Mapping[str, Any]
) -> TrainConfig:
    """The same from Python.

    Args:
        config: a configuration, its values in nested mappings, a YAML file, or the name of a preset.
        overrides: values by key, dotted or in nested mappings; a section is completed.

    Raises:
        InputError: as :func:`load_config`.
    """
    if isinstance(config, TrainConfig) and not overrides:
        return config
    if isinstance(config, str | os.PathLike):
        name, content = os.fspath(config), _read_yaml(Path(config), bool(overrides.keys() & {"init", "init.model"}))
    else:
        values = config.model_dump(exclude_unset=True) if isinstance(config, TrainConfig) else config
        name, content = "config", _expanded(_plain(values))
    for key, value in overrides.items():
        content = _set(content, key, _plain(value))
    return _checked(content, name)


def _plain(value: Any) -> Any:
    """Return a value as YAML would give it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _read_yaml(path: Path, started: bool) -> dict[str, Any]:
    """Read the content; of a preset without its architecture if training starts from a trained model."""
    if str(path) in PRESETS and not path.exists():
        return preset_config(str(path)).model_dump(exclude_unset=True, exclude={"model"} if started else None)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give the YAML file")
    if not path.exists() and str(path) != STANDARD_INPUT:
        remedy = f"'molflt config tiny > {path}' makes one" if path.suffix else f"presets are {', '.join(PRESETS)}"
        raise InputError(f"{path}: no such file; {remedy}")
    try:
        text = _read(path)
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path}: not readable as YAML ({_one_line(error)})") from error
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{path}: too long for a configuration (more than {MOST_CHARACTERS:,} characters); "
            "'molflt config tiny' prints one"
        )
    content = _parsed(text, str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: must be a mapping of keys to values ('molflt config tiny'); give data by --train")
    return _expanded(content)


def _read(path: Path) -> str:
    """No more than what is refused as too long."""
    if str(path) == STANDARD_INPUT:
        return standard_input(4 * MOST_CHARACTERS, "a YAML configuration").decode("utf-8")
    with path.open(encoding="utf-8") as stream:
        return stream.read(MOST_CHARACTERS + 1)


def _checked(content: dict[str, Any], name: str) -> TrainConfig:
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        lines = dict.fromkeys(_explain(detail) for detail in error.errors()[:_MOST_MISTAKES])
        raise InputError("\n  ".join([f"{name}: the configuration is not valid", *lines])) from error


def _parsed(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506
    except RecursionError as error:
        raise InputError(f"{name}: not readable as YAML (it is nested too deep)") from error
    # Beside YAMLError: numbers of too many digits, and values that their tags do not fit.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"{name}: not readable as YAML ({_one_line(error)})") from error


def _override(content: dict[str, Any], override: str) -> dict[str, Any]:
    key, separator, value = override.partition("=")
    if not separator or not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)*", key):
        raise InputError(f"override '{override}' is not of the form key.sub=value, as in trainer.max_epochs=5")
    return _set(content, key, _parsed(value, f"override '{override}'"))


def _set(content: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the content with another value.

    Keys that another mechanism has as well are kept, so that one key changes it.
    """
    content = _changed(content, key.split("."), value, key)
    if key == "model.attention.mechanism" and isinstance(value, str) and value in MECHANISMS:
        attention, known = content["model"]["attention"], MECHANISMS[value].config.model_fields
        for other in set(attention) - set(known):
            del attention[other]
    return _expanded(content)


def _changed(old: Any, path: list[str], value: Any, key: str) -> Any:
    """Return a changed copy.

    Sections are completed, but for the free list of splits, and for attention with its mechanism.
    """
    completed = isinstance(old, dict) and isinstance(value, dict) and key != "data.val" and "mechanism" not in value
    if not path and not completed:
        return value
    copy = dict(old) if isinstance(old, dict) else {}
    for name, entry in value.items() if not path else [(path[0], value)]:
        copy[name] = _changed(copy.get(name), path[1:], entry, key if path else f"{key}.{name}")
    return copy


def _expanded(content: dict[str, Any]) -> dict[str, Any]:
    """Write short forms out: model.attention=flt may precede model.attention.n_features=32."""
    if isinstance(content.get("init"), str):
        content = {**content, "init": {"model": content["init"]}}
    model, known = content.get("model"), {**ATTENTIONS, **MECHANISMS}
    if isinstance(model, dict) and isinstance(name := model.get("attention"), str) and name in known:
        content = {**content, "model": {**model, "attention": preset_keys(name)}}
    return content


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
        if isinstance(config, MechanismConfig) and not config.acts(name):
            continue
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
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """Return text as it stands where YAML reads it back, else quoted as JSON, which is YAML too."""
    plain = re.fullmatch(r"\w[\w./:+-]*", text) and yaml.load(text, _Loader) == text  # noqa: S506
    return text if plain else json.dumps(text, ensure_ascii=False)


def _explain(detail: ErrorDetails) -> str:
    # For a union, pydantic adds the names of its members to the path.
    parts = [str(part) for part in detail["loc"] if not re.match(r"literal\[|bool$|\[key\]$", str(part))]
    if parts[:2] == ["model", "attention"] and parts[2:3] and parts[2] in MECHANISMS:
        del parts[2]
    key = ".".join(parts)
    match detail["type"]:
        case "extra_forbidden":
            near = _nearest(key)
            return f"{key}: there is no such key" + (f"; did you mean {near}?" if near else "")
        case "missing":
            return f"{key}: is missing"
        case "model_type" | "dict_type":
            return f"{key}: must be a mapping of keys to values, not {reprlib.repr(detail['input']):.80}"
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
        sections = [field.annotation]
        if name == "attention":
            sections = [mechanism.config for mechanism in MECHANISMS.values()]
        for section in sections:
            if isinstance(section, type) and issubclass(section, BaseModel):
                keys += _known_keys(section, f"{prefix}{name}.")
    return list(dict.fromkeys(keys))
