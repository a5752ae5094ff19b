"""Energies of many structures, in the given order, in batches limited by a number of atoms."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from ase.data import chemical_symbols
from torch import Tensor
from torch_geometric.data import Data

from molflt.attention.layout import Plan
from molflt.data.batch import AtomBudgetSampler, collate
from molflt.data.dataset import ListDataset, StructureDataset
from molflt.data.neighbours import attach_neighbours
from molflt.data.progress import track
from molflt.data.quality import domain
from molflt.data.quality.occurrence import Reason
from molflt.errors import DamagedError, InputError, does_not_fit, try_within_memory
from molflt.model.energy import EnergyModel
from molflt.model.file import LoadedModel, ModelMetadata
from molflt.prediction.members import uncertainty_of
from molflt.prediction.output import BY_ATOM, Conformers, Prediction, conformers_of, joined
from molflt.terminal_text import printable
from molflt.vocabulary import DIFFERENTIABLE, LABELS, OnError

DEFAULT_MAX_ATOMS = 2048


def system_id(structure: Data) -> str:
    """Identifier of a structure for OC20's leaderboard: its ``sid``, or its name."""
    return str(int(structure.sid)) if "sid" in structure else str(structure.name)


def unlabelled(data: Data) -> Data:
    """Copy a structure as a prediction needs it, without targets."""
    data = copy.copy(data)
    for name in LABELS:
        if name in data:
            del data[name]
    return data


