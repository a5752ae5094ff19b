"""Labelled structures with a model's predictions for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from ase import Atoms

from molflt.data.progress import track
from molflt.data.sources import StructureDataset, open_dataset
from molflt.errors import InputError, OnBad
from molflt.model.model_file import LoadedModel
from molflt.prediction.predictor import DEFAULT_MAX_ATOMS, predict
from molflt.training.config_file import resolve_path
from molflt.training.screening import Screening, labels


@dataclass(frozen=True)
class EvaluatedSet:
    """One labelled set and what a model says of it.

    Attributes:
        name: of the set, such as ``val``.
        path: where it is from.
        structures: the set.
        expected: (n_structures,) eV, labels.
        predicted: (n_structures,) eV, in the same order; NaN where a prediction failed.
        std: (n_structures,) eV, standard deviation over an ensemble; None for one model.
    """

    name: str
    path: str
    structures: StructureDataset
    expected: np.ndarray
    predicted: np.ndarray
    std: np.ndarray | None = None


@dataclass(frozen=True)
class DescribedSet:
    """What a report needs of every structure with a prediction, read in one pass.

    Attributes:
        name, path: of the set.
        structures: the whole set.
        index: (n,) places of the described structures in the set.
        expected, predicted: (n,) eV.
        std: (n,) eV; None for one model.
        names, formulas: n texts.
        elements: atomic numbers in each structure.
        sizes: (n,) atoms.
        adsorbates: what is adsorbed on each; None unless every structure says so.
        n_failed: structures without a prediction.
    """

    name: str
    path: str
    structures: StructureDataset
    index: np.ndarray
    expected: np.ndarray
    predicted: np.ndarray
    std: np.ndarray | None
    names: list[str]
    formulas: list[str]
    elements: list[frozenset[int]]
    sizes: np.ndarray
    adsorbates: list[str] | None
    n_failed: int

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def error(self) -> np.ndarray:
        """(n,) eV, predicted minus expected."""
        return self.predicted - self.expected


def describe(evaluated: EvaluatedSet) -> DescribedSet:
    """Read the structures of a set once.

    Raises:
        InputError: a set of which no structure has a label and a prediction.
    """
    finite = np.isfinite(evaluated.predicted) & np.isfinite(evaluated.expected)
    index = np.flatnonzero(finite)
    if not len(index):
        raise InputError(f"{evaluated.path}: no structure with a label and a prediction; there is nothing to report")
    names, formulas, elements, sizes, adsorbates = [], [], [], [], []
    for i in track(index.tolist(), "describing", len(index)):
        data = evaluated.structures[i]
        numbers = data.atomic_numbers.numpy()
        names.append(str(data.name))
        formulas.append(Atoms(numbers=numbers).get_chemical_formula(empirical=False))
        elements.append(frozenset(numbers.tolist()))
        sizes.append(len(numbers))
        adsorbates.append(str(data.adsorbate) if "adsorbate" in data else "")
    return DescribedSet(
        name=evaluated.name,
        path=evaluated.path,
        structures=evaluated.structures,
        index=index,
        expected=np.asarray(evaluated.expected, dtype=np.float64)[index],
        predicted=np.asarray(evaluated.predicted, dtype=np.float64)[index],
        std=None if evaluated.std is None else np.asarray(evaluated.std, dtype=np.float64)[index],
        names=names,
        formulas=formulas,
        elements=elements,
        sizes=np.array(sizes),
        adsorbates=adsorbates if all(adsorbates) else None,
        n_failed=int((~finite).sum()),
    )


def evaluate(
    members: Sequence[LoadedModel],
    data: str,
    device: torch.device | str = "cpu",
    max_atoms: int = DEFAULT_MAX_ATOMS,
    on_bad: OnBad = "stop",
) -> EvaluatedSet:
    """Predict a labelled set.

    Args:
        members: one model, or those of an ensemble.
        data: anything :func:`molflt.data.sources.open_dataset` opens, or ``bundled:NAME``.
        device: where to compute.
        max_atoms: atoms per batch; bounds memory, changes no result.
        on_bad: ``skip`` leaves out structures that cannot be used.

    Raises:
        InputError: the data cannot be read, or structures have no label.
    """
    spec = members[0].metadata.label_spec
    path = resolve_path(data)
    screening = Screening(open_dataset(path, labels=spec, on_bad=on_bad), spec, data, on_bad=on_bad)
    expected, structures = labels(screening), screening.usable
    prediction, _ = predict(members, structures, device, max_atoms)
    return EvaluatedSet(path.stem, data, structures, expected, prediction.energies, prediction.std)
