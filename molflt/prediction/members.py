"""Model files behind a path: a single model, a pretrained one, or members of an ensemble."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from molflt.errors import InputError
from molflt.files import sole_writer
from molflt.model.config import Uncertainty
from molflt.model.file import LoadedModel, load_model, load_models, save_model
from molflt.terminal_text import shown
from molflt.vocabulary import QUANTITIES, MethodName

BEST, MEMBER = "best.safetensors", "member-"
PRETRAINED_PREFIX = "pretrained:"

ModelPath = str | os.PathLike[str]


def member_paths(path: ModelPath) -> list[Path]:
    """Return a model file, the best model of a run directory, or an ensemble's member files.

    Args:
        path: of a file or folder, or ``pretrained:NAME`` for a model that comes with the package; ``#K`` at its end
            is ignored.

    Raises:
        InputError: no such pretrained model, a folder that is not a finished run, or an ensemble with missing
            members.
    """
    path, _ = split_member(path)
    if str(path).startswith(PRETRAINED_PREFIX):
        return [_pretrained_model(str(path).removeprefix(PRETRAINED_PREFIX))]
    path = Path(path)
    if not path.exists() and str(path) in pretrained_models():
        raise InputError(f"{path}: no such file; did you mean {PRETRAINED_PREFIX}{path}?")
    if not path.is_dir() or (path / BEST).exists():
        return [path / BEST if path.is_dir() else path]
    members = sorted(path.glob(f"{MEMBER}*"), key=lambda member: (len(member.name), member.name))
    if not members:
        raise InputError(f"{path}: is a folder without {BEST}; give a model file, or the directory of a finished run")
    unfinished = [member.name for member in members if not (member / BEST).exists()]
    if unfinished:
        raise InputError(
            f"{path}: {', '.join(unfinished)} of its {len(members)} members have no {BEST} yet; resume with "
            f"'molflt train {path / 'config.yaml'} --out {path} --resume auto'"
        )
    return [member / BEST for member in members]


def pretrained_models() -> dict[str, Path]:
    """Return name and file of every model in the package; each has a card NAME.md beside it."""
    folder = Path(str(resources.files("molflt"))) / "pretrained"
    return {path.stem: path for path in sorted(folder.glob("*.safetensors"))}


def _pretrained_model(name: str) -> Path:
    known = pretrained_models()
    if name not in known:
        raise InputError(f"{PRETRAINED_PREFIX}{name}: no such model; there are {', '.join(known) or 'none'}")
    return known[name]


def load_members(
    models: ModelPath | LoadedModel | Sequence[ModelPath | LoadedModel], frequencies: MethodName | None = None
) -> list[LoadedModel]:
    """Load a model or an ensemble.

    Args:
        models: a model file, a run directory, the directory of an ensemble, ``pretrained:NAME``, one of these with
            ``#K`` behind it for its K-th member, counted from 0, a loaded model, or several of them:
            one ensemble.
        frequencies: see :func:`molflt.model.file.load_model`; loaded models are left as they are.

    Raises:
        InputError: a file cannot be used, or the members predict different quantities.
    """
    one = isinstance(models, str | bytes | os.PathLike) or not isinstance(models, Iterable)
    given: list[Any] = [models] if one else list(models)  # type: ignore[arg-type]
    for entry in given:
        if not isinstance(entry, str | os.PathLike | LoadedModel):
            raise InputError(f"{shown(entry)} is not a path of a model; give a model file or a run directory")
    members: list[LoadedModel] = []
    for entry in given:
        members += [entry] if isinstance(entry, LoadedModel) else _load(entry, frequencies)
    if not members:
        raise InputError("no model: give a model file or a run directory")
    if len(given) > 1 and not all(isinstance(entry, LoadedModel) for entry in given):
        members = calibrated(members, None)
    first = members[0]
    for member in members[1:]:
        for what, expected in _shared(first).items():
            if (found := _shared(member)[what]) != expected:
                raise InputError(
                    f"{member.path}: its {what} is {found}, that of {first.path} {expected}; they are not an ensemble"
                )
    return members


def uncertainty_of(members: Sequence[LoadedModel]) -> Uncertainty | None:
    """Return the uncertainty stored for exactly these members; None if there is none."""
    known = members[0].metadata.uncertainty
    return known if known is not None and known.n_members == len(members) else None


def meaning_of_uncertainty(members: Sequence[LoadedModel]) -> str | None:
    """Describe in words the uncertainty given with a prediction; None if there is none."""
    if (known := uncertainty_of(members)) is not None:
        return str(known)
    return (
        f"± is the standard deviation over the {len(members)} members of the ensemble" if len(members) > 1 else None
    )


def provenance(members: Sequence[LoadedModel]) -> dict[str, str]:
    """State quantity, level of theory and error of a model, the last two from the card beside its file, if any."""
    metadata, card = members[0].metadata, members[0].path.with_suffix(".md")
    found = {
        "quantity": f"{QUANTITIES[metadata.target]}, eV",
        "level of theory": f"that of {metadata.training_data.path}",
        **_error_in_validation(members),
    }
    lines = card.read_text(encoding="utf-8").splitlines() if card.exists() else []
    stated = dict(line.split(": ", 1) for line in lines if line.startswith(("Level of theory: ", "Error: ")))
    return found | {key.lower(): text for key, text in stated.items()}


def _error_in_validation(members: Sequence[LoadedModel]) -> dict[str, str]:
    """Mean over the members of their errors on the first validation set; empty if they were not measured."""
    measured = [member.metadata.validation for member in members]
    split = next(iter(measured[0]), "").partition("/")[0]
    errors = [
        f"{fmean(one[key] for one in measured):.3g} {unit}"
        for key, unit in ((f"{split}/energy_mae", "eV"), (f"{split}/force_mae", "eV/Å"))
        if all(key in one for one in measured)
    ]
    return {"error": f"{' and '.join(errors)} (mean absolute) on the validation set '{split}'"} if errors else {}


def calibrated(members: Sequence[LoadedModel], known: Uncertainty | None) -> list[LoadedModel]:
    """Replace the members' stored uncertainty; None removes it."""
    changed = {"uncertainty": known}
    return [replace(member, metadata=member.metadata.model_copy(update=changed)) for member in members]


