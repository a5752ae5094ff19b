"""What a model says of many structures: energies in their order, and whatever else was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from molflt.errors import listed

BY_ATOM = ("forces", "atomic_energies", "embeddings")
"""Fields of a prediction that hold an array for each structure."""


class Conformers(NamedTuple):
    """What was computed of a molecule with several conformers.

    Attributes:
        n: how many there are.
        lowest: place of the one with the lowest energy, which is the molecule's.
        spread: eV, the highest energy minus the lowest.
    """

    n: int
    lowest: int
    spread: float


@dataclass
class Prediction:
    """Energies in the order of the structures.

    Attributes:
        energies: (n_structures,) eV, float64; the mean over the members of an ensemble; NaN where it failed.
        names: where each structure came from.
        contractions: how the far field was computed ("waves") and for how many structures.
        std: (n_structures,) eV: what 68 % of the errors are below, where the model's file knows; else the standard
            deviation over the members (n − 1 in the denominator), or None for one model. It is measured on structures
            inside the domain, and says nothing of others, which have an entry in ``warnings``.
        failures: what is wrong with the structures that were skipped, by index.
        forces: (n_atoms, 3) eV/Å of each structure; None when they were not asked for.
        info: what each structure's file says of it, such as the columns of a table; also of those that failed.
        atomic_energies: (n_atoms,) eV of each structure: the terms that, with a mean per structure where the model
            has one, add up to its energy; None when they were not asked for.
        embeddings: (n_atoms, dim) of each structure, what the encoder makes of its atoms; None likewise.
        ids: the structures' ``sid`` in OC20, or their names; empty for those that cannot be read.
        elements: atomic numbers seen.
        n_in_parts: batches that did not fit into memory and were computed in parts.
        conformers: of the molecules that have several, by index.
        warnings: why the energy of a structure is not to be trusted, by index.
        about: formula and, where known, name of the molecules that were given as graphs or names, by index.
    """

    energies: np.ndarray
    names: list[str]
    contractions: Counter[str]
    std: np.ndarray | None = None
    failures: dict[int, str] = field(default_factory=dict)
    forces: list[np.ndarray] | None = None
    info: list[Mapping[str, Any]] = field(default_factory=list)
    atomic_energies: list[np.ndarray] | None = None
    embeddings: list[np.ndarray] | None = None
    ids: list[str] = field(default_factory=list)
    elements: set[int] = field(default_factory=set)
    n_in_parts: int = 0
    conformers: dict[int, Conformers] = field(default_factory=dict)
    warnings: dict[int, str] = field(default_factory=dict)
    about: dict[int, str] = field(default_factory=dict)

    @property
    def far_field(self) -> str:
        """``contractions`` in words: "waves (300 structures)"."""
        return "; ".join(f"{how} ({n:,} structure{'s' * (n != 1)})" for how, n in self.contractions.most_common())

    @property
    def by_atom(self) -> dict[str, list[np.ndarray]]:
        """What was asked for of every atom, by name."""
        return {name: values for name in BY_ATOM if (values := getattr(self, name)) is not None}

    def of(self, places: Sequence[int]) -> Prediction:
        """The predictions of some of the structures, none of which failed."""
        return replace(
            self,
            energies=self.energies[places],
            names=[self.names[k] for k in places],
            std=None if self.std is None else self.std[places],
            failures={},
            info=[self.info[k] for k in places],
            ids=[self.ids[k] for k in places],
            conformers={i: self.conformers[k] for i, k in enumerate(places) if k in self.conformers},
            warnings={i: self.warnings[k] for i, k in enumerate(places) if k in self.warnings},
            about={i: self.about[k] for i, k in enumerate(places) if k in self.about},
            **{name: [values[k] for k in places] for name, values in self.by_atom.items()},  # type: ignore[arg-type]
        )

    def of_conformers(self) -> str | None:
        """How many conformers the energies are the lowest of, and their spread, in a line; None without any."""
        if not self.conformers:
            return None
        widest = max(self.conformers, key=lambda i: self.conformers[i].spread)
        numbers = [conformers.n for conformers in self.conformers.values()]
        n = len(numbers)
        return (
            f"lowest of {min(numbers)}{f' to {max(numbers)}' if max(numbers) > min(numbers) else ''} distinct "
            f"conformers for {n:,} molecule{'s' * (n != 1)}; energies spread by up to "
            f"{self.conformers[widest].spread:.3f} eV ({self.names[widest]})"
        )

    def of_warnings(self) -> str | None:
        """How many energies are not to be trusted, and why, in some lines; None: all may be."""
        if not self.warnings:
            return None
        lines = [f"{self.names[i]}: {reason}" for i, reason in sorted(self.warnings.items())]
        n, of = len(lines), f"of {len(self.names):,} structure{'s' * (len(self.names) != 1)}"
        verb = "are" if n != 1 else "is"
        uncovered = "" if self.std is None else ", and ± does not cover it"
        return listed(f"{n:,} {of} {verb} doubtful; the energies may mean little{uncovered}", lines, most=5)

    def doubts(self) -> list[str]:
        """What is to be said of the prediction: of energies not to be trusted, and of memory that did not suffice."""
        found = [] if (doubtful := self.of_warnings()) is None else [doubtful]
        if n := self.n_in_parts:
            batches = f"{n} whole batch{'es' * (n != 1)}"
            found.append(f"out of memory with {batches}: computed in parts; a smaller max_atoms is faster")
        return found


def joined(parts: Iterable[Prediction]) -> Prediction:
    """Predictions of several sets, one after the other, as one."""
    parts = list(parts)
    whole = Prediction(np.concatenate([np.empty(0), *(part.energies for part in parts)]), [], Counter())
    for part in parts:
        before = len(whole.names)
        whole.failures.update({before + i: reason for i, reason in part.failures.items()})
        whole.conformers.update({before + i: found for i, found in part.conformers.items()})
        whole.warnings.update({before + i: reason for i, reason in part.warnings.items()})
        whole.about.update({before + i: about for i, about in part.about.items()})
        whole.names += part.names
        whole.ids += part.ids
        whole.info += part.info
        whole.contractions += part.contractions
        whole.elements |= part.elements
        whole.n_in_parts += part.n_in_parts
    if parts and all(part.std is not None for part in parts):
        whole.std = np.concatenate([part.std for part in parts if part.std is not None])
    for name in BY_ATOM:
        if parts and all(name in part.by_atom for part in parts):
            setattr(whole, name, [values for part in parts for values in part.by_atom[name]])
    return whole
