"""Labels: the quantity to learn, its stored name, and its unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, cast, get_args

import numpy as np
from ase import units
from pydantic import AfterValidator, BaseModel, ConfigDict

from molflt.errors import InputError
from molflt.terminal_text import shown
from molflt.vocabulary import TARGETS, EnergyUnit, Per

ForceUnit = Literal["eV/Ang", "meV/Ang", "kcal/mol/Ang", "kJ/mol/Ang", "Hartree/Ang", "Hartree/bohr"]
ENERGY_UNITS: dict[str, float] = {
    "eV": 1.0,
    "meV": 1e-3,
    "kcal/mol": units.kcal / units.mol,
    "kJ/mol": units.kJ / units.mol,
    "Hartree": units.Hartree,
}
"""eV in each unit (CODATA 2014, as in ASE)."""
FORCE_UNITS: dict[str, float] = {f"{unit}/Ang": factor for unit, factor in ENERGY_UNITS.items()} | {
    "Hartree/bohr": units.Hartree / units.Bohr
}
"""eV/Å in each unit."""
_SHOWN = 12
_SAME = 1e-6
"""Relative or absolute difference up to which two stored values count as one, rounded."""
_MOST_BYTES = 1 << 28


def _known_target(value: str) -> str:
    if value not in TARGETS:
        targets = ", ".join(TARGETS)
        raise ValueError(f"unknown target '{value}'; choose one of {targets}. Its name in the data is data.label")
    return value


Target = Annotated[str, AfterValidator(_known_target)]
"""Field of the vocabulary that a model can learn."""


class LabelSpec(BaseModel):
    """Name and unit of the label to learn.

    Attributes:
        target: the field of the vocabulary for it, in eV per structure.
        label: name of an entry of ``info``, a result of a calculator, a key of a database, a column of a CSV, a
            property of an SDF or a field of an LMDB record; None: the target's own name.
        unit: unit of the stored energy.
        per: whether the stored energy is that of a structure or per atom.
        force_label: name of the stored forces; None: those of the calculator, or ``forces``.
        force_unit: unit of the stored forces; None: the energy's unit per Å.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: Target = "energy"
    label: str | None = None
    unit: EnergyUnit = "eV"
    per: Per = "structure"
    force_label: str | None = None
    force_unit: ForceUnit | None = None

    @property
    def name(self) -> str:
        """Name of the label in the data."""
        return self.label or self.target

    @property
    def of_relaxation(self) -> bool:
        """True if the target is an energy of the relaxed geometry, so that pairs are read."""
        return self.target == "y_relaxed"

    @property
    def energy_factor(self) -> float:
        """Factor from the stored energy to eV."""
        return ENERGY_UNITS[self.unit]

    @property
    def force_factor(self) -> float:
        """Factor from the stored forces to eV/Å."""
        return FORCE_UNITS[self.force_unit or f"{self.unit}/Ang"]

    def apply(
        self, fields: dict[str, np.ndarray], find: Callable[[str], Any], names: Iterable[str], where: str
    ) -> dict[str, str]:
        """Add the label, and forces if there are any, to a structure's fields.

        Args:
            fields: the structure's fields in the vocabulary, with labels under its names as stored; changed in place.
            find: finds a stored value by its name; None if there is none.
            names: all stored names, for the message about a missing label.
            where: file and record, for messages.

        Returns:
            Texts to keep with the structure: the stored names if the label is missing or forces may have another
            name.

        Raises:
            InputError: a label that is not one number, forces that are not (n_atoms, 3).
        """
        n_atoms = len(fields["atomic_numbers"])
        if self.label is not None:
            fields.pop(self.target, None)
            if (value := find(self.label)) is not None:
                fields[self.target] = one_number(value, self.label, where)
        if self.target in fields:
            per = n_atoms if self.per == "atom" else 1
            fields[self.target] = np.asarray(fields[self.target], dtype=np.float64) * (self.energy_factor * per)
        if self.force_label is not None:
            fields.pop("forces", None)
            if (value := find(self.force_label)) is not None:
                fields["forces"] = atom_vectors(value, n_atoms, self.force_label, where)
        if "forces" in fields:
            fields["forces"] = np.asarray(fields["forces"], dtype=np.float64) * self.force_factor
        known = sorted(set(names))
        found = {}
        if self.target not in fields:
            energies = [name for name in known if name not in _NO_ENERGIES and _is_number(find, name)]
            # Next to an energy, a free energy is that with the entropy of smeared electrons.
            if "energy" not in energies and "free_energy" in known and _is_number(find, "free_energy"):
                energies.append("free_energy")
            found[CANDIDATES] = "; ".join(energies[:_SHOWN])
        if "forces" not in fields and (vectors := [name for name in known if _are_vectors(find, name, n_atoms)]):
            vectors.sort(key=lambda name: "force" not in name.lower())
            found[VECTORS] = "; ".join(vectors[:_SHOWN])
        if found:
            found[STORED] = ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
        return found

    def remedy(self, candidates: Sequence[str]) -> str:
        """Options of training that name these numbers if the label is missing; empty without any."""
        given = []
        for name in candidates:
            if name in TARGETS and name != self.target:
                target = "--task energy" if name == "energy" else f"data.target={name}"
                given.append(target + (" data.label=null" if self.label else ""))
            elif self.target in ("energy", name) or "ads" in name.lower():
                given.append(f"--energy-key {name}")
            else:
                given.append(f"--task energy --energy-key {name}")
        evaluate = f" (evaluate: --label {' or '.join(candidates)})" if candidates else ""
        return " or ".join(given) + evaluate


