"""Extended xyz output; data that the format cannot hold are left out and named.

ASE writes any input: a text with a backslash comes back without it, one with a line break, an array of text with
spaces or an entry ``dipole=high`` make an unreadable file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import IO, Any

import ase.io
import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian
from ase.io.extxyz import SPECIAL_3_3_KEYS, per_atom_properties, per_config_properties

from molflt.terminal_text import printable

_COLUMN = re.compile(r"[^\s:=,'\"\\{}\[\]]+")
_WORDS = re.compile(r"\S+( \S+)*")
_TRUTH = re.compile(r"[tT]rue|TRUE|T|[fF]alse|FALSE|F")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_OWN_KEYS = ("Lattice", "Properties", "pbc")
_OWN_COLUMNS = ("symbols", "species", "numbers", "Z", "pos", "move_mask", "charge")
_MOST_COLUMNS = 900
"""Most columns of own arrays; the reader refuses files with 1,000."""


def write_extxyz(handle: IO[str], atoms: Atoms) -> list[str]:
    """Append a structure to a file in ASE's extended xyz, with 8 decimals for each atom.

    Args:
        handle: text, open for writing.
        atoms: the structure; modified in place.

    Returns:
        Descriptions of the data that the format cannot hold, for messages.
    """
    left = [*_without_constraints(atoms), *_without_results(atoms)]
    left += [*_without_arrays(atoms), *_without_info(atoms)]
    ase.io.write(handle, atoms, format="extxyz")
    return left


def _without_constraints(atoms: Atoms) -> Iterator[str]:
    known = [constraint for constraint in atoms.constraints if isinstance(constraint, FixAtoms | FixCartesian)]
    for constraint in atoms.constraints:
        if constraint not in known:
            yield f"constraint {type(constraint).__name__}"
    atoms.set_constraint(known)


def _without_results(atoms: Atoms) -> Iterator[str]:
    results = getattr(atoms.calc, "results", {})
    for name, value in list(results.items()):
        value = np.asarray(value)
        of_atoms = name in per_atom_properties and value.ndim in (1, 2) and len(value) == len(atoms)
        whole = name in per_config_properties and (name != "stress" or value.shape in ((6,), (3, 3)))
        if value.dtype.kind not in "iuf" or not (of_atoms or whole):
            del results[name]
            yield f"result '{name}'"


def _without_arrays(atoms: Atoms) -> Iterator[str]:
    n_columns, results = 0, getattr(atoms.calc, "results", {})
    for name, array in list(atoms.arrays.items()):
        if name in ("numbers", "positions"):
            continue
        width = int(np.prod(array.shape[1:]))
        fits = array.ndim <= 2 and 0 < width <= _MOST_COLUMNS - n_columns and array.dtype.kind in "biufU"
        if array.dtype.kind == "U":
            fits = fits and all(_WORDS.fullmatch(text) and " " not in text for text in array.reshape(-1).tolist())
        if not fits or name in results or name in _OWN_COLUMNS or not _COLUMN.fullmatch(name):
            del atoms.arrays[name]
            yield f"array '{name}'"
            continue
        n_columns += width
        if array.dtype.kind == "u":
            atoms.arrays[name] = array.astype(np.int64)


def _without_info(atoms: Atoms) -> Iterator[str]:
    results = getattr(atoms.calc, "results", {})
    for key, value in list(atoms.info.items()):
        del atoms.info[key]
        # Both mean nothing, and ASE would read True and an empty array.
        if value is None or (isinstance(value, str) and not value):
            continue
        if key not in results and _has_place(key, value):
            atoms.info[key.replace("\\", "\\\\")] = _written(value, key in SPECIAL_3_3_KEYS)
        else:
            yield f"info '{printable(key)}'"


def _has_place(key: str, value: Any) -> bool:
    numbers = isinstance(value, int | float | np.ndarray) and np.asarray(value).dtype.kind in "iuf"
    if key in SPECIAL_3_3_KEYS and not (numbers and np.shape(value) == (3, 3)):
        return False
    if key in per_config_properties and not numbers:
        return False
    if isinstance(value, list):
        # ASE converts a list to an array, even if that is impossible.
        try:
            np.array(json.loads(json.dumps(value, default=_plain)))
        except ValueError:
            return False
    return key not in _OWN_KEYS and printable(key) == key and bool(_WORDS.fullmatch(key)) and "=" not in key


def _written(value: Any, special: bool) -> Any:
    """Encode an entry so that ASE reads the same: unchanged if that works, else as JSON."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "bif" and (value.shape == (3, 3) if special else value.ndim == 1 and value.size > 1):
            return value
    elif isinstance(value, bool | int | float | np.generic):
        return value
    elif isinstance(value, str) and _WORDS.fullmatch(value) and printable(value) == value and _means_itself(value):
        return value.replace("\\", "\\\\")
    # ASE escapes quotation marks, but not the escape character.
    return "_JSON " + json.dumps(value, default=_plain).replace("\\", "\\\\")


def _plain(value: np.ndarray | np.generic) -> Any:
    return value.tolist()


def _means_itself(text: str) -> bool:
    """True if ASE reads a text as text or as its one number, not as truth values or a vector."""
    parts = re.findall(r"[^\s,]+", text)
    if _NUMBER.fullmatch(text):
        return True
    if all(map(_TRUTH.fullmatch, parts)) or text.startswith("_JSON ") or text.endswith("="):
        return False
    try:
        np.array(parts, dtype=float)
    except ValueError:
        return True
    return False