def choose_device(name: str) -> torch.device:
    """Choose a device; ``auto``: the GPU if there is one, else the CPU.

    Raises:
        InputError: the device is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"--device {name}: not a device; use auto, cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        # Apple's GPUs lack double precision, in which energies are summed.
        raise InputError(f"--device {name}: not supported; use auto, cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {name}: this machine has no usable GPU; use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {name}: there are {torch.cuda.device_count()} GPUs, counted from cuda:0")
    return device


def unknown_elements(loaded: LoadedModel, atomic_numbers: set[int]) -> list[str]:
    """Return the symbols of elements that the model was not trained on."""
    return [chemical_symbols[z] for z in sorted(atomic_numbers - set(loaded.metadata.elements))]


def domain_violations(loaded: LoadedModel, data: Data) -> list[Reason]:
    """Reasons why a structure is outside the model's stated domain; empty if it is inside.

    See :mod:`molflt.data.quality.domain`.
    """
    return domain.outside(loaded.metadata.domain, loaded.metadata.elements, data)


def predict(
    loaded: LoadedModel | Sequence[LoadedModel],
    dataset: StructureDataset,
    device: torch.device | str = "cpu",
    max_atoms: int = DEFAULT_MAX_ATOMS,
    on_error: OnError = "raise",
    forces: bool = False,
    per_atom: bool = False,
    embeddings: bool = False,
) -> Prediction:
    """Predict the energy of every structure.

    Args:
        loaded: the model, or the members of an ensemble, which need the same neighbours.
        dataset: structures without neighbour lists, which are computed here.
        device: where to compute.
        max_atoms: atoms per batch; bounds memory, changes no result.
        on_error: ``skip`` continues without structures that cannot be read or computed, and lists them in
            ``failures``.
        forces: predict forces as well.
        per_atom: give each atom's term of the energy as well.
        embeddings: give the encoder's embedding of each atom as well; for one model only.

    Raises:
        InputError: structures cannot be read or computed, of which the first ten are named; forces of a model whose
            energy is not that of the given geometry; or embeddings of an ensemble, whose members' embeddings are
            unrelated.
    """
    members = [loaded] if isinstance(loaded, LoadedModel) else list(loaded)
    if forces and (reason := why_no_forces(members[0].metadata.target)):
        raise InputError(f"{members[0].path}: {reason}")
    if embeddings and len(members) > 1:
        raise InputError(f"embeddings: those of {len(members)} models have nothing in common; load one of them")
    wanted = [name for name, asked in zip(BY_ATOM, (forces, per_atom, embeddings), strict=True) if asked]
    batches = list(AtomBudgetSampler(dataset.n_atoms, max_atoms, shuffle=False, seed=0)) if len(dataset) else [[]]
    tracked = track(batches, "predicting", total=len(batches))
    return joined(predict_batches(members, dataset, tracked, device, on_error, wanted))


def predict_batches(
    members: Sequence[LoadedModel],
    dataset: StructureDataset,
    batches: Iterable[Sequence[int]],
    device: torch.device | str = "cpu",
    on_error: OnError = "raise",
    wanted: Sequence[str] = (),
) -> Iterator[Prediction]:
    """Predict the energy of every structure, batch by batch.

    Args:
        members: the model, or those of an ensemble.
        dataset: see :func:`predict`, also for ``device`` and ``on_error``.
        batches: indices of the structures that are computed together. The choice changes at most the last digits of
            an energy.
        device: where to compute.
        on_error: how to treat a bad structure.
        wanted: the fields of ``BY_ATOM`` to compute as well.

    Yields:
        For every batch, the predictions in its order; ``failures`` are indexed within the batch.

    Raises:
        InputError: structures cannot be read or computed.
    """
    device = torch.device(device)
    models = [member.model.to(device) for member in members]
    for indices in batches:
        with torch.no_grad() if "forces" in wanted else torch.inference_mode():
            part = _predict_batch(members, models, dataset, indices, device, on_error, wanted)
        yield part


def _predict_batch(
    members: Sequence[LoadedModel],
    models: Sequence[EnergyModel],
    dataset: StructureDataset,
    indices: Sequence[int],
    device: torch.device,
    on_error: OnError,
    wanted: Sequence[str],
) -> Prediction:
    found = Prediction(np.full(len(indices), np.nan), [""] * len(indices), Counter(), ids=[""] * len(indices))
    found.info = [{} for _ in indices]
    widths = {"forces": (3,), "atomic_energies": (), "embeddings": (models[0].config.dim,)}
    for name in wanted:
        setattr(found, name, [np.full((int(n), *widths[name]), np.nan) for n in dataset.n_atoms[list(indices)]])

    def fail(position: int, error: InputError) -> None:
        if on_error == "raise":
            from molflt.data.dataset import refuse_unusable

            refuse_unusable(dataset, "the inputs", {indices[position]: error})
        found.names[position] = found.names[position] or printable(error.record)
        found.info[position] = found.info[position] or error.info
        found.failures[position] = printable(str(error), keep="\n\t")

    config, known = models[0].config, uncertainty_of(members)
    # The structures to compute for each place in the batch: the structure itself, or its conformers.
    shapes: dict[int, list[Data]] = {}
    broken: list[set[str]] = [set() for _ in indices]
    for position, index in enumerate(indices):
        try:
            data = unlabelled(dataset[index])
            found.names[position], found.ids[position] = printable(data.name), system_id(data)
            found.info[position] = data.get("info") or {}
            if "about" in data:
                found.about[position] = data.about
            each = conformers_of(data)
            shapes[position] = [
                attach_neighbours(shape, config.neighbour_cutoff, config.all_pairs_if_isolated) for shape in each
            ]
            violations = domain_violations(members[0], shapes[position][0])
            broken[position].update(violation.rule for violation in violations)
            if reasons := [*(violation.text for violation in violations), *filter(None, [data.get("remark")])]:
                found.warnings[position] = printable("; ".join(reasons))
        except DamagedError:
            raise
        except InputError as error:
            shapes.pop(position, None)
            fail(position, error)
    # Energies (n_members, n_conformers) of each, and the requested predictions for the atoms of each conformer.
    energies = {position: np.full((len(models), len(each)), np.nan) for position, each in shapes.items()}
    of_atoms: dict[tuple[int, int], dict[str, np.ndarray]] = {}
    # The first conformers of all are computed together, then the second, and so on: no such batch is larger than
    # the requested one.
    for k in range(max(map(len, shapes.values()), default=0)):
        part = [place for place, each in shapes.items() if k < len(each) and place not in found.failures]
        results = _each(models, [shapes[place][k] for place in part], device, wanted, found)
        for position, result in zip(part, results, strict=True):
            if isinstance(result, InputError):
                fail(position, result)
                continue
            energies[position][:, k], contraction, of_atoms[position, k] = result
            found.contractions.update([contraction] if contraction and k == 0 else [])
            found.elements.update(shapes[position][k].atomic_numbers.tolist())
    spread = np.full(len(indices), np.nan)
    for position in sorted(energies.keys() - found.failures.keys()):
        mean = (values := energies[position]).mean(axis=0)
        if not np.isfinite(mean).all():
            reason = "the model's energy is not finite; check the structure for overlapping atoms"
            fail(position, InputError(f"{found.names[position]}: {reason}"))
            continue
        lowest = int(mean.argmin())
        found.energies[position] = mean[lowest]
        spread[position] = values[:, lowest].std(ddof=1) if len(models) > 1 else 0.0
        if len(mean) > 1:
            found.conformers[position] = Conformers(len(mean), lowest, float(np.ptp(mean)))
        for name, value in of_atoms[position, lowest].items():
            found.by_atom[name][position] = value
    if known is not None or len(models) > 1:
        found.uncertainty_eV = spread if known is None else known.half_width(spread, broken=broken)
    return found


_Result = tuple[np.ndarray, str, dict[str, np.ndarray]]
"""Result for a structure: (n_models,) energies in eV, the far-field method, and per-atom predictions."""


def _each(
    models: Sequence[EnergyModel],
    structures: Sequence[Data],
    device: torch.device,
    wanted: Sequence[str],
    found: Prediction,
) -> Sequence[_Result | InputError]:
    """Compute a batch, in halves if memory is short or the model refuses one of its structures."""
    if not structures:
        return []
    try:
        computed = try_within_memory(lambda: _compute(models, structures, device, wanted))
        if computed:
            return computed[0]
        reason = InputError(does_not_fit(structures[0].name, int(structures[0].num_nodes)))
        found.n_in_parts = max(found.n_in_parts, int(len(structures) > 1))
    except InputError as error:
        # Without its traceback, which holds tensors.
        reason = error.again()
    if len(structures) == 1:
        return [reason]
    middle = len(structures) // 2
    halves = (structures[:middle], structures[middle:])
    return [result for half in halves for result in _each(models, half, device, wanted, found)]


def lowest_of(loaded: LoadedModel | Sequence[LoadedModel], data: Data, device: torch.device | str) -> Data:
    """Select the conformer with the lowest energy.

    Raises:
        InputError: an energy that cannot be computed.
    """
    if "conformers" not in data:
        return data
    prediction = predict(loaded, ListDataset([data]), device)
    return conformers_of(data)[prediction.conformers[0].lowest]


def _compute(
    models: Sequence[EnergyModel], structures: Sequence[Data], device: torch.device, wanted: Sequence[str]
) -> list[_Result]:
    plans = [model.plan() for model in models]
    # Members of several kinds, as with and without a far field, have a layout each.
    alike = {plan.kind: [other for other in plans if other.kind == plan.kind] for plan in plans}
    batches = {kind: collate(structures, Plan.covering(some)).to(device) for kind, some in alike.items()}
    sizes = [int(data.num_nodes) for data in structures]
    energies = np.empty((len(models), len(structures)))
    sums: dict[str, Tensor] = {}
    for k, (model, plan) in enumerate(zip(models, plans, strict=True)):
        batch, found = batches[plan.kind], dict[str, Tensor]()
        if "forces" in wanted:
            from molflt.model.derivatives import derivatives

            derived = derivatives(model, batch)
            output, found["forces"] = derived.output, derived.forces
        else:
            output = model(batch)
        energies[k] = output.energy.detach().cpu().numpy()
        found |= {"atomic_energies": output.atomic_energies, "embeddings": output.embeddings}
        for name in wanted:
            sums[name] = sums.get(name, 0) + found[name].detach()
    parts = {name: (total / len(models)).cpu().split(sizes) for name, total in sums.items()}
    ways = output.contractions or [""] * len(structures)
    by_atom = [{name: values[k].numpy() for name, values in parts.items()} for k in range(len(structures))]
    return list(zip(energies.T, ways, by_atom, strict=True))


def why_no_forces(target: str) -> str | None:
    """Explain why a model of this target has no forces; None if it has them."""
    if target in DIFFERENTIABLE:
        return None
    return (
        f"was trained on {target}, the energy of the relaxed structure, which is constant along a relaxation: its "
        "derivative is not a force. Train on energies of the given geometry "
        f"(data.target={' or '.join(DIFFERENTIABLE)}) for forces and stress"
    )


def doubt_of_forces(metadata: ModelMetadata) -> str | None:
    """Warn about forces of a model that has learnt energies at minima only; None for others."""
    trained = any(key.endswith("force_mae") for key in metadata.validation)
    if trained or (metadata.domain is not None and metadata.domain.knows_displaced):
        return None
    return (
        "this model was trained without forces, on one geometry of each molecule: its forces are unreliable, and so "
        "are relaxations and dynamics. Train on forces (molflt train --task forces) or on displaced geometries; or "
        "relax by another method and predict the energy of the result"
    )
