"""Facts from one pass over the sets: statistics of labels, elements, sizes, oddities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols
from torch_geometric.data import Data

from molflt.data.quality.domain import GEOMETRIC, Domain, DomainFit, Look, outside
from molflt.data.quality.leaks import alike
from molflt.data.quality.occurrence import Reason
from molflt.data.quality.screen import Screening, label_of
from molflt.errors import InputError, listed
from molflt.model.scale_shift import ScaleShiftKind, Statistics, fit_statistics, mean_absolute_deviation
from molflt.vocabulary import MAX_ATOMIC_NUMBER

_EXAMPLES = 3
_CLOSELY = 1_000
"""Structures of a validation set up to which their geometry is compared with that of the training set."""
_USUAL = 0.05
"""Share of a validation set like the one trained on that may be outside the domain by its geometry."""


@dataclass(frozen=True)
class TrainingSet:
    """Facts from one pass over a training set.

    Attributes:
        statistics: of the label.
        elements: the atomic numbers that occur.
        relaxed: whether every structure has relaxed positions.
        force_std: eV/Å, root mean square component of the forces on atoms free to move; 1 without forces.
        mean_n_atoms: atoms per structure.
        isolated: whether no structure is periodic.
        charged: whether the model is told of a structure that it is an ion.
        alike: whether all structures have one composition and one cell, as geometries of dynamics have.
        diameter: Å, the largest distance between two atoms of one structure, images left aside.
        domain: what the structures look like.
    """

    statistics: Statistics
    elements: list[int]
    relaxed: bool
    force_std: float
    mean_n_atoms: float
    isolated: bool
    charged: bool
    alike: bool
    diameter: float
    domain: Domain

    def notes(self) -> list[str]:
        """A line where the compositions leave open what some elements contribute to an energy."""
        known = self.domain.occurrence
        if known is None or known.of_adsorbates or not (open_ones := known.span.open_elements()):
            return []
        return [
            f"Note: training has no other compositions than {known.span} and combinations of these, which leave open "
            f"what {' and '.join(open_ones)} contribute to an energy each: predictions of others get a warning"
        ]

    def force_weight(self, asked: Literal["auto"] | float, squared: bool = False) -> float:
        """Weight of the force loss; ``auto`` asks if there are energies that forces leave open."""
        if asked == "auto":
            return (100.0 if self.alike else 10.0) / (10.0 if squared else 1.0)
        return asked

    def energy_loss(self, wrong: torch.Tensor, squared: bool, forces: bool) -> torch.Tensor:
        """Loss of errors of the energy (n_structures,) eV, relative to what there is to learn."""
        if not squared:
            return wrong.abs() / self.statistics.spread
        if not forces:
            return (wrong / self.statistics.spread).square()
        # Forces times 1 Å for each atom: beside forces, a spread of energies that differ little would be too strict.
        return (wrong / self.force_std).square() / self.mean_n_atoms

    def force_loss(self, error: torch.Tensor, squared: bool) -> torch.Tensor:
        """Loss of errors of forces, (n_atoms, 3) eV/Å → (n_atoms,), which rotation leaves as it is."""
        if squared:
            return (error / self.force_std).square().mean(dim=-1)
        # The length has no derivative at zero, which a force that symmetry forbids attains.
        return (error.square().sum(dim=-1) + 1e-16).sqrt() / self.force_std


def read_training_set(
    screening: Screening, kind: ScaleShiftKind, references: dict[str, float] | None = None
) -> TrainingSet:
    """Make the pass over a training set.

    Args:
        screening: the structures.
        kind: how the label is standardised.
        references: given reference energies, in the unit of the label; None fits them for kind ``element``.

    Raises:
        InputError: from the screening; or an element has no given reference energy.
    """
    fit = DomainFit(len(screening.structures), screening.forces, kind == "element")
    found = screening.each(lambda index, data: _Facts.of(data, fit.look(index, data), screening))
    composition = torch.zeros((len(found), MAX_ATOMIC_NUMBER + 1), dtype=torch.int64)
    for row, facts in zip(composition, found, strict=True):
        row[torch.from_numpy(facts.elements)] = torch.from_numpy(facts.counts)
        fit.add(facts.look)
    relaxed = all(facts.displacements is not None for facts in found)
    displacement = _mean_square([facts.displacements for facts in found if facts.displacements is not None])
    elements = torch.nonzero(composition.sum(dim=0)).squeeze(1).tolist()
    given = None if references is None else _given(references, elements, screening)
    force_rms = _mean_square([facts.forces for facts in found]) ** 0.5
    statistics = fit_statistics(
        kind,
        torch.tensor([facts.energy for facts in found], dtype=torch.float64),
        composition,
        displacement if relaxed else 0.0,
        given,
        force_rms,
    )
    return TrainingSet(
        statistics,
        elements,
        relaxed,
        force_std=force_rms or 1.0,
        mean_n_atoms=float(composition.sum()) / len(composition),
        isolated=all(facts.isolated for facts in found),
        charged=any(facts.charged for facts in found),
        alike=bool((composition == composition[0]).all())
        and all(torch.allclose(facts.cell, found[0].cell, atol=1e-4) for facts in found),
        diameter=max(facts.diameter for facts in found),
        domain=fit.domain(),
    )


class _Facts(NamedTuple):
    """Facts of one structure; sums of squares come with the number of their terms."""

    energy: float
    elements: np.ndarray
    counts: np.ndarray
    displacements: tuple[float, int] | None
    forces: tuple[float, int]
    isolated: bool
    charged: bool
    cell: torch.Tensor
    diameter: float
    look: Look

    @classmethod
    def of(cls, data: Data, look: Look, screening: Screening) -> _Facts:
        relaxed = "positions_relaxed" in data
        return cls(
            float(data[screening.labels.target]),
            *np.unique(data.atomic_numbers.numpy(), return_counts=True),
            _squares((data.positions_relaxed - data.positions)[~data.fixed]) if relaxed else None,
            _squares(data.forces[~data.fixed]) if screening.forces else (0.0, 0),
            not bool(data.pbc.any()),
            "charge" in data and bool(data.charge.any()),
            # A box around molecules that do not repeat says nothing.
            data.cell[0] * data.pbc[0][:, None],
            _diameter(data.positions),
            look,
        )


def _diameter(positions: torch.Tensor) -> float:
    """Largest distance between two positions, Å; of very many, the diagonal of their box."""
    if len(positions) > _MOST_PAIRED:
        return float((positions.amax(dim=0) - positions.amin(dim=0)).norm())
    return float(torch.pdist(positions).max()) if len(positions) > 1 else 0.0


_MOST_PAIRED = 2_000


def _squares(vectors: torch.Tensor) -> tuple[float, int]:
    return float((vectors * vectors).sum()), vectors.numel()


def _mean_square(sums: list[tuple[float, int]]) -> float:
    """Mean of all terms; zero of none."""
    n = sum(n for _, n in sums)
    return sum(total for total, _ in sums) / n if n else 0.0


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


def compare(
    validation: Screening, training: Screening, found: TrainingSet, name: str, decides: bool
) -> tuple[float, list[str]]:
    """Compare a validation set with the training set, of which ``found`` was found.

    Returns:
        The mean absolute deviation of its labels, eV, and what looks wrong with it.
    """
    # Of totals, what an energy for each element leaves: the rest is no merit of a model.
    label = label_of(validation.labels.target, found.statistics.references)
    closely = len(validation.structures) <= _CLOSELY

    def look(_: int, data: Data) -> tuple[float, str, list[Reason]]:
        return label(data), str(data.name), outside(found.domain, found.elements, data, closely)

    looks = validation.each(look)
    values = np.array([value for value, _, _ in looks], dtype=np.float64)
    strange = _strange([(record, reasons) for _, record, reasons in looks if reasons], len(looks), name, decides)
    # The first process says it, and no other need look.
    leaks = _leak(training, validation, name) if validation.crew.rank == 0 else []
    return mean_absolute_deviation(values), [*strange, *validation.doubts, *leaks]


def _strange(found: list[tuple[str, list[Reason]]], n: int, name: str, decides: bool) -> list[str]:
    """Warn of structures of a validation set, of ``n``, outside the training set's domain."""
    by_geometry = all(reason.rule in GEOMETRIC for _, reasons in found for reason in reasons)
    if by_geometry and len(found) <= _USUAL * n:
        return []
    lines = [f"{record}: {'; '.join(reason.text for reason in reasons)}" for record, reasons in found]
    choice = f", and {name} decides which epoch is best" if decides else ""
    what = f"{name}: {len(found):,} of {n:,} structures have something that training never saw"
    return [listed(f"{what}; their errors are unreliable{choice}", lines, most=_EXAMPLES)]


def _leak(training: Screening, validation: Screening, name: str) -> list[str]:
    """Warn of structures of a validation set that are in the training set as well."""
    known, asked = training.usable, validation.usable
    found = alike(training.sketches, validation.sketches, known, asked)
    if not found:
        return []
    pairs = [f"{asked[a].name} ({known[k].name})" for a, k in found[:_EXAMPLES]]
    n = len(validation.sketches)
    more = ", ..." if len(found) > _EXAMPLES else ""
    return [
        f"{name}: {len(found):,} of {n:,} structures are in the training set as well, or nearly identical to one "
        f"there: {', '.join(pairs)}{more}. Errors on them are those of training, not of prediction; take them out of "
        "one of the sets"
    ]
