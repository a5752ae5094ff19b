"""Evaluation of a model on a labelled set: predictions, labels, and errors of groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from ase import Atoms
from torch_geometric.data import Data

from molflt.data.dataset import ConcatDataset, StructureDataset, SubsetDataset, fingerprint
from molflt.data.labels import ENERGY_UNITS, LabelSpec, checked_force_unit
from molflt.data.open import open_dataset, structures_of
from molflt.data.quality.screen import Screening
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.errors import InputError, renamed
from molflt.files import resolve_path
from molflt.model.config import Uncertainty
from molflt.model.file import LoadedModel
from molflt.prediction.members import ModelPath, calibrated, load_members
from molflt.prediction.metrics import (
    Calibration,
    EnergyMetrics,
    ForceMetrics,
    calibrate,
    energy_metrics,
    force_metrics,
    measure,
)
from molflt.prediction.model import Model
from molflt.prediction.output import Prediction
from molflt.prediction.predict import DEFAULT_MAX_ATOMS, choose_device, predict
from molflt.vocabulary import EnergyUnit, OnError, Per

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class StructureTable:
    """Labels and properties of n structures, one row each.

    Attributes:
        names: where each structure comes from.
        formulas: chemical formulas.
        elements: the atomic numbers present.
        sizes: (n,) numbers of atoms.
        adsorbates: the adsorbed species; empty if the structure does not name it.
        expected: (n,) eV, the labels.
        references: (n,) eV, sums of the model's reference energies of the elements, the part of a label that is no
            merit of the model; zero for models without them.
        forces: (n_atoms, 3) eV/Å of each structure; None unless forces are evaluated.
        fixed: (n_atoms,) bool of each structure, the atoms that may not move; None likewise.
    """

    names: list[str]
    formulas: list[str]
    elements: list[frozenset[int]]
    sizes: np.ndarray
    adsorbates: list[str]
    expected: np.ndarray
    references: np.ndarray
    forces: list[np.ndarray] | None = None
    fixed: list[np.ndarray] | None = None

    def of(self, places: Sequence[int]) -> StructureTable:
        """Select some of the rows."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays = {name: column[places] for name, column in columns.items() if isinstance(column, np.ndarray)}
        lists = {name: [column[k] for k in places] for name, column in columns.items() if isinstance(column, list)}
        changed: dict[str, Any] = arrays | lists
        return replace(self, **changed)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Labels and predictions for the n usable structures of a set.

    Attributes:
        name: of the set, such as ``val``.
        source: the file or folder it is from.
        structures: the structures, in the order of all that follows.
        table: their properties and labels.
        prediction: their energies, the uncertainty of these and how they were computed.
        skipped: for each structure of the set that was left out, the reason.
        warnings: suspicious labels, or the fact that the model was trained on them.
    """

    name: str
    source: str
    structures: StructureDataset
    table: StructureTable
    prediction: Prediction
    skipped: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.expected)

    @property
    def expected(self) -> np.ndarray:
        """(n,) eV, the labels."""
        return self.table.expected

    @property
    def predicted(self) -> np.ndarray:
        """(n,) eV."""
        return self.prediction.energies

    @property
    def uncertainty_eV(self) -> np.ndarray | None:  # noqa: N802 (one name everywhere)
        """(n,) eV, see :attr:`molflt.prediction.output.Prediction.uncertainty_eV`."""
        return self.prediction.uncertainty_eV

    std = renamed("std", "uncertainty_eV")

    @property
    def error(self) -> np.ndarray:
        """(n,) eV, predicted minus expected."""
        return self.predicted - self.expected

    @property
    def metrics(self) -> EnergyMetrics:
        """MAE, RMSE, energy within threshold and the like."""
        return energy_metrics(self.predicted, self.expected, self.table.references)

    @cached_property
    def forces(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Expected and predicted forces on free atoms, (n_free, 3) eV/Å; None unless evaluated."""
        if self.prediction.forces is None or self.table.forces is None or self.table.fixed is None:
            return None
        free = ~np.concatenate(self.table.fixed)
        return np.concatenate(self.table.forces)[free], np.concatenate(self.prediction.forces)[free]

    @property
    def force_metrics(self) -> ForceMetrics | None:
        """MAE and RMSE of force components; None unless forces were evaluated."""
        if self.forces is None:
            return None
        expected, predicted = self.forces
        return force_metrics(predicted, expected)

    @property
    def force_mae(self) -> float | None:
        """Mean absolute error of force components, eV/Å; None unless forces were evaluated."""
        return None if (found := self.force_metrics) is None else found.force_mae

    def calibration(self) -> Calibration | None:
        """Compare the ensemble's spread with its errors; None for one model.

        Raises:
            InputError: see :func:`molflt.prediction.metrics.calibrate`.
        """
        return None if self.uncertainty_eV is None else calibrate(self.predicted, self.uncertainty_eV, self.expected)

    @property
    def mae(self) -> float:
        """Mean absolute error of the energies, eV."""
        return self.metrics.energy_mae

    def __repr__(self) -> str:
        return f"Evaluation({self.name!r}, {len(self):,} structures, MAE {self.mae:.4f} eV)"

    def to_pandas(self) -> DataFrame:
        """Make a row for each structure: name, formula, n_atoms and energies.

        Expected, predicted and error are in eV, as is std, which an ensemble has as well.

        Raises:
            InputError: pandas, which molflt does not need otherwise, is not installed.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            raise InputError("to_pandas: pandas is not installed; pip install pandas") from error
        columns = {"name": self.table.names, "formula": self.table.formulas, "n_atoms": self.table.sizes}
        columns |= {"expected": self.expected, "predicted": self.predicted, "error": self.error}
        return DataFrame(
            columns if self.uncertainty_eV is None else columns | {"uncertainty_eV": self.uncertainty_eV}
        )

    def worst(self, n: int = 10) -> list[int]:
        """Return the places of the structures with the largest errors, the worst first."""
        return [int(k) for k in np.argsort(-np.abs(self.error), kind="stable")[:n]]


def evaluate(
    model: Model | LoadedModel | ModelPath | Sequence[LoadedModel | ModelPath],
    data: Any,
    *,
    name: str | None = None,
    label: str | None = None,
    unit: EnergyUnit | None = None,
    per: Per | None = None,
    force_label: str | None = None,
    force_unit: str | None = None,
    forces: bool | None = None,
    device: torch.device | str = "auto",
    max_atoms: int = DEFAULT_MAX_ATOMS,
    options: ReadOptions = DEFAULT,
) -> Evaluation:
    """Predict a labelled set and compare the predictions with the labels.

    Args:
        model: a model or an ensemble: loaded, or anything that :func:`molflt.load` loads.
        data: the path of anything that :func:`molflt.data.open.open_dataset` opens, ``bundled:NAME``, or a list of
            labelled ASE ``Atoms``.
        name: of the set; None: that of the file.
        label: name of the energy in the data; None: as in training.
        unit: of the energy in the data; None: as in training.
        per: whether an energy in the data is of a structure or per atom; None: as in training.
        force_label: name of the forces in the data; None: as in training.
        force_unit: of the forces in the data, as in Hartree/bohr; None: as in training.
        forces: evaluate forces as well; None: where they were trained and the data have them.
        device: where to compute, unless the model says so itself: auto, cpu or cuda.
        max_atoms: atoms per batch; bounds memory, changes no result.
        options: for reading; with ``on_bad="skip"`` structures that cannot be read, used or computed are left out.

    Raises:
        InputError: the data cannot be read, structures have no label, or none is left to evaluate.
    """
    members = model.members if isinstance(model, Model) else load_members(model)
    metadata = members[0].metadata
    given = {"label": label, "unit": unit, "per": per, "force_label": force_label}
    given |= {"force_unit": checked_force_unit(force_unit)}
    spec = metadata.label_spec.model_copy(update={k: v for k, v in given.items() if v is not None})
    options = replace(options, charges=metadata.config.takes_ions, labels=spec)
    path: Path | None = None
    if isinstance(data, str | os.PathLike):
        path = resolve_path(os.fspath(data))
        source, dataset = os.fspath(data), open_dataset(path, options)
        name = name or path.stem
    else:
        entries = [data] if isinstance(data, Atoms) else list(data)
        dataset = ConcatDataset([structures_of(e, f"entry {k}", options) for k, e in enumerate(entries)])
        name = name or "data"
        source = name
    if forces is None:
        forces = any(key.endswith("force_mae") for key in metadata.validation) and _has_forces(dataset)
    screening = Screening(dataset, spec, source, forces, options.on_bad)
    of_element = members[0].model.standardiser.references.cpu().numpy()
    table, structures = _read(screening, forces, of_element), screening.usable
    on_error: OnError = "skip" if options.on_bad == "skip" else "raise"
    where = model.device if isinstance(model, Model) else choose_device(str(device))
    prediction = predict(members, structures, where, max_atoms, on_error, forces)
    skipped = [s.reason for s in screening.skipped] + list(prediction.failures.values())
    kept = [k for k in range(len(structures)) if k not in prediction.failures]
    if not kept:
        raise InputError(f"{source}: no structure has both a label and a prediction; the first: {skipped[0]}")
    if prediction.failures:
        structures, table, prediction = SubsetDataset(structures, kept), table.of(kept), prediction.of(kept)
    warnings = [*screening.doubts, *_another_unit(spec, table, prediction.energies, source)]
    if path is not None and path.exists() and fingerprint(path) == metadata.training_data.fingerprint:
        warnings.append(f"{source}: the model was trained on it; its errors are those of training, not of prediction")
    return Evaluation(name, source, structures, table, prediction, skipped, warnings)


def measured(model: Model | Sequence[LoadedModel], data: str, **given: Any) -> tuple[Uncertainty, Evaluation]:
    """Measure the uncertainty of a model or an ensemble on structures not used in training.

    Uncertainties stored in the members' files are ignored. ``data`` and ``given`` are for :func:`evaluate`.

    Returns:
        The measured uncertainty, and the evaluation.

    Raises:
        InputError: as :func:`evaluate`, or too few structures.
    """
    members = model.members if isinstance(model, Model) else list(model)
    device = {"device": str(model.device)} if isinstance(model, Model) else {}
    found = evaluate(calibrated(members, None), data, forces=False, **{**device, **given})
    spread = np.zeros(len(found)) if found.uncertainty_eV is None else found.uncertainty_eV
    return measure(found.predicted, spread, found.expected, len(members), data), found


def _another_unit(spec: LabelSpec, table: StructureTable, predicted: np.ndarray, source: str) -> list[str]:
    """Warn if the predictions fit the labels in another unit, but not in the given one."""
    shares = {}
    for unit, factor in ENERGY_UNITS.items():
        found = energy_metrics(predicted, table.expected * (factor / spec.energy_factor), table.references)
        shares[unit] = found.mae_over_mad
    best = min(shares, key=lambda unit: shares[unit])
    # For few or equal labels, the deviation says nothing.
    if best == spec.unit or not shares[best] < 0.3 or not shares[spec.unit] > 3 * shares[best]:
        return []
    return [
        f"{source}: the labels, read as {spec.unit}, do not fit the predictions, and would fit in {best}. If that is "
        f"their unit, give --unit {best}"
    ]


def _has_forces(dataset: StructureDataset) -> bool:
    """True if the first readable structure has forces."""
    for k in range(len(dataset)):
        # Errors are reported when all structures are read.
        with suppress(InputError):
            return "forces" in dataset[k]
    return False


def _read(screening: Screening, forces: bool, of_element: np.ndarray) -> StructureTable:
    """Read the usable structures; ``of_element`` are reference energies by atomic number, eV."""

    def look(_: int, data: Data) -> tuple[Any, ...]:
        numbers = data.atomic_numbers.numpy()
        return (
            str(data.name),
            Atoms(numbers=numbers).get_chemical_formula(),
            frozenset(numbers.tolist()),
            len(numbers),
            str(data.adsorbate) if "adsorbate" in data else "",
            float(data[screening.labels.target]),
            float(of_element[numbers].sum()),
            *((data.forces.numpy(), data.fixed.numpy()) if forces else (None, None)),
        )

    found = list(map(list, zip(*screening.each(look), strict=True))) or [[] for _ in range(9)]
    names, formulas, elements, sizes, adsorbates, expected, references, given_forces, fixed = found
    labels, own = np.array(expected, dtype=np.float64), np.array(references, dtype=np.float64)
    of_atoms = (given_forces, fixed) if forces else (None, None)
    return StructureTable(names, formulas, elements, np.array(sizes, np.int64), adsorbates, labels, own, *of_atoms)
