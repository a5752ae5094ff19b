"""Fine-tuning: start from a trained model, whose energies are fitted to new labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from ase.data import chemical_symbols
from pydantic import ValidationError
from torch import Tensor, nn

from molflt.attention.config import FROM_TRAINING_SET
from molflt.data.dataset import StructureDataset, fingerprint
from molflt.errors import InputError
from molflt.model.config import ModelConfig
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel, Origin
from molflt.model.scale_shift import Statistics, fit_statistics
from molflt.prediction.members import load_member, load_members
from molflt.prediction.predict import predict
from molflt.training.config import TrainConfig
from molflt.training.data_module import EnergyDataModule
from molflt.training.run_dir import differences
from molflt.training.training_set import TrainingSet
from molflt.vocabulary import MAX_ATOMIC_NUMBER

_STATISTICS, _HEAD = "standardiser", "energy_head"
_ENOUGH = 5_000
"""Structures that tell how energies of a trained model are shifted."""


def load_initial(config: TrainConfig, say: Callable[[str], None]) -> tuple[TrainConfig, LoadedModel | None]:
    """Load the model that a run starts from, of an ensemble its first, if there is one.

    Returns:
        The configuration with that model's architecture, and the model. Keys of ``model`` that are given stay as they
        are. What training would have set by its data, such as the width of the widest member of the far field, is
        that model's: its weights belong to it.

    Raises:
        InputError: ``init.model`` is no model, or keys that are given do not go with the others of that model.
    """
    if config.init.model is None:
        return config, None
    try:
        initial = load_member(config.init.model, say)
    except InputError as error:
        raise InputError(f"init.model: {error}") from error
    values = initial.metadata.config.model_dump()
    given = config.model.model_dump(exclude_unset=True)
    attention = given.pop("attention", {})
    for key in FROM_TRAINING_SET:
        if attention.get(key, ...) is None:
            del attention[key]
    if attention.get("mechanism") == values["attention"]["mechanism"]:
        attention = {**values["attention"], **attention}
    values |= given | ({"attention": attention} if attention else {})
    try:
        model = ModelConfig.model_validate(values)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"model: with the other keys of {initial.path}: {reason}") from error
    if config.loss.charge_weight and not model.partial_charges:
        raise InputError(f"loss.charge_weight: {initial.path} has no partial charges; add loss.charge_weight=0")
    return config.model_copy(update={"model": model}), initial


def each_initial(config: TrainConfig) -> list[str | None]:
    """Name what each member of an ensemble starts from: members of a given ensemble in turn.

    Raises:
        InputError: ``init.model`` is no model.
    """
    model = config.init.model
    n = 1 if model is None else len(load_members(model))
    return [model if n == 1 else f"{model}#{k % n}" for k in range(config.ensemble)]


def take_over(
    model: EnergyModel,
    initial: LoadedModel,
    config: TrainConfig,
    data: EnergyDataModule,
    device: torch.device,
    say: Callable[[str], None],
) -> tuple[Statistics, Origin]:
    """Take over what fits of a trained model by name and shape, and freeze what is to stay.

    Statistics are those of the trained model, shifted by what its predictions lack on the new labels (a constant, or
    an energy for each element), where these then explain the labels better than composition alone; the constant is
    left out where energies are read off the contact of an adsorbate. If they do not,
    the labels are another quantity: statistics are those of the training set, and the energy head starts anew.

    Returns:
        The statistics, and what the new model file says of where it comes from; ``model`` is changed in place.

    Raises:
        InputError: hardly anything fits, or a name in ``init.freeze`` is that of no part.
    """
    _check_fit(model, initial, config)
    _freeze(model, config.init.freeze)
    found = data.training_set
    statistics, before, after = _shifted(initial, found, data.sample(_ENOUGH), config, device)
    kept = statistics is not None
    taken, other_size, new, unused = _copy(model, initial.model, kept)
    names = [chemical_symbols[z] for z in found.elements if z not in initial.metadata.elements]
    n_tensors = len(taken) + len(other_size) + len(new)
    say(f"starts from {config.init.model}: {len(taken)} of {n_tensors} tensors taken over")
    for what, parts in (("new", new), ("of another size, reinitialised", other_size), ("not used", unused)):
        if parts:
            say(f"  {what}: {', '.join(_parts(parts))}")
    if names:
        say(f"  new elements, whose vectors are untrained: {', '.join(names)}")
    fitted = (
        "its reference energies are kept, with that shift" if kept else "energy head and statistics are reinitialised"
    )
    say(f"  its energies, shifted, miss the labels by {after:.4g} eV; composition alone by {before:.4g} eV: {fitted}")
    if config.init.freeze:
        n = sum(p.numel() for p in model.parameters() if not p.requires_grad)
        say(f"  frozen: {', '.join(config.init.freeze)} ({n:,} of {model.n_parameters():,} parameters)")
    metadata = initial.metadata
    statistics = statistics or found.statistics
    if model.config.read_out == "contact":
        # A mean for each structure would be counted once, however large the adsorbate; some models have one already.
        had_one = kept and metadata.config.read_out == "contact"
        statistics = replace(statistics, mean=float(initial.model.standardiser.mean) if had_one else 0.0)
    return statistics, Origin(
        model=str(config.init.model),
        fingerprint=fingerprint(initial.path),
        trained_on=metadata.training_data,
        target=metadata.target,
        taken_over=len(taken),
        fresh=_parts([*new, *other_size]),
        new_elements=names,
        elements=metadata.trained_elements,
        frozen=list(config.init.freeze),
    )


def _copy(
    model: EnergyModel, source: EnergyModel, with_head: bool
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Copy tensors; name those taken, of another size, new, and without a place."""
    state, there = model.state_dict(), source.state_dict()
    left_out = [_STATISTICS] if with_head else [_STATISTICS, _HEAD]
    wanted = [name for name in state if name.split(".")[0] != _STATISTICS]
    offered = {name: value for name, value in there.items() if name.split(".")[0] not in left_out}
    taken = [name for name in wanted if name in offered and offered[name].shape == state[name].shape]
    with torch.no_grad():
        for name in taken:
            state[name].copy_(offered[name])
    other_size = [name for name in wanted if name in offered and name not in taken]
    new = [name for name in wanted if name not in offered]
    return taken, other_size, new, [name for name in offered if name not in state]


