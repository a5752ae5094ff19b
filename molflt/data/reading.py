"""Options of reading: tags, labels, charges and spins, conformers, and bad structures."""

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
"""Names for charge and spin in files, in any case, and their values in neutral closed shells."""
CHARGES = ("charge", "total_charge", "net_charge")
"""Names of charges among them, for models with charges."""
MOST_CHARGE = 100
"""Largest charge of a structure, in e."""
_ROUNDING = 0.05
"""Largest rounding error of the sum of a neutral structure's partial charges, e, and of vanishing magnetic
moments, Bohr magnetons."""
_NO_METALS = frozenset((1, 2, *range(5, 11), *range(14, 19), *range(32, 37), 52, 53, 54, 85, 86))
"""Elements whose molecules with an odd number of electrons are radicals or ions."""


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading structures.

    Attributes:
        allow_charged: accept ions and open shells, which models cannot represent, as if neutral and closed-shell.
        conformers: number to make of a molecule without positions; large ones get fewer.
        charges: read the total charge, for models with charges; ions are accepted then, and open shells are not.
        slabs: with ``charges``, accept one or two periodic axes: for a file, which any model may read.
        pairs: read initial and relaxed files or folders as relaxations, as is done as well if ``labels`` are energies
            of relaxed geometries.
        accept_unconverged: also read calculations that are not converged or incomplete.
        may_allow: whether the user can ask for ``allow_charged``, for the message.
        tags: convention for the tags of files read through ASE, see :func:`molflt.data.ase.from_atoms`.
        labels: name and unit of the label; None: the vocabulary's names, in eV and eV/Å.
        on_bad: ``stop`` refuses a file with a structure that cannot be used; with ``skip`` it keeps its index, and
            the error is raised on access.

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
        """True if an initial and a relaxed geometry make one structure: on demand or for the labels."""
        return self.pairs or self.of_relaxation

    def refuse_state(self, name: str, charge: float = 0.0, unpaired: int = 0) -> None:
        """Refuse an ion, by the total charge in e, or an open shell, by unpaired electrons.

        Raises:
            InputError: the structure is one, and ``allow_charged`` is False.
        """
        if not self.charges and (abs(charge) > _ROUNDING or charge != charge):
            self.refuse(name, f"has a net charge of {charge:+g}")
        if unpaired:
            self.refuse(name, f"has {unpaired} unpaired electron{'s' * (unpaired > 1)}")

    def refuse_stated(self, name: str, entries: Mapping[Any, Any], called: str) -> None:
        """Refuse a structure that its file declares to be an ion or an open shell.

        Args:
            name: of the structure.
            entries: of the file, by their names; None and empty text are ignored.
            called: form of an entry's name in the message, with a place for the name.

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
        """Return the total charge, in e, from the entries of a file, or else ``otherwise``.

        For the arguments see :meth:`refuse_stated`.

        Raises:
            InputError: the stated charge is not a whole number, or larger than :data:`MOST_CHARGE`.
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
        # In this order, because infinity has no nearest whole number.
        if not abs(found) <= MOST_CHARGE or abs(found - round(found)) > _ROUNDING:
            stated = f"{found:g}" if found == found else "no number"
            raise InputError(
                f"{name}: {what} is {stated}; a total charge is a whole number of e from -{MOST_CHARGE} to "
                f"{MOST_CHARGE}: correct it or leave it out"
            )
        return float(round(found))

    def refuse_slab(self, name: str, pbc: Sequence[bool] | np.ndarray) -> None:
        """Refuse one or two periodic axes for models with charges: the sum of 1/r diverges.

        Raises:
            InputError: the structure has these, ``charges`` is True and ``slabs`` is False.
        """
        if self.charges and not self.slabs and 0 < (n := int(np.sum(pbc))) < 3:
            raise InputError(
                f"{name}: periodic along {n} of three axes, and a model with charges, whose 1/r has no sum there; "
                "make it periodic along all three, with vacuum where it does not repeat"
            )

    def refuse_odd(self, name: str, atomic_numbers: Iterable[int], charge: float = 0.0) -> None:
        """Refuse an isolated molecule without metals that cannot be closed-shell with its charge.

        The charge is in e. On a surface, an odd number of electrons means nothing. A free atom is accepted: sets
        contain them for reference.

        Raises:
            InputError: it has an odd number of electrons, and ``allow_charged`` is False.
        """
        numbers = [int(z) for z in atomic_numbers]
        if len(numbers) > 1 and (sum(numbers) - int(charge)) % 2 and _NO_METALS.issuperset(numbers):
            self.refuse(name, "has an odd number of electrons: it is a radical or an ion, or an atom is missing")

    def refuse_moments(self, name: str, moments: np.ndarray) -> None:
        """Refuse magnetic moments of an isolated structure.

        Those of a periodic one are initial values of a self-consistent calculation, as set by ASE's builders
        (``bulk("Ni")``), not a state missing from training sets.

        Raises:
            InputError: one is not zero, and ``allow_charged`` is False.
        """
        if np.any(~(np.abs(moments) <= _ROUNDING)):
            self.refuse(name, f"has magnetic moments, {float(np.sum(moments)):+g} μB in all: an open shell")

    def refuse(self, name: str, what: str) -> None:
        """Refuse a structure for the given reason, unless ``allow_charged``.

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
    """Yield entries with content: neither None nor empty text."""
    for key, value in entries.items():
        if isinstance(key, str) and value is not None and not (isinstance(value, str) and not value.strip()):
            yield key, value


def _is_one_of(value: object, allowed: tuple[float, ...]) -> bool:
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return bool(np.isin(numbers, allowed).all())
