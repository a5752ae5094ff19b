"""The model files behind a path: one, or the members of an ensemble."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from molflt.attention.config import MethodName
from molflt.errors import InputError
from molflt.model.model_file import LoadedModel, load_model
from molflt.prediction.pretrained import PRETRAINED_PREFIX, pretrained_model

BEST, MEMBER = "best.safetensors", "member-"

ModelPath = str | os.PathLike[str]


def member_paths(path: ModelPath) -> list[Path]:
    """A model file itself, the best model of a run directory, or those of an ensemble's members.

    Args:
        path: of a file or folder, or ``pretrained:NAME`` for a model that comes with the package.

    Raises:
        InputError: no such pretrained model, a folder that is no finished run, or an ensemble of which members are
            missing.
    """
    if str(path).startswith(PRETRAINED_PREFIX):
        return [pretrained_model(str(path).removeprefix(PRETRAINED_PREFIX))]
    path = Path(path)
    if not path.is_dir() or (path / BEST).exists():
        return [path / BEST if path.is_dir() else path]
    members = sorted(path.glob(f"{MEMBER}*"), key=lambda member: (len(member.name), member.name))
    if not members:
        raise InputError(f"{path}: is a folder without {BEST}; give a model file, or the directory of a finished run")
    unfinished = [member.name for member in members if not (member / BEST).exists()]
    if unfinished:
        raise InputError(
            f"{path}: {', '.join(unfinished)} of its {len(members)} members have no {BEST} yet; go on with "
            f"'molflt train {path / 'config.yaml'} --out {path} --resume auto'"
        )
    return [member / BEST for member in members]


def load_members(paths: ModelPath | Sequence[ModelPath], frequencies: MethodName | None = None) -> list[LoadedModel]:
    """Load a model or an ensemble.

    Args:
        paths: a model file, a run directory, the directory of an ensemble, ``pretrained:NAME``, or several of them:
            one ensemble.
        frequencies: see :func:`molflt.model.model_file.load_model`.

    Raises:
        InputError: a file cannot be used, or members that predict different things.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [file for path in given for file in member_paths(path)]
    if not files:
        raise InputError("no model: give a model file or a run directory")
    members = [load_model(file, frequencies) for file in files]
    first = members[0]
    for member in members[1:]:
        for what, expected in _shared(first).items():
            if (found := _shared(member)[what]) != expected:
                raise InputError(
                    f"{member.path}: its {what} is {found}, that of {first.path} {expected}; they make no ensemble"
                )
    return members


def load_member(path: ModelPath, frequencies: MethodName | None = None) -> LoadedModel:
    """Load one model: a model file, or the best model of a run directory.

    Args:
        path: where it is.
        frequencies: see :func:`molflt.model.model_file.load_model`.

    Raises:
        InputError: the file cannot be used, or it is an ensemble.
    """
    files = member_paths(path)
    if len(files) > 1:
        raise InputError(f"{path}: is an ensemble of {len(files)} models; give one of them, such as {files[0]}")
    return load_model(files[0], frequencies)


def _shared(member: LoadedModel) -> dict[str, object]:
    """What members of an ensemble must agree on."""
    config = member.model.config
    return {
        "target": member.metadata.target,
        "cutoff": config.neighbour_cutoff,
        "need of all pairs": config.all_pairs_if_isolated,
        "precision": member.model.dtype,
    }
