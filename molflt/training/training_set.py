"""Facts from one pass over the sets: statistics of labels, elements, sizes, oddities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from ase.data import atomic_numbers, chemical_symbols

from molflt.attention.far.coulomb import COULOMB
from molflt.data.quality.domain import GEOMETRIC, Domain, outside, outside_by_sight
from molflt.data.quality.leaks import alike
from molflt.data.quality.occurrence import Reason
from molflt.data.quality.screen import Screening
from molflt.errors import InputError, listed
from molflt.model.charges import dipoles
from molflt.model.energy import ModelOutput
from molflt.model.scale_shift import ScaleShiftKind, Statistics, fit_statistics, mean_absolute_deviation

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
        """A line where the compositions do not determine the energies of some elements."""
        known = self.domain.occurrence
        if known is None or known.of_adsorbates or not (open_ones := known.span.open_elements()):
            return []
        elements = " and ".join([", ".join(open_ones[:-1]), open_ones[-1]])
        return [
            f"Note: all compositions of training are combinations of {known.span}, so the energies of {elements} are "
            "determined only together: other compositions get a warning"
        ]

    def force_weight(self, asked: Literal["auto"] | float, squared: bool = False) -> float:
        """Weight of the force loss; ``auto`` asks if forces leave relative energies open."""
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

    def interaction_loss(self, wrong: torch.Tensor, sign: torch.Tensor, squared: bool, forces: bool) -> torch.Tensor:
        """Sum over dimers of the loss of errors of their energy less those of their molecules.

        Args:
            wrong: errors of the energy, (n_structures,) eV.
            sign: (n_structures,), 1 for a dimer, -1 for each of the two molecules behind it, 0 for others.
            squared: as of :meth:`energy_loss`.
            forces: likewise.
        """
        dimer = (sign > 0).cumsum(dim=0)
        differences = wrong.new_zeros(len(wrong) + 1).index_add(0, dimer, sign * wrong)
        return self.energy_loss(differences, squared, forces).sum()

    def force_loss(self, error: torch.Tensor, squared: bool) -> torch.Tensor:
        """Loss of errors of forces, (n_atoms, 3) eV/Å → (n_atoms,), which rotation leaves as it is."""
        if squared:
            return (error / self.force_std).square().mean(dim=-1)
        # The length has no derivative at zero, which a force that symmetry forbids attains.
        return (error.square().sum(dim=-1) + 1e-16).sqrt() / self.force_std

    def charge_loss(
        self, output: ModelOutput, charges: torch.Tensor, positions: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Loss of errors of charges, of their dipole and of their sum before it was made right.

        The sum over structures of (Σ_i Δq_i² + |Σ_i Δq_i r_i|²/Å² + s²)/n, in units of the charge of two atoms that
        repel each other at 1 Å by one unit of standardised energy. The surplus s makes molecules neutral one by one,
        so that two of them do not charge each other from afar.

        Args:
            output: of a model with charges and their surplus s.
            charges: what they should be, (n_atoms,) e.
            positions: (n_atoms, 3) Å.
            starts: (n_structures + 1,) the first atom of each structure, and their number.
        """
        assert output.charges is not None
        assert output.surplus is not None
        wrong, surplus = output.charges[:, 0] - charges, output.surplus[:, 0]
        counts = starts.diff()
        structure = torch.repeat_interleave(counts, output_size=len(wrong))
        moments = dipoles(wrong, positions, structure, len(counts)).square().sum(dim=1)
        squares = torch.zeros_like(moments).index_add(0, structure, wrong.square()) + moments + surplus.square()
        return (squares / counts).sum() * COULOMB / self.statistics.std


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
    screening.each(examined=True)
    facts, places = screening.facts, screening.places
    relaxed, elements = bool(facts.relaxed[places].all()), facts.elements(places)
    given = None if references is None else _given(references, elements, screening)
    force_rms = _mean_square(facts.free_forces[places]) ** 0.5 if screening.forces else 0.0
    cells, n_atoms = facts.cell[places], facts.n_atoms[places]
    statistics = fit_statistics(
        kind,
        torch.from_numpy(screening.energies()),
        torch.from_numpy(facts.compositions(places[: len(places) if kind == "element" else 0])),
        _mean_square(facts.displacements[places]) if relaxed else 0.0,
        given,
        force_rms,
    )
    return TrainingSet(
        statistics,
        elements,
        relaxed,
        force_std=force_rms or 1.0,
        mean_n_atoms=float(n_atoms.sum()) / len(places),
        isolated=not facts.axes[places].any(),
        charged=bool(facts.charge[places].any()),
        alike=bool((facts.composition[places] == facts.composition[places[0]]).all())
        and np.allclose(cells, cells[0], atol=1e-4),
        diameter=float(facts.diameter[places].max()),
        domain=screening.domain(kind == "element"),
    )


def _mean_square(sums: np.ndarray) -> float:
    """Mean of all terms, from (n, 2) sums and numbers of terms; zero of none."""
    total, n = sums.sum(axis=0).tolist()
    return total / n if n else 0.0


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
    if len(validation.structures) <= _CLOSELY:
        looks = validation.each(lambda _, data: (str(data.name), outside(found.domain, found.elements, data)))
    else:
        validation.each()
        looks = _outside(validation, found)
    # Of totals, what an energy for each element leaves: the rest is no merit of a model.
    values = validation.energies(found.statistics.references)
    n = len(validation.places)
    strange = _strange([(record, reasons) for record, reasons in looks if reasons], n, name, decides)
    # The first process says it, and no other need look.
    leaks = _leak(training, validation, name) if validation.crew.rank == 0 else []
    return mean_absolute_deviation(values), [*strange, *validation.doubts, *leaks]


def _outside(validation: Screening, found: TrainingSet) -> list[tuple[str, list[Reason]]]:
    """Names of structures outside the domain, and the reasons that do not need the geometry."""
    sights = zip(validation.places.tolist(), validation.facts.sights(validation.places), strict=True)
    return [
        (str(validation.structures[place].name), reasons)
        for place, sight in sights
        if (reasons := outside_by_sight(found.domain, found.elements, sight))
    ]


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
    known_sketches, asked_sketches = (each.facts.sketches(each.places) for each in (training, validation))
    found = alike(known_sketches, asked_sketches, known, asked)
    if not found:
        return []
    pairs = [f"{asked[a].name} ({known[k].name})" for a, k in found[:_EXAMPLES]]
    n = len(asked)
    more = ", ..." if len(found) > _EXAMPLES else ""
    return [
        f"{name}: {len(found):,} of {n:,} structures are in the training set as well, or nearly identical to one "
        f"there: {', '.join(pairs)}{more}. Errors on them are those of training, not of prediction; take them out of "
        "one of the sets"
    ]
