"""YAML and dotted overrides to a checked configuration, and back to YAML that explains itself."""

from __future__ import annotations

import difflib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from molflt.attention.config import MechanismConfig
from molflt.attention.registry import ATTENTIONS, MECHANISMS
from molflt.errors import InputError
from molflt.files import standard_input
from molflt.training.config import TrainConfig
from molflt.training.presets import PRESETS, preset_config

STANDARD_INPUT = "-"
_MOST_MISTAKES = 50
"""Mistakes that are explained: finding the nearest right key takes a while for each."""
MOST_CHARACTERS = 1 << 18
"""A configuration with every key explained has some ten thousand."""
_MOST_NODES = 10_000
_MOST_DEPTH = 20
_MOST_INTERPOLATIONS = 16
"""Of ``${...}`` in the whole file: each may repeat what another makes."""
_MOST_INTERPOLATED = 1000
"""Characters of a value with interpolations; OmegaConf's grammar takes milliseconds for each."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file (``-``: standard input; or the name of a preset) and apply ``key.sub=value`` overrides.

    Raises:
        InputError: no such file, not YAML, a misspelt key (with the nearest right one), a wrong value.
    """
    content = _read_yaml(Path(path))
    for override in overrides:
        _apply(content, override)
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
        name, content = os.fspath(config), _read_yaml(Path(config))
    else:
        name = "config"
        values = config.model_dump(exclude_unset=True) if isinstance(config, TrainConfig) else config
        content = _as_yaml(values, name)
        _expand(content)
    for key, value in overrides.items():
        try:
            _set(content, key, _as_yaml({"value": value}, key)["value"])
        except OmegaConfBaseException as error:
            raise InputError(f"{key}: cannot be set ({_one_line(error)})") from error
    return _checked(content, name)


def _as_yaml(values: Mapping[str, Any], name: str) -> DictConfig:
    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [plain(entry) for entry in value]
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    try:
        return OmegaConf.create(plain(values))
    except OmegaConfBaseException as error:
        raise InputError(f"{name}: cannot stand in a configuration ({_one_line(error)})") from error


def _read_yaml(path: Path) -> DictConfig:
    if str(path) in PRESETS and not path.exists():
        return OmegaConf.create(preset_config(str(path)).model_dump(exclude_unset=True))
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
        _expand(content)
    except InputError:
        raise
    # ValueError: bytes that are no text, and numbers of too many digits
    except (OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path}: not readable as YAML ({_one_line(error)})") from error
    return content


def _checked(content: DictConfig, name: str) -> TrainConfig:
    try:
        values = OmegaConf.to_container(content, resolve=True)
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise InputError(f"{name}: {_one_line(error)}") from error
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        lines = dict.fromkeys(_explain(detail) for detail in error.errors()[:_MOST_MISTAKES])
        raise InputError("\n  ".join([f"{name}: the configuration is not valid", *lines])) from error


def _read(path: Path) -> str:
    """No more than what is refused as too long."""
    if str(path) == STANDARD_INPUT:
        return standard_input(4 * MOST_CHARACTERS, "a YAML configuration").decode("utf-8")
    with path.open(encoding="utf-8") as stream:
        return stream.read(MOST_CHARACTERS + 1)


def _apply(content: DictConfig, override: str) -> None:
    key, separator, value = override.partition("=")
    if not separator or not re.fullmatch(r"\w[\w-]*(\.\w[\w-]*)*", key):
        raise InputError(f"override '{override}' is not of the form key.sub=value, as in trainer.max_epochs=5")
    try:
        _set(content, key, OmegaConf.from_dotlist([f"value={value}"])["value"])
    except UnicodeEncodeError as error:
        raise InputError(
            f"override '{override}' holds characters that are none in this locale; take a UTF-8 one, as by "
            "LC_ALL=C.UTF-8"
        ) from error
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise InputError(f"override '{override}' cannot be applied ({_one_line(error)})") from error


