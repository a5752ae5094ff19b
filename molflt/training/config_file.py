"""YAML and dotted overrides to a checked configuration, and back to YAML that explains itself."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from yaml import YAMLError

from molflt.errors import InputError
from molflt.training.config import TrainConfig

BUNDLED_PREFIX = "bundled:"


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file and apply ``key.sub=value`` overrides.

    Raises:
        InputError: no such file, not YAML, a misspelt key (with the nearest right one), a wrong value.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; 'molflt config tiny > {path}' makes one")
    try:
        content = OmegaConf.load(path)
        if not OmegaConf.is_dict(content):
            raise InputError(f"{path}: must be a mapping of keys to values")
        for override in overrides:
            key, separator, value = override.partition("=")
            if not separator or not key:
                raise InputError(f"override '{override}' is not of the form key.sub=value")
            parsed = OmegaConf.from_dotlist([f"value={value}"])["value"]
            # A whole section may be replaced by a name, as in model.attention=flt.
            OmegaConf.update(content, key, parsed, merge=OmegaConf.is_dict(parsed), force_add=True)
        values = OmegaConf.to_container(content, resolve=True)
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as YAML with overrides ({error})") from error
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        lines = "\n".join(f"  {_explain(detail)}" for detail in error.errors())
        raise InputError(f"{path}: the configuration is not valid\n{lines}") from error


def resolve_path(path: str) -> Path:
    """Turn ``bundled:NAME`` into a path of this checkout; leave other paths as they are.

    Raises:
        InputError: the bundled data is not there.
    """
    if not path.startswith(BUNDLED_PREFIX):
        return Path(path)
    root = Path(__file__).resolve().parents[2] / "data"
    resolved = root / path.removeprefix(BUNDLED_PREFIX)
    if not resolved.exists():
        raise InputError(
            f"{path}: not found as {resolved}; the bundled data is in the repository's data folder: "
            "install molflt from a clone with 'pip install -e .'"
        )
    return resolved


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
            lines += [f"{indent}  {key}: {_scalar(item)}" for key, item in value.items()]
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
    return str(OmegaConf.to_yaml(OmegaConf.create({"value": value}))).partition(": ")[2].rstrip("\n")


def _explain(detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] != "extra_forbidden":
        return f"{key}: {detail['msg'].removeprefix('Value error, ')}"
    known = _known_keys(TrainConfig)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if not near:
        last = {name.rpartition(".")[2]: name for name in known}
        match = difflib.get_close_matches(key.rpartition(".")[2], list(last), n=1, cutoff=0.6)
        near = [last[match[0]]] if match else []
    return f"{key}: there is no such key" + (f"; did you mean {near[0]}?" if near else "")


def _known_keys(schema: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in schema.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _known_keys(field.annotation, f"{prefix}{name}.")
    return keys
