"""Data that models ignore, kept with a structure so that they can be written again.

In an LMDB they are JSON text, in which an array is ``{"__ndarray__": [shape, dtype, elements]}`` as in ASE's own
JSON. It is decoded on demand, and nothing in it can name anything but the constraints listed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian, FixConstraint, FixScaled, dict2constraint
from torch_geometric.data import Data

from molflt.data.labels import any_array
from molflt.errors import InputError
from molflt.terminal_text import shown

CONSTRAINTS = frozenset(
    ("FixAtoms", "FixCartesian", "FixScaled", "FixedPlane", "FixedLine", "FixedMode", "FixCom", "FixSubsetCom")
) | {
    *(
        "FixBondLength",
        "FixBondLengths",
        "FixLinearTriatomic",
        "FixInternals",
        "FixSymmetry",
        "Hookean",
        "ExternalForce",
    ),
    *("MirrorForce", "MirrorTorque"),
    *("FixParametricRelations", "FixScaledParametricRelations", "FixCartesianParametricRelations"),
}
"""ASE constraints that numbers and text describe."""
_ARRAY, _TEXT = "__ndarray__", "U"
_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248])")


@dataclass(frozen=True)
class Extra:
    """Content of a file beyond the vocabulary and ``info``.

    Attributes:
        arrays: (n_atoms, ...) by name: momenta, masses, initial charges and moments, and a file's own.
        results: of a calculator, in ASE's names and units, except ``energy`` and ``forces``.
        constraints: name and arguments, as ASE describes them, except of constraints that ``held`` handles.
        info: entries of ``info`` other than numbers, words and short arrays.
        left: data that cannot be kept, as messages name them.
    """

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    constraints: list[dict[str, Any]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        arrays: Mapping[Any, Any],
        results: Mapping[Any, Any],
        constraints: Iterable[FixConstraint],
        info: Mapping[Any, Any],
    ) -> Extra | None:
        """Copy further data under the names of the attributes; None if there are none."""
        left: list[str] = []

        def copied(what: str, entries: Mapping[Any, Any]) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for key, value in entries.items():
                try:
                    found |= plain({key: value})
                except (TypeError, RecursionError):
                    left.append(f"{what} {shown(key)}")
            return found

        described = []
        for constraint in constraints:
            told: dict[str, Any] = getattr(constraint, "todict", dict)() or {}
            arguments = {key: value for key, value in told.get("kwargs", {}).items() if key != "atoms"}
            try:
                described.append({"name": _known(told.get("name")), "kwargs": plain(arguments)})
            except (TypeError, RecursionError):
                left.append(f"constraint {type(constraint).__name__}")
        found = copied("array", arrays), copied("result", results), described, copied("info", info)
        return cls(*found, tuple(left)) if any(found) or left else None

    def encoded(self) -> str:
        """Encode as text for a record; empty if there is nothing."""
        parts = {name: getattr(self, name) for name in ("arrays", "results", "constraints", "info")}
        return encode(found) if (found := {name: part for name, part in parts.items() if part}) else ""

    @classmethod
    def decoded(cls, text: str, where: str) -> Extra:
        """Decode the text of a record; ``where`` is for messages.

        Raises:
            InputError: the text is invalid.
        """
        parts = decode(text, where)
        kinds = {"arrays": dict, "results": dict, "constraints": list, "info": dict}
        if not all(isinstance(part, kinds.get(name, ())) for name, part in parts.items()):
            raise InputError(f"{where}: 'extra_json' holds something else than arrays, results, constraints and info")
        return cls(**parts)

    def restore(self, atoms: Atoms, where: str) -> None:
        """Put arrays, constraints and entries of ``info`` back; results are the calculator's.

        Raises:
            InputError: they do not fit these atoms.
        """
        for name, array in self.arrays.items():
            if name in ("numbers", "positions", "tags") or np.shape(array)[:1] != (len(atoms),):
                raise InputError(f"{where}: array {shown(name)} is not one of the {len(atoms)} atoms")
            atoms.arrays[name] = np.array(array)
        atoms.info.update(self.info)
        if self.constraints:
            carried = [constraint_of(described, atoms, where) for described in self.constraints]
            atoms.set_constraint([*atoms.constraints, *carried])


def extra_of(data: Data) -> Extra:
    """Return the further data of a structure, decoding them on first use.

    Raises:
        InputError: the structure's record is damaged.
    """
    carried = data.get("extra")
    if isinstance(carried, str):
        return Extra.decoded(carried, str(data.name))
    return carried if isinstance(carried, Extra) else Extra()


def held(constraint: FixConstraint) -> np.ndarray | None:
    """Indices of atoms held in all directions by a constraint; None for other constraints.

    ASE's reader of extxyz makes a ``FixCartesian`` for every atom, whether it is fixed or free.
    """
    if isinstance(constraint, FixAtoms):
        return np.asarray(constraint.index)
    if isinstance(constraint, FixCartesian | FixScaled) and (np.all(constraint.mask) or not np.any(constraint.mask)):
        return np.asarray(constraint.index)[: None if np.all(constraint.mask) else 0]
    return None


def constraint_of(described: Any, atoms: Atoms, where: str) -> FixConstraint:
    """Build a constraint from its name and arguments.

    Raises:
        InputError: it is not in ``CONSTRAINTS``, or its arguments do not fit these atoms.
    """
    try:
        name, arguments = described["name"], described["kwargs"]
        # A copy, because this constraint moves the atoms that it is given.
        arguments = {**arguments, "atoms": atoms.copy()} if _known(name) == "FixSymmetry" else arguments
        made = dict2constraint({"name": name, "kwargs": arguments})
        indices = np.asarray(made.get_indices() if hasattr(made, "get_indices") else (), dtype=np.int64)
        fits = indices.size == 0 or (indices.min() >= -len(atoms) and indices.max() < len(atoms))
    # Invalid arguments make ASE raise almost anything.
    except Exception as error:
        raise InputError(f"{where}: 'constraints' holds {shown(described)}, which ASE refuses: {error}") from error
    if not fits:
        raise InputError(f"{where}: 'constraints' hold atoms that are not there")
    return made


def plain(value: Any) -> Any:
    """Copy a value, with tuples as lists and NumPy's numbers as Python's.

    Raises:
        TypeError: it holds anything but numbers, text, arrays of these, lists, and dicts with text keys.
    """
    if isinstance(value, np.ndarray | np.generic):
        _code(value.dtype)
        return value.copy() if isinstance(value, np.ndarray) else value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) and key != _ARRAY for key in value):
        return {key: plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} is not a number, text or array")


def encode(entries: Mapping[str, Any]) -> str:
    """Encode entries that ``plain`` accepts as JSON of printable characters."""
    return json.dumps(entries, default=_packed).replace("\x7f", "\\u007f")


def decode(text: Any, where: str) -> dict[str, Any]:
    """The inverse of ``encode``; ``where`` is for messages.

    Raises:
        InputError: the text is invalid.
    """

    def unpacked(found: dict[str, Any]) -> Any:
        if _ARRAY not in found:
            return found
        shape, dtype, elements = found[_ARRAY]
        array = any_array(elements, "an array", where)
        if dtype != _TEXT and not _DTYPE.fullmatch(dtype):
            raise ValueError(f"{shown(dtype)} is not a type of numbers or text")
        if array.size and array.dtype.kind not in (_TEXT if dtype == _TEXT else "biuf"):
            raise ValueError(f"{array.dtype} where {dtype} is expected")
        return array.astype(dtype).reshape(shape)

    try:
        entries = json.loads(text, object_hook=unpacked) if _ARRAY in text else json.loads(text)
    except InputError:
        raise
    # RecursionError: deeply nested lists; OverflowError: numbers too large for their type
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(f"{where}: the record is damaged; convert the data again ({error})") from error
    if not isinstance(entries, dict):
        raise InputError(f"{where}: the record is damaged; convert the data again")
    return entries


def _packed(value: np.ndarray | np.generic) -> Any:
    if isinstance(value, np.generic):
        return plain(value)
    return {_ARRAY: [value.shape, _code(value.dtype), value.reshape(-1).tolist()]}


def _code(dtype: np.dtype[Any]) -> str:
    """NumPy's code of numbers and of text, whatever its length."""
    if dtype.kind == _TEXT:
        return _TEXT
    if not _DTYPE.fullmatch(dtype.str):
        raise TypeError(f"{dtype} is not a type of numbers or text")
    return dtype.str


def _known(name: Any) -> str:
    if not isinstance(name, str) or name not in CONSTRAINTS:
        raise TypeError("numbers and text do not describe it")
    return name