def _check_fit(model: EnergyModel, initial: LoadedModel, config: TrainConfig) -> None:
    shapes = {name: p.shape for name, p in model.encoder.named_parameters()}
    offered = dict(initial.model.encoder.named_parameters())
    fitting = [p for name, p in offered.items() if shapes.get(name) == p.shape]
    if 2 * sum(p.numel() for p in fitting) >= sum(p.numel() for p in offered.values()):
        return
    changed = differences(model.config.model_dump(), initial.metadata.config.model_dump())
    other = [f"model.{key}: {here} here, {there} there" for key, here, there in changed]
    raise InputError(
        f"init.model={config.init.model}: less than half of its layers fits the model configured "
        f"({'; '.join(other)}); leave these keys, or the section model, out of the configuration"
    )


def _freeze(model: nn.Module, names: Iterable[str]) -> None:
    """Train no longer the parameters whose names have the parts of a given name in a row."""
    parameters, frozen = dict(model.named_parameters()), set()
    for name in names:
        found = [p for p in parameters if f".{name}." in f".{p}."]
        if not found:
            raise InputError(f"init.freeze: there is no part {name}; there are {', '.join(_parts(parameters))}")
        frozen.update(found)
    if len(frozen) == len(parameters):
        raise InputError("init.freeze: nothing is left to train; freeze fewer parts")
    for name in frozen:
        parameters[name].requires_grad_(False)


def _parts(names: Iterable[str]) -> list[str]:
    """Modules of tensors, in order: layers by their numbers, others by their first names."""
    split = [name.removeprefix("encoder.").split(".") for name in names]
    return list(dict.fromkeys(".".join(p[:2] if p[0] in ("layers", "embedding") else p[:1]) for p in split))


def _shifted(
    initial: LoadedModel, found: TrainingSet, structures: StructureDataset, config: TrainConfig, device: torch.device
) -> tuple[Statistics | None, float, float]:
    """Shift the trained model's statistics, if of use; eV left without and with the model."""
    predicted = predict(initial, structures, device, config.data.max_atoms)
    initial.model.cpu()
    rows = [structures[k] for k in range(len(structures))]
    labels = torch.tensor([float(data[config.data.target]) for data in rows], dtype=torch.float64)
    compositions = torch.stack([torch.bincount(d.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1) for d in rows])
    lacking = labels - torch.from_numpy(predicted.energies)
    shift = fit_statistics(found.statistics.kind, lacking, compositions, 0.0)
    before, after = _left(labels, compositions, found.statistics), _left(lacking, compositions, shift)
    if after > before:
        return None, before, after
    own = initial.model.standardiser
    references = {z: float(own.references[z]) for z in torch.nonzero(own.references).squeeze(1).tolist()}
    references |= {z: references.get(z, 0.0) + energy for z, energy in shift.references.items()}
    statistics = replace(
        shift,
        mean=float(own.mean) + shift.mean,
        std=float(own.std),
        references=references,
        displacement_std=float(own.displacement_std)
        if initial.metadata.config.auxiliary_head
        else found.statistics.displacement_std,
    )
    return statistics, before, after


def _left(energies: Tensor, compositions: Tensor, statistics: Statistics) -> float:
    """Standard deviation of what mean and references leave, eV."""
    references = torch.zeros(compositions.shape[1], dtype=torch.float64)
    references[list(statistics.references)] = torch.tensor([*statistics.references.values()], dtype=torch.float64)
    return float((energies - statistics.mean - compositions.to(torch.float64) @ references).std(unbiased=False))
