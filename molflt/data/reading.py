"""Options of reading: tags, labels, electronic states that are taken, conformers, and what a bad structure does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from molflt.data.labels import LabelSpec
from molflt.errors import InputError, OnBad
from molflt.terminal_text import shown
from molflt.vocabulary import TagConvention

CONFORMERS = 8
KNOWN_VALUES: dict[str, tuple[float, ...]] = {
    "charge": (0,),
    "total_charge": (0,),
    "net_charge": (0,),
    # Some programs write the number of unpaired electrons, others the multiplicity.
    "spin": (0, 1),
    "total_spin": (0,),
    "multiplicity": (1,),
    "spin_multiplicity": (1,),
}
"""What files say of a structure's state, in any case of letters, and the values of neutral closed shells."""
CHARGES = ("charge", "total_charge", "net_charge")
"""Those of them that models with charges read."""
MOST_CHARGE = 100
"""Elementary charges that a structure may have."""
_ROUNDING = 0.05
"""Elementary charges by which written partial charges of a neutral structure may miss zero in sum, and Bohr magnetons
that are none."""
_NO_METALS = frozenset((1, 2, *range(5, 11), *range(14, 19), *range(32, 37), 52, 53, 54, 85, 86))
"""Elements of which a molecule with an odd number of electrons is a radical or an ion."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading structures.

    Attributes:
        allow_charged: take ions and open shells, which models know nothing of, as if they were neutral and closed.
        conformers: how many are made of a molecule that comes without positions; large ones get fewer.
        charges: read the total charge, for models with charges; ions are taken then, and open shells are not.
        slabs: with charges, take what repeats along one or two axes: for a file, which any model may read.
        pairs: read files or folders that are called initial and relaxed as a relaxation, as is done as well where
            ``labels`` are energies of relaxed geometries.
        accept_unconverged: read calculations that are not converged or were cut short as well.
        may_allow: whether whoever reads can ask for ``allow_charged``, for the message.
        tags: how to understand the tags of files read through ASE, see :func:`molflt.data.ase.from_atoms`.
        labels: which label to read and its unit; None: those of the vocabulary's names, in eV and eV/Å.
        on_bad: ``stop`` refuses a file with a structure that cannot be used; with ``skip`` it has its place, and what
            is wrong with it is raised when it is asked for.

    Raises:
        InputError: no conformers.
    """

    allow_charged: bool = False
    conformers: int = CONFORMERS
    charges: bool = False
    slabs: bool = False
    pairs: bool = False
    accept_unconverged: bool = False
    may_allow: bool = True
    tags: TagConvention = "auto"
    labels: LabelSpec | None = None
    on_bad: OnBad = "stop"

    def __post_init__(self) -> None:
        if self.conformers < 1:
            raise InputError(f"conformers={self.conformers}: give one or more")

    @property
    def of_relaxation(self) -> bool:
        """True if the labels are energies of a relaxation, which need both of its ends."""
        return self.labels is not None and self.labels.of_relaxation

    @property
    def makes_pairs(self) -> bool:
        """True if an initial and a relaxed geometry are one structure: on demand, or where labels need both."""
        return self.pairs or self.of_relaxation

    def refuse_state(self, name: str, charge: float = 0.0, unpaired: int = 0) -> None:
        """Refuse an ion, by the charge of the whole structure in e, or an open shell, by unpaired electrons.

        Raises:
            InputError: it is one, and ``allow_charged`` is False.
        """
        if not self.charges and (abs(charge) > _ROUNDING or charge != charge):
            self.refuse(name, f"has a net charge of {charge:+g}")
        if unpaired:
            self.refuse(name, f"has {unpaired} unpaired electron{'s' * (unpaired > 1)}")

    def refuse_stated(self, name: str, entries: Mapping[Any, Any], called: str) -> None:
        """Refuse what a file itself says to be an ion or an open shell.

        Args:
            name: of the structure.
            entries: of the file, by their names; None and empty text say nothing.
            called: how the message calls an entry, with a place for its name.

        Raises:
            InputError: one of :data:`KNOWN_VALUES` has another value, and ``allow_charged`` is False.
        """
        for key, value in _said(entries):
            allowed = KNOWN_VALUES.get(key.lower())
            if self.charges and key.lower() in CHARGES:
                continue
            if allowed is not None and not _is_one_of(value, allowed):
                neutral = " or ".join(map(str, allowed))
                stated = shown(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
                self.refuse(name, f"{called.format(key)} is {stated} (neutral and closed-shell: {neutral})")

    def stated_charge(self, name: str, entries: Mapping[Any, Any], called: str, otherwise: float = 0.0) -> float:
        """The total charge, in e: what the entries of a file say, see :meth:`refuse_stated`, or else ``otherwise``.

        Raises:
            InputError: what is said is no whole number, or larger than :data:`MOST_CHARGE`.
        """
        found, what = otherwise, "the charge"
        for key, value in _said(entries):
            if key.lower() in CHARGES:
                what = called.format(key)
                try:
                    found = float(np.asarray(value, dtype=np.float64).reshape(()))
                except (TypeError, ValueError, OverflowError):
                    found = float("nan")
                break
        # In this order, for infinity has no nearest whole number.
        if not abs(found) <= MOST_CHARGE or abs(found - round(found)) > _ROUNDING:
            stated = f"{found:g}" if found == found else "no number"
            raise InputError(
                f"{name}: {what} is {stated}; a total charge is a whole number of e from -{MOST_CHARGE} to "
                f"{MOST_CHARGE}: correct it or leave it out"
            )
        return float(round(found))

    def refuse_slab(self, name: str, pbc: Sequence[bool] | np.ndarray) -> None:
        """Refuse what repeats along one or two axes, for models with charges: there 1/r has no sum.

        Raises:
            InputError: it does, ``charges`` is True and ``slabs`` is False.
        """
        if self.charges and not self.slabs and 0 < (n := int(np.sum(pbc))) < 3:
            raise InputError(
                f"{name}: periodic along {n} of three axes, and a model with charges, whose 1/r has no sum there; "
                "make it periodic along all three, with vacuum where it does not repeat"
            )

    def refuse_odd(self, name: str, atomic_numbers: Iterable[int], charge: float = 0.0) -> None:
        """Refuse an isolated molecule without metals that cannot be closed-shell with its charge, in e.

        On a surface, an odd number of electrons means nothing. A free atom is taken: sets hold them for reference.

        Raises:
            InputError: it has an odd number of electrons, and ``allow_charged`` is False.
        """
        numbers = [int(z) for z in atomic_numbers]
        if len(numbers) > 1 and (sum(numbers) - int(charge)) % 2 and _NO_METALS.issuperset(numbers):
            self.refuse(name, "has an odd number of electrons: it is a radical or an ion, or an atom is missing")

    def refuse_moments(self, name: str, moments: np.ndarray) -> None:
        """Refuse magnetic moments of an isolated structure.

        Those of a periodic one are where a self-consistent calculation starts, as ASE's builders set them
        (``bulk("Ni")``), not a state that a training set would not have.

        Raises:
            InputError: one is not zero, and ``allow_charged`` is False.
        """
        if np.any(~(np.abs(moments) <= _ROUNDING)):
            self.refuse(name, f"has magnetic moments, {float(np.sum(moments)):+g} μB in all: an open shell")

    def refuse(self, name: str, what: str) -> None:
        """Refuse a structure for what is said of it, unless ``allow_charged``.

        Raises:
            InputError: it is refused.
        """
        if not self.allow_charged:
            remedy = (
                "correct it, leave it out, or take it as if it were neutral and closed-shell with --allow-charged "
                "(in Python allow_charged=True, in training data.allow_charged=true)"
            )
            known = "no charge and no spin"
            if self.charges:
                known, remedy = "no spin", remedy.replace("neutral and ", "")
            else:
                remedy += "; models trained with model.charges=1 take ions"
            raise InputError(
                f"{name}: {what}, but molflt's models know {known}; "
                + (remedy if self.may_allow else "give a neutral closed-shell molecule")
            )


DEFAULT = ReadOptions()


def _said(entries: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Entries that say something: None and empty text do not."""
    for key, value in entries.items():
        if isinstance(key, str) and value is not None and not (isinstance(value, str) and not value.strip()):
            yield key, value


def _is_one_of(value: object, allowed: tuple[float, ...]) -> bool:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return bool(np.isin(numbers, allowed).all())