def _load(path: ModelPath, frequencies: MethodName | None) -> list[LoadedModel]:
    """Load the members behind one path, under the given name."""
    whole, k = split_member(path)
    files = member_paths(whole)
    members = [replace(member, name=str(path)) for file in files for member in load_models(file, frequencies)]
    if k is None:
        return members if len(files) == 1 else calibrated(members, None)
    if k >= len(members):
        raise InputError(f"{path}: {whole} has {len(members)} member{'s' * (len(members) != 1)}, counted from 0")
    return calibrated(members[k : k + 1], None)


def split_member(path: ModelPath) -> tuple[ModelPath, int | None]:
    """Split a path such as ``pretrained:fg#0`` into path and member; None: all members."""
    whole, _, number = str(path).rpartition("#")
    if not whole or not (number.isascii() and number.isdigit()) or os.path.exists(path):
        return path, None
    return whole, int(number)


def load_member(path: ModelPath, say: Callable[[str], None], frequencies: MethodName | None = None) -> LoadedModel:
    """Load one model: a file, the best of a run, or an ensemble's member, by default the first.

    Arguments are those of :func:`load_members`; ``say`` is told which member is used if the path does not name it.

    Raises:
        InputError: the file cannot be used.
    """
    members = load_members(path, frequencies)
    if (n := len(members)) == 1:
        return members[0]
    say(f"{path} is an ensemble of {n} models; this is the first, {path}#0")
    return replace(calibrated(members[:1], None)[0], name=f"{path}#0")


def _shared(member: LoadedModel) -> dict[str, object]:
    """Return the properties that members of an ensemble must agree on."""
    config = member.model.config
    return {
        "target": member.metadata.target,
        "cutoff": config.neighbour_cutoff,
        "need of all pairs": config.all_pairs_if_isolated,
        "acceptance of ions": config.takes_ions,
        "precision": member.model.dtype,
    }


def average_models(paths: Sequence[ModelPath], target: str | Path) -> LoadedModel:
    """Average the weights of model files of one run, and save them.

    This is stochastic weight averaging (arXiv 1803.05407): one model that is often better than each. Models of
    different seeds are not checkpoints of one run: the mean of their weights means nothing, while the mean of their
    predictions (an ensemble) does.

    Args:
        paths: model files with equal configuration, random features and statistics.
        target: where to save the average; it must not exist.

    Raises:
        InputError: fewer than two files, files that do not belong together, or a target that exists or that another
            process is writing.
    """
    if len(paths) < 2:
        raise InputError("give at least two model files to average, such as RUN_DIR/epoch-*.safetensors")
    with sole_writer(target):
        if Path(target).exists():
            raise InputError(f"{target}: exists already; choose another name")
        averaged = _average(paths)
        save_model(target, averaged.model, averaged.metadata)
        return replace(averaged, path=Path(target), name=str(target))


def _average(paths: Sequence[ModelPath]) -> LoadedModel:
    first = load_model(Path(paths[0]))
    learnt = {name for name, _ in first.model.named_parameters()}
    state = first.model.state_dict()
    sums = {name: tensor.to(torch.float64) for name, tensor in state.items() if name in learnt}
    for path in map(Path, paths[1:]):
        other = load_model(path)
        if other.metadata.config != first.metadata.config or other.metadata.seed != first.metadata.seed:
            raise InputError(
                f"{path}: has another configuration or seed than {paths[0]}; average checkpoints of one run, or use "
                "different models together as an ensemble"
            )
        for name, tensor in other.model.state_dict().items():
            if name in learnt:
                sums[name] += tensor
            elif not torch.equal(tensor, state[name]):
                raise InputError(f"{path}: '{name}' differs from that of {paths[0]}; they are not of one run")
    first.model.load_state_dict({**state, **{name: total / len(paths) for name, total in sums.items()}})
    # The errors of these weights are not known.
    return replace(first, metadata=first.metadata.model_copy(update={"validation": {}, "uncertainty": None}))
