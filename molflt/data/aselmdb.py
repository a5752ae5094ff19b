"""ASE databases over LMDB (``.aselmdb``), as newer releases of OC20 and its successors come.

Every row is JSON, compressed by zlib, under a number from 1 on; ``nextid``, ``deleted_ids`` and ``metadata`` stand
beside them. Nothing is unpickled, and of what ASE's JSON may stand for only arrays are made.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixConstraint
from torch_geometric.data import Data

from molflt.data.ase_io import from_atoms
from molflt.data.extras import constraint_of
from molflt.data.labels import any_array, atom_vectors
from molflt.data.lmdb_dataset import LmdbDataset
from molflt.errors import InputError

_MOST_BYTES = 64 << 20
"""Of one row; those of the largest structures in use take a thousandth."""


class AseLmdbDataset(LmdbDataset):
    """Structures of an ``.aselmdb`` file.

    ``key_value_pairs`` and ``data`` become entries of ``info``, of which ``y_relaxed``, ``y_init`` and ``sid`` are
    read, and arrays with a row for each atom, such as ``pos_relaxed``. Arguments are those of ``LmdbDataset``.

    Raises:
        InputError: as ``LmdbDataset``; on access: a row that is no structure.
    """

    def _structure(self, raw: bytes, where: str) -> Data:
        atoms = row_atoms(load_row(raw, where), where)
        return from_atoms(atoms, where, self._options)

    def _stored_count(self, index: int) -> int:
        where, raw = self._raw(index)
        return len(_numbers(load_row(raw, where), where))


def load_row(raw: bytes, where: str) -> dict[str, Any]:
    """Unpack a row.

    Raises:
        InputError: it is no JSON object compressed by zlib, or far larger than a structure.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(raw, _MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise InputError(f"{where}: refused, the row unpacks to more than {_MOST_BYTES >> 20} MiB")
        row = json.loads(text)
    # RecursionError: lists in lists in lists
    except (zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: not a row of an ASE database ({error}); download the file again") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a row of an ASE database; download the file again")
    return row


def row_atoms(row: dict[str, Any], where: str) -> Atoms:
    """The structure of a row.

    Raises:
        InputError: fields are missing, or of other shapes than a structure has.
    """
    numbers = _numbers(row, where)
    n_atoms = len(numbers)
    positions = atom_vectors(_plain(row.get("positions"), where), n_atoms, "positions", where)
    cell = _shaped(row.get("cell", np.zeros((3, 3))), (3, 3), "cell", where)
    pbc = _shaped(row.get("pbc", np.zeros(3)), (3,), "pbc", where).astype(bool)
    atoms = Atoms(numbers=numbers, positions=positions, cell=cell, pbc=pbc)
    for key in ("tags", "initial_charges", "initial_magmoms", "masses", "momenta"):
        if row.get(key) is not None:
            shape = (n_atoms, 3) if key == "momenta" else (n_atoms,)
            atoms.set_array(key, _shaped(row[key], shape, key, where))
    constraints = row.get("constraints")
    atoms.set_constraint(
        [_constraint(one, atoms, where) for one in (constraints if isinstance(constraints, list) else [])]
    )
    for part in ("data", "key_value_pairs"):
        stored = row.get(part)
        for key, value in (stored if isinstance(stored, dict) else {}).items():
            value = _plain(value, where)
            if isinstance(value, list | np.ndarray):
                value = any_array(value, f"'{key}'", where)
                if value.ndim and len(value) == n_atoms and value.dtype.kind in "biuf" and key not in atoms.arrays:
                    atoms.set_array(key, value)
                    continue
            atoms.info[key] = value
    results: dict[str, Any] = {}
    for key in all_properties:
        if isinstance(value := row.get(key), int | float) and not isinstance(value, bool):
            results[key] = float(value)
        elif isinstance(value := _plain(value, where), list | np.ndarray):
            results[key] = any_array(value, f"'{key}'", where)
    if "forces" in results:
        results["forces"] = atom_vectors(results["forces"], n_atoms, "forces", where)
    if results:
        atoms.calc = SinglePointCalculator(atoms)
        atoms.calc.results.update(results)
    return atoms


def _plain(value: Any, where: str) -> Any:
    """Lists as they are; arrays as ASE's own JSON has them."""
    packed = value.get("__ndarray__") if isinstance(value, dict) else None
    if isinstance(packed, list) and len(packed) == 3 and isinstance(packed[2], list):
        try:
            return any_array(packed[2], "an array", where).reshape(packed[0])
        except (ValueError, TypeError) as error:
            raise InputError(f"{where}: an array does not have the shape it is said to have: {error}") from error
    return value


def _shaped(value: Any, shape: tuple[int, ...], key: str, where: str) -> np.ndarray:
    array = any_array(_plain(value, where), f"'{key}'", where)
    if array.shape != shape or array.dtype.kind not in "biuf":
        raise InputError(f"{where}: '{key}' has shape {array.shape}, expected {shape}")
    return array.astype(np.float64)


def _numbers(row: dict[str, Any], where: str) -> np.ndarray:
    value = any_array(_plain(row.get("numbers", []), where), "'numbers'", where)
    if value.ndim != 1 or len(value) == 0 or value.dtype.kind not in "iu":
        raise InputError(f"{where}: the row holds no atoms")
    return value


def _constraint(described: Any, atoms: Atoms, where: str) -> FixConstraint:
    given = described.get("kwargs") if isinstance(described, dict) else None
    if isinstance(given, dict):
        described = {**described, "kwargs": {key: _plain(value, where) for key, value in given.items()}}
    return constraint_of(described, atoms, where)