def _set(content: DictConfig, key: str, value: Any) -> None:
    """Sections are completed. A value, the free list of splits, and another mechanism's keys are replaced."""
    if key == "data" and OmegaConf.is_dict(value) and "val" in value:
        value = value.copy()
        _set(content, "data.val", value.pop("val"))
    merge = OmegaConf.is_dict(value) and key != "data.val" and "mechanism" not in value
    if key == "model.attention.mechanism":
        _drop_keys_of_other_mechanisms(content, value)
    OmegaConf.update(content, key, value, merge=merge, force_add=True)
    _expand(content)


def _expand(content: DictConfig) -> None:
    """Write short forms out, so that model.attention=flt can be followed by model.attention.n_features=32."""
    if isinstance(initial := content.get("init"), str):
        OmegaConf.update(content, "init", OmegaConf.create({"model": initial}), merge=False)
    name = OmegaConf.select(content, "model.attention")
    if isinstance(name, str) and name in ATTENTIONS:
        OmegaConf.update(content, "model.attention", OmegaConf.create(ATTENTIONS[name]), merge=False)


def _drop_keys_of_other_mechanisms(content: DictConfig, mechanism: Any) -> None:
    """Keep what the mechanism now chosen has as well, so that one key changes it."""
    attention = OmegaConf.select(content, "model.attention")
    if isinstance(attention, DictConfig) and mechanism in MECHANISMS:
        for key in set(attention) - set(MECHANISMS[mechanism].config.model_fields):
            del attention[key]


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
    # A dollar before a brace would be an interpolation.
    return _quoted(value.replace("${", r"\${")) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """Text as it stands where YAML reads it back as that text, else quoted as JSON, which YAML reads as well."""
    plain = re.fullmatch(r"\w[\w./:+-]*", text) and OmegaConf.to_container(OmegaConf.create(f"value: {text}"))
    return text if plain == {"value": text} else json.dumps(text, ensure_ascii=False)


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
        sections = [field.annotation]
        if name == "attention":
            sections = [mechanism.config for mechanism in MECHANISMS.values()]
        for section in sections:
            if isinstance(section, type) and issubclass(section, BaseModel):
                keys += _known_keys(section, f"{prefix}{name}.")
    return list(dict.fromkeys(keys))


def check_plain_yaml(text: str, where: str) -> None:
    """Refuse YAML that is too large, once unfolded too, too deep, or that names types; ``where`` is for messages.

    Raises:
        InputError: a limit is exceeded, or there is a tag such as ``!!python/object``.
        yaml.YAMLError: not YAML.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"{where}: too long for a configuration (more than {MOST_CHARACTERS:,} characters); "
            "'molflt config tiny' prints one"
        )
    open_sizes, open_anchors = [0], [""]
    sizes: dict[str, int] = {}
    interpolations = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise InputError(f"{where}: refused, it names a type ({tag!r:.60}); remove the tag")
        if isinstance(event, yaml.CollectionStartEvent):
            open_sizes.append(1)
            open_anchors.append(event.anchor or "")
            if len(open_sizes) > _MOST_DEPTH:
                raise InputError(f"{where}: refused, it is nested more than {_MOST_DEPTH} deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            size, anchor = open_sizes.pop(), open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent):
            # one that is not known yet stands inside itself, or nowhere
            size, anchor = sizes.get(event.anchor or "", _MOST_NODES), ""
        elif isinstance(event, yaml.ScalarEvent):
            size, anchor = 1, event.anchor or ""
            found = event.value.count("${")
            interpolations += found
            if interpolations > _MOST_INTERPOLATIONS or (found and len(event.value) > _MOST_INTERPOLATED):
                raise InputError(f"{where}: refused, it has too many or too long interpolations (${{...}})")
        else:
            continue
        if anchor:
            sizes[anchor] = size
        open_sizes[-1] += size
        if open_sizes[-1] > _MOST_NODES:
            raise InputError(f"{where}: refused, it unfolds to more than {_MOST_NODES:,} values, or holds itself")
