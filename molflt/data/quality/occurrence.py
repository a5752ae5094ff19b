"""Sums and differences of compositions, and occurrences in a training set.

Reference energies of elements are fitted to the compositions of a training set. If these leave directions open, as
C5H8O2 alone leaves two of three, the contribution of an atom of each element is not known, and the energy of any
other composition is arbitrary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np
from ase.data import atomic_numbers, chemical_symbols
from ase.formula import Formula
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from torch_geometric.data import Data

from molflt.vocabulary import MAX_ATOMIC_NUMBER, N_TAGS, TAG_ADSORBATE

Composition = dict[str, int]
"""Atoms by symbol."""
_ROUNDING = 1e-6
"""Atoms. Compositions are whole numbers: one that is not a combination of others misses all of them by more."""


class Span:
    """Span of some compositions, which are arrays of (119,) atoms by atomic number.

    Attributes:
        members: independent compositions that combine to all others.
    """

    def __init__(self, members: Iterable[Mapping[str, int]] = ()) -> None:
        self.members: list[Composition] = []
        self._axes = np.zeros((0, MAX_ATOMIC_NUMBER + 1))
        self._held: set[int] = set()
        for member in members:
            counts = np.zeros(MAX_ATOMIC_NUMBER + 1)
            for symbol, n in member.items():
                counts[atomic_numbers[symbol]] = n
            self.add(counts)

    def add(self, counts: np.ndarray) -> None:
        """Include a composition."""
        if self.holds(counts):
            return
        rest = self._rest(counts)
        self._axes = np.vstack([self._axes, rest / np.linalg.norm(rest)])
        self.members.append(_by_symbol(counts))

    def holds(self, counts: np.ndarray) -> bool:
        """True if a composition is a combination of those included."""
        # The same few adsorbates come again and again.
        if (key := hash(counts.tobytes())) not in self._held:
            if np.linalg.norm(self._rest(counts)) > _ROUNDING:
                return False
            self._held.add(key)
        return True

    def open_elements(self) -> list[str]:
        """Symbols of the elements whose own contribution the compositions do not determine."""
        each = np.eye(MAX_ATOMIC_NUMBER + 1)
        known = sorted({atomic_numbers[symbol] for member in self.members for symbol in member})
        return [chemical_symbols[z] for z in known if not self.holds(each[z])]

    def __str__(self) -> str:
        """Write the first members as formulas."""
        return ", ".join([*map(formula, self.members[:_SHOWN]), *(["..."] if len(self.members) > _SHOWN else [])])

    def _rest(self, counts: np.ndarray) -> np.ndarray:
        """Remainder that no combination reaches; subtracted twice, because of rounding."""
        for _ in range(2):
            counts = counts - (self._axes @ counts) @ self._axes
        return counts


_SHOWN = 3


def formula(composition: Mapping[str, int]) -> str:
    """Write a formula in Hill order."""
    return str(Formula.from_dict(dict(composition)).format("hill"))


ISOLATED, ON_SURFACE = "isolated molecule", "surface with an adsorbate"
NO_ADSORBATE, NO_SURFACE = "cell without an adsorbate", "adsorbate without a surface"


class Reason(NamedTuple):
    """Violated part of the rule, and the reason in words."""

    rule: str
    text: str


def areas(cells: np.ndarray) -> np.ndarray:
    """Smallest parallelogram of two lattice vectors, of a slab its surface, (n,) Å²; infinite without two.

    ``cells`` are (n, 3, 3) Å, zero where nothing repeats.
    """
    found = np.linalg.norm(np.cross(cells, np.roll(cells, 1, axis=1)), axis=2)
    return np.asarray(np.where(found, found, np.inf).min(axis=1))


class Sight(NamedTuple):
    """Features of one structure that do not depend on its geometry.

    Attributes:
        axes: number of periodic axes.
        charge: e, zero where none is given.
        codes: of elements with a tag, ascending.
        counts: atoms of each.
        area: Å², see :func:`areas`.
    """

    axes: int
    charge: int
    codes: np.ndarray
    counts: np.ndarray
    area: float

    @classmethod
    def of(cls, data: Data) -> Sight:
        """Extract the features of a structure."""
        codes, counts = np.unique((data.atomic_numbers * N_TAGS + data.tags).numpy(), return_counts=True)
        charge = round(float(data.charge)) if "charge" in data else 0
        area = areas((data.cell * data.pbc[:, :, None]).numpy())[0]
        return cls(int(data.pbc.sum()), charge, codes, counts, float(area))

    @property
    def kind(self) -> str:
        """One of :data:`ISOLATED` and the like."""
        adsorbed = self.codes % N_TAGS == TAG_ADSORBATE
        kind = NO_SURFACE if adsorbed.all() else ON_SURFACE if adsorbed.any() else NO_ADSORBATE
        return kind if self.axes else ISOLATED

    @property
    def n_atoms(self) -> int:
        """Number of all atoms."""
        return int(self.counts.sum())

    @property
    def n_adsorbate(self) -> int:
        """Number of adsorbate atoms."""
        return int(self.counts[self.codes % N_TAGS == TAG_ADSORBATE].sum())

    @property
    def odd(self) -> bool:
        """True for a molecule, not a free atom or a crystal, with an odd number of electrons."""
        electrons = int((self.codes // N_TAGS) @ self.counts) - self.charge
        return self.kind == ISOLATED and self.n_atoms > 1 and electrons % 2 == 1

    def tags(self) -> Iterator[tuple[str, int]]:
        """Symbols of elements, each with one of its tags."""
        for code in self.codes.tolist():
            yield chemical_symbols[code // N_TAGS], code % N_TAGS

    def composition(self, of_adsorbate: bool) -> np.ndarray:
        """(119,) atoms of each atomic number: all, or those of the adsorbate."""
        counts = self.counts * (self.codes % N_TAGS == TAG_ADSORBATE) if of_adsorbate else self.counts
        return np.bincount(self.codes // N_TAGS, counts, minlength=MAX_ATOMIC_NUMBER + 1)


def _is_element(symbol: str) -> str:
    if symbol not in chemical_symbols[1:]:
        raise ValueError(f"no element: {symbol!r}")
    return symbol


_Symbol = Annotated[str, AfterValidator(_is_element)]
_Composition = dict[_Symbol, Annotated[int, Field(ge=1, lt=2**31)]]
_FEW, _OFTEN = 20, 20
"""Most kinds of adsorbates that are a list, not a sample of many, and fewest structures for each on average."""


class Occurrence(BaseModel):
    """Occurrences in a training set, whatever the geometry."""

    model_config = ConfigDict(extra="forbid")

    axes: list[int] = Field(description="numbers of axes along which structures repeat")
    tags: dict[str, list[int]] = Field(description="by element")
    tags_together: list[list[int]] = Field(description="tags of the atoms of one structure")
    charges: list[int] = Field(description="e, of whole structures")
    odd_electrons: bool = Field(description="whether a molecule has an odd number of electrons")
    of_adsorbates: bool = Field(description="whether compositions are those of adsorbates alone")
    compositions: list[_Composition] = Field(
        max_length=MAX_ATOMIC_NUMBER, description="of which all others are sums and differences"
    )
    adsorbates: list[_Composition] = Field(
        [], max_length=_FEW, description="all of them, where the training set has few; empty: many, or not recorded"
    )

    @cached_property
    def span(self) -> Span:
        """Span of the compositions."""
        return Span(self.compositions)

    def reasons(self, sight: Sight, known_kind: bool) -> Iterator[Reason]:
        """Reasons why a structure is unlike all others; tags and axes count only for a known kind."""
        if known_kind and sight.axes not in self.axes:
            seen = " or ".join(map(str, self.axes))
            yield Reason("axes", f"periodic along {sight.axes} of three axes, and along {seen} in training")
        tags = sorted({tag for _, tag in sight.tags()})
        if known_kind and (strange := [(s, t) for s, t in sight.tags() if t not in self.tags.get(s, [t])]):
            symbol, tag = strange[0]
            seen = " or ".join(map(str, self.tags[symbol]))
            yield Reason("tags", f"{symbol} with tag {tag}, and {seen} in training")
        elif known_kind and tags not in self.tags_together:
            seen = " or ".join(_both(some) for some in self.tags_together)
            yield Reason("tags", f"{_both(tags)} for the whole structure, and {seen} in training")
        if sight.charge not in self.charges:
            seen = " or ".join(map(_signed, self.charges))
            yield Reason("charge", f"a charge of {_signed(sight.charge)} e, and {seen} in training")
        if sight.odd and not self.odd_electrons:
            yield Reason("electrons", "an odd number of electrons, and even numbers only in training")
        counts = sight.composition(self.of_adsorbates)
        if not self.span.holds(counts):
            of = "of the adsorbate " if self.of_adsorbates else ""
            made = formula(_by_symbol(counts))
            text = f"the composition {of}is {made}, no combination of those in training ({self.span})"
            yield Reason("composition", f"{text}, so the energies of its atoms are undetermined")
        elif self.adsorbates and sight.kind == ON_SURFACE:
            known = sorted(map(formula, self.adsorbates))
            if (made := formula(_by_symbol(sight.composition(of_adsorbate=True)))) not in known:
                yield Reason("adsorbate", f"the adsorbate {made}, and only {', '.join(known)} in training")


def _by_symbol(counts: np.ndarray) -> Composition:
    return {chemical_symbols[z]: int(counts[z]) for z in np.flatnonzero(counts)}


def _signed(charge: int) -> str:
    return f"{charge:+d}" if charge else "0"


def _both(tags: list[int]) -> str:
    return f"tag{'s' * (len(tags) > 1)} {' and '.join(map(str, tags))}"


class OccurrenceFit:
    """Learn occurrences, structure by structure.

    ``by_element`` says whether the label is a sum over elements. If it is not, as for adsorption energies, and there
    are adsorbates, the composition of the substrate is ignored.
    """

    def __init__(self, by_element: bool) -> None:
        self._by_element = by_element
        self._axes: set[int] = set()
        self._tags: set[tuple[str, int]] = set()
        self._together: set[tuple[int, ...]] = set()
        self._charges: set[int] = set()
        self._odd = False
        self._spans = {of_adsorbate: Span() for of_adsorbate in (False, True)}
        self._adsorbates: dict[bytes, Composition] = {}
        self._adsorbed = 0

    def add(self, sight: Sight) -> None:
        """Learn from one structure."""
        self._axes.add(sight.axes)
        self._tags.update(sight.tags())
        self._together.add(tuple(sorted({tag for _, tag in sight.tags()})))
        self._charges.add(sight.charge)
        self._odd |= sight.odd
        for of_adsorbate, span in self._spans.items():
            span.add(sight.composition(of_adsorbate))
        if sight.kind == ON_SURFACE:
            self._adsorbed += 1
            if len(self._adsorbates) <= _FEW:
                counts = sight.composition(of_adsorbate=True)
                self._adsorbates.setdefault(counts.tobytes(), _by_symbol(counts))

    def occurrence(self, kinds: set[str]) -> Occurrence:
        """Occurrences seen in a set with structures of these kinds."""
        tags: dict[str, list[int]] = {}
        for symbol, tag in sorted(self._tags):
            tags.setdefault(symbol, []).append(tag)
        of_adsorbates = not self._by_element and ON_SURFACE in kinds
        adsorbates = list(self._adsorbates.values())
        is_list = len(adsorbates) <= _FEW and self._adsorbed >= _OFTEN * len(adsorbates)
        return Occurrence(
            axes=sorted(self._axes),
            tags=tags,
            tags_together=sorted(map(list, self._together)),
            charges=sorted(self._charges),
            odd_electrons=self._odd,
            of_adsorbates=of_adsorbates,
            compositions=self._spans[of_adsorbates].members,
            adsorbates=adsorbates if is_list else [],
        )
