"""Trajectories and databases of ASE in SQLite, JSON and LMDB, with a check of their lengths."""

from __future__ import annotations

import io
import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import ase.db
import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixConstraint
from ase.db.core import Database
from ase.db.row import AtomsRow
from ase.io.trajectory import TrajectoryReader
from ase.io.ulm import N1, read_header
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.extras import constraint_of
from molflt.data.labels import any_array, atom_vectors
from molflt.data.oc20.lmdb import LmdbDataset
from molflt.data.text import Notes
from molflt.errors import InputError


def trajectory_frames(raw: IO[bytes], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield every frame of an ASE trajectory.

    Raises:
        InputError: ASE reads more or fewer than the file states.
    """
    _, _, n, place_of_table, offsets = read_header(raw)
    if n:
        table = 1
        while table < n:
            table *= N1
        raw.seek(int(offsets[-1]))
        length = int(np.frombuffer(raw.read(8), np.int64)[0])
        # Frames are counted when they are complete.
        if raw.seek(0, io.SEEK_END) > max(int(offsets[-1]) + 8 + length, int(place_of_table) + 8 * table):
            notes.add("ends in the middle of a frame, which is left out")
    raw.seek(0)
    reader = TrajectoryReader(raw)
    n_frames = 0
    for atoms in reader:
        n_frames += 1
        yield atoms
    if n_frames != n:
        raise InputError(f"{where}: holds {n} frames, and ASE reads {n_frames}")


def json_rows(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield every row of an ASE database in JSON, with its keys and values in ``info``.

    Raises:
        InputError: duplicate entries, or rows missing from its list of ids.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in found if names.count(name) > 1)
            raise InputError(f"{where}: two entries of one record are named '{twice:.40}'; leave one")
        return found

    text = stream.read()
    content = json.loads(text, object_pairs_hook=unique)
    n = sum(key.isdigit() for key in content) if isinstance(content, dict) else 0
    with ase.db.connect(io.StringIO(text), type="json", serial=True) as database:
        yield from map(_with_info, _counted(database, n, where))


def database_rows(raw: IO[bytes], where: str, notes: Notes) -> Iterator[Atoms]:
    """Yield every row of an ASE database, with its keys and values in ``info``.

    For databases of Catalysis-Hub see :func:`_adsorptions`.

    Raises:
        InputError: a file of another kind, or ASE reads more or fewer rows than it has.
    """
    # SQLite opens files by their names
    file = Path(where)
    # ASE would create its tables in a database that is not its own
    with closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type='table' AND name='systems'"
        if connection.execute(query).fetchone() is None:
            raise InputError(f"{file}: not an ASE database")
        (n,) = connection.execute("SELECT COUNT(*) FROM systems").fetchone()
        reactions = _adsorptions(connection)
    n_without = 0
    with ase.db.connect(str(file.absolute()), type="db", serial=True, use_lock_file=False) as database:
        for row in _counted(database, n, str(file)):
            if not reactions:
                yield _with_info(row)
                continue
            adsorptions = reactions.get(row.get("unique_id"), [])
            n_without += not adsorptions
            for adsorption in adsorptions:
                atoms = _with_info(row)
                atoms.info.update(adsorption)
                yield atoms
    if n_without:
        notes.add(f"{n_without} of {n} rows are of no adsorbed species with a reaction energy, and left out")


def _counted(database: Database, n: int, where: str) -> Iterator[AtomsRow]:
    n_rows = 0
    for row in database.select():
        n_rows += 1
        yield row
    if n_rows != n:
        raise InputError(f"{where}: holds {n} rows, and ASE reads {n_rows}: its list of ids is not that of its rows")


def _with_info(row: AtomsRow) -> Atoms:
    atoms: Atoms = row.toatoms()
    atoms.info.update({**row.data, **row.key_value_pairs})
    return atoms


_CATHUB = """SELECT system.ase_id, system.name, reaction.reactants, reaction.products, reaction.reaction_energy,
    reaction.surface_composition, reaction.facet, reaction.sites, reaction.dft_functional
    FROM reaction JOIN reaction_system AS system ON reaction.id = system.id"""


def _adsorptions(connection: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    """Entries of Catalysis-Hub for adsorbed products, by ``unique_id``; empty elsewhere.

    Its energies are of reactions (CatHub's tables ``reaction`` and ``reaction_system``): those from gases and the
    empty surface, ``star``, to one adsorbed species are adsorption energies of that species' structure.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    found: dict[str, list[dict[str, Any]]] = {}
    if not {"reaction", "reaction_system"} <= tables:
        return found
    for ase_id, name, reactants, products, energy, surface, facet, sites, functional in connection.execute(_CATHUB):
        before, after = (
            {species for species in json.loads(side or "{}") if species.endswith("star") and species != "star"}
            for side in (reactants, products)
        )
        if not before and after == {name}:
            kept = {"surface_composition": surface, "facet": facet, "sites": sites, "dft_functional": functional}
            adsorption = {"reaction_energy": energy, "adsorbate": name.removesuffix("star"), **kept}
            adsorption |= {"reactants": reactants, "products": products}
            found.setdefault(ase_id, []).append(
                {key: value for key, value in adsorption.items() if value is not None}
            )
    return found


_MOST_BYTES = 64 << 20
"""Most bytes of a row; the largest structures in use need a thousandth of it."""


class AseLmdbDataset(LmdbDataset):
    """Structures of an ``.aselmdb`` file.

    ``key_value_pairs`` and ``data`` become entries of ``info``, of which ``y_relaxed``, ``y_init`` and ``sid`` are
    read, and arrays with a row for each atom, such as ``pos_relaxed``. Arguments are those of ``LmdbDataset``.

    Raises:
        InputError: as ``LmdbDataset``; on access: an invalid row.
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
        InputError: it is not a JSON object compressed by zlib, or far larger than a structure.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(raw, _MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise InputError(f"{where}: refused, the row unpacks to more than {_MOST_BYTES >> 20} MiB")
        row = json.loads(text)
    # RecursionError: deeply nested lists
    except (zlib.error, UnicodeDecodeError, json.JSONDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: not a row of an ASE database ({error}); download the file again") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: not a row of an ASE database; download the file again")
    return row


def row_atoms(row: dict[str, Any], where: str) -> Atoms:
    """Build the structure of a row.

    Raises:
        InputError: fields are missing or have wrong shapes.
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
    """Decode arrays of ASE's own JSON; lists stay as they are."""
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
