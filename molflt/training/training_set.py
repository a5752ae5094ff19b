"""What one pass over a training set tells: statistics of the labels, elements, sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from ase.data import atomic_numbers, chemical_symbols

from molflt.data.domain import Domain, DomainFit
from molflt.data.screening import Screening
from molflt.errors import InputError
from molflt.model.standardiser import StandardiserKind, Statistics, fit_statistics
from molflt.vocabulary import MAX_ATOMIC_NUMBER


@dataclass(frozen=True)
class TrainingSet:
    """What one pass over a training set tells.

    Attributes:
        statistics: of the label.
        elements: the atomic numbers that occur.
        relaxed: whether every structure has relaxed positions.
        force_std: eV/Å, root mean square component of the forces on atoms free to move; 1 without forces.
        mean_n_atoms: atoms per structure.
        isolated: whether no structure is periodic.
        diameter: Å, the largest distance between two atoms of one structure, images left aside.
        domain: what the structures look like.
    """

    statistics: Statistics
    elements: list[int]
    relaxed: bool
    force_std: float
    mean_n_atoms: float
    isolated: bool
    diameter: float
    domain: Domain


def read_training_set(
    screening: Screening, kind: StandardiserKind, references: dict[str, float] | None = None
) -> TrainingSet:
    """Make the pass over a training set.

    Args:
        screening: the structures.
        kind: how the label is standardised.
        references: given reference energies, in the unit of the label; None fits them for kind ``element``.

    Raises:
        InputError: from the screening; or an element has no given reference energy.
    """
    energies, compositions = [], []
    displacements, forces = _MeanSquare(), _MeanSquare()
    relaxed, isolated, diameter = True, True, 0.0
    fit = DomainFit(len(screening.structures), screening.forces)
    for data in screening:
        fit.add(data)
        if screening.forces:
            forces.add(data.forces[~data.fixed])
        isolated = isolated and not bool(data.pbc.any())
        diameter = max(diameter, _diameter(data.positions))
        energies.append(float(data[screening.labels.target]))
        compositions.append(torch.bincount(data.atomic_numbers, minlength=MAX_ATOMIC_NUMBER + 1))
        relaxed = relaxed and "positions_relaxed" in data
        if relaxed:
            displacements.add((data.positions_relaxed - data.positions)[~data.fixed])
    composition = torch.stack(compositions)
    elements = torch.nonzero(composition.sum(dim=0)).squeeze(1).tolist()
    given = None if references is None else _given(references, elements, screening)
    statistics = fit_statistics(
        kind,
        torch.tensor(energies, dtype=torch.float64),
        composition,
        displacements.value if relaxed else 0.0,
        given,
    )
    mean_n_atoms = float(composition.sum()) / len(composition)
    scale = forces.value**0.5 or 1.0
    return TrainingSet(statistics, elements, relaxed, scale, mean_n_atoms, isolated, diameter, fit.domain())


def _diameter(positions: torch.Tensor) -> float:
    """Å: the largest distance between two positions, of very many at most by the diagonal of their box."""
    if len(positions) > _MOST_PAIRED:
        return float((positions.amax(dim=0) - positions.amin(dim=0)).norm())
    return float(torch.pdist(positions).max()) if len(positions) > 1 else 0.0


_MOST_PAIRED = 2_000


class _MeanSquare:
    """The mean square of the components of vectors that come in portions; zero of none."""

    def __init__(self) -> None:
        self._sum, self._n = 0.0, 0

    def add(self, vectors: torch.Tensor) -> None:
        self._sum += float((vectors * vectors).sum())
        self._n += vectors.numel()

    @property
    def value(self) -> float:
        return self._sum / self._n if self._n else 0.0


def _given(references: dict[str, float], elements: list[int], screening: Screening) -> dict[int, float]:
    """Given reference energies in eV, by atomic number."""
    factor = screening.labels.energy_factor
    given = {atomic_numbers[symbol]: energy * factor for symbol, energy in references.items()}
    absent = [chemical_symbols[z] for z in elements if z not in given]
    if absent:
        raise InputError(
            f"{screening.source}: holds {', '.join(absent)}, for which data.references has no energy; add it, or "
            "leave data.references out to have all of them fitted"
        )
    return {z: given[z] for z in elements}