STORED, CANDIDATES, VECTORS = "stored_names", "stored_numbers", "stored_vectors"
"""Texts of a structure without its label or forces: stored names, those of single numbers, and those of vectors
for each atom (the last two separated by semicolons)."""
_NO_ENERGIES = (
    *("sid", "fid", "id", "natoms", "nads", "index", "slice", "charge", "spin", "free_energy", "stress"),
    *("atomic_numbers", "numbers", "tags", "fixed"),
)
_NO_FORCES = (
    *("pos", "positions", "pos_relaxed", "positions_relaxed", "momenta", "velocities", "magmoms", "initial_magmoms"),
    *("cell", "stress", "virial", "virials"),
)


def _is_number(find: Callable[[str], Any], name: str) -> bool:
    """True if a stored value can be an energy: one number, or a text that is one."""
    with suppress(InputError):
        value = find(name)
        return not isinstance(value, bool | np.bool_) and bool(np.isfinite(one_number(value, name, "")).all())
    return False


def _are_vectors(find: Callable[[str], Any], name: str, n_atoms: int) -> bool:
    """True if a stored value can be forces: three numbers for each atom."""
    with suppress(InputError):
        return name not in _NO_FORCES and atom_vectors(find(name), n_atoms, name, "").size > 0
    return False


def agreed(values: Mapping[str, Any], label: str, where: str) -> Any:
    """Return the value stored under one name in several places, of which the first counts.

    Args:
        values: by place; None: there is none. Values of another shape, such as a number beside one for each atom,
            are ignored.
        label: the name.
        where: file and record, for messages.

    Raises:
        InputError: two differ by more than 10⁻⁶, relative and absolute.
    """
    (first, value), *others = [item for item in values.items() if item[1] is not None] or [("", None)]
    for place, other in others:
        if _differ(value, other, label, where):
            one, two = (shown(v.tolist() if isinstance(v, np.ndarray | np.generic) else v) for v in (value, other))
            raise InputError(
                f"{where}: two values are stored under '{label}', {one} {first} and {two} {place}; remove one, or "
                "rename the one that is meant and give its new name"
            )
    return value


def _differ(one: Any, other: Any, label: str, where: str) -> bool:
    try:
        a, b = (any_array(value, f"'{label}'", where).astype(np.float64) for value in (one, other))
    # Text is compared as such.
    except (TypeError, ValueError, OverflowError):
        return shown(one) != shown(other)
    return a.size == b.size and not np.allclose(a.ravel(), b.ravel(), rtol=_SAME, atol=_SAME, equal_nan=True)


def one_number(value: Any, label: str, where: str) -> np.ndarray:
    """Convert a value to (1,) float64.

    Raises:
        InputError: it is not one number.
    """
    try:
        number = any_array(float(value) if isinstance(value, str) else value, label, where)
    except (ValueError, OverflowError):
        number = np.empty(0)
    if number.size != 1 or number.dtype.kind not in "iuf":
        raise InputError(f"{where}: '{label}' is {shown(value)}, expected one number")
    return number.reshape(1).astype(np.float64)


def any_array(value: Any, what: str, where: str) -> np.ndarray:
    """Convert any value to an array.

    Raises:
        InputError: lists of different lengths, numbers too large for any type, or lists that would make more than
            256 MiB.
    """
    if isinstance(value, list | tuple):
        _refuse_expansion(value, what, where)
    try:
        return np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{where}: {what} is not an array of numbers: {error}") from error


def _refuse_expansion(value: Any, what: str, where: str) -> None:
    """Estimate an array of nested lists, in which every text becomes as long as the longest."""
    n_elements, width, left = 0, 8, [value]
    while left:
        one = left.pop()
        if isinstance(one, list | tuple):
            left.extend(one)
            n_elements += 1
        elif isinstance(one, np.ndarray):
            n_elements, width = n_elements + one.size, max(width, one.itemsize)
        else:
            n_elements += 1
            if isinstance(one, str | bytes):
                width = max(width, 4 * len(one))
        if n_elements * width > _MOST_BYTES or len(left) > _MOST_BYTES // 8:
            raise InputError(f"{where}: {what} would make an array of more than {_MOST_BYTES >> 20} MiB")


def atom_vectors(value: Any, n_atoms: int, label: str, where: str) -> np.ndarray:
    """Convert a value to (n_atoms, 3) float64.

    Raises:
        InputError: it has another shape or type.
    """
    vectors = any_array(value, f"'{label}'", where)
    if vectors.shape != (n_atoms, 3) or vectors.dtype.kind not in "iuf":
        raise InputError(f"{where}: '{label}' has shape {vectors.shape}, expected ({n_atoms}, 3)")
    return vectors.astype(np.float64)


def parse_force_unit(text: Any) -> Any:
    """Accept Å and A for Ang, as people write them."""
    if isinstance(text, str):
        for end in ("/Å", "/A", "/angstrom", "/Angstrom"):
            if text.endswith(end):
                return text.removesuffix(end) + "/Ang"
    return text


def checked_force_unit(text: str | None) -> ForceUnit | None:
    """Check the unit of forces named by a command or a caller.

    Raises:
        InputError: the unit is unknown.
    """
    unit = parse_force_unit(text)
    if unit is not None and unit not in FORCE_UNITS:
        raise InputError(f"unit of forces {unit!r}: choose one of {', '.join(FORCE_UNITS)}")
    return cast("ForceUnit | None", unit)


assert set(ENERGY_UNITS) == set(get_args(EnergyUnit))
assert set(FORCE_UNITS) == set(get_args(ForceUnit))
