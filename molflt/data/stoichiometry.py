"""Compositions of which others are made, as sums and differences.

Reference energies of elements are fitted to the compositions of a training set. Where these leave directions open, as
C5H8O2 alone leaves two of three, what an atom of each element contributes is not known, and the energy of any other
composition is arbitrary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from ase.formula import Formula

from molflt.vocabulary import MAX_ATOMIC_NUMBER

Composition = dict[str, int]
"""Atoms by symbol."""
_ROUNDING = 1e-6
"""Atoms. Compositions are whole numbers: one that is no combination of others misses all of them by more."""


class Span:
    """All combinations of some compositions, which are arrays of (119,) atoms by atomic number.

    Attributes:
        members: compositions that make all others, none of which the others make.
    """

    def __init__(self, members: Iterable[Mapping[str, int]] = ()) -> None:
        self.members: list[Composition] = []
        self._axes = np.zeros((0, MAX_ATOMIC_NUMBER + 1))
        for member in members:
            counts = np.zeros(MAX_ATOMIC_NUMBER + 1)
            for symbol, n in member.items():
                counts[atomic_numbers[symbol]] = n
            self.add(counts)

    def add(self, counts: np.ndarray) -> None:
        """Take a composition in."""
        rest = self._rest(counts)
        if (length := np.linalg.norm(rest)) > _ROUNDING:
            self._axes = np.vstack([self._axes, rest / length])
            self.members.append({chemical_symbols[z]: int(counts[z]) for z in np.flatnonzero(counts)})

    def holds(self, counts: np.ndarray) -> bool:
        """Whether a composition is a combination."""
        return bool(np.linalg.norm(self._rest(counts)) <= _ROUNDING)

    def open_elements(self) -> list[str]:
        """Symbols of the elements whose own contribution the compositions do not tell."""
        each = np.eye(MAX_ATOMIC_NUMBER + 1)
        known = sorted({atomic_numbers[symbol] for member in self.members for symbol in member})
        return [chemical_symbols[z] for z in known if not self.holds(each[z])]

    def __str__(self) -> str:
        """The first of the members, as formulas."""
        return ", ".join([*map(formula, self.members[:_SHOWN]), *(["..."] if len(self.members) > _SHOWN else [])])

    def _rest(self, counts: np.ndarray) -> np.ndarray:
        """What no combination reaches; taken off twice, for rounding leaves a part the first time."""
        for _ in range(2):
            counts = counts - (self._axes @ counts) @ self._axes
        return counts


_SHOWN = 3


def formula(composition: Mapping[str, int]) -> str:
    """In the order of Hill."""
    return str(Formula.from_dict(dict(composition)).format("hill"))
