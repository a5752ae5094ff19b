"""Trajectories and databases of ASE, whose records are counted apart from what is read of them."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import ase.db
import numpy as np
from ase import Atoms
from ase.db.core import Database
from ase.db.row import AtomsRow
from ase.io.trajectory import TrajectoryReader
from ase.io.ulm import N1, read_header

from molflt.data.notes import Notes
from molflt.errors import InputError


def trajectory_frames(raw: IO[bytes], where: str, notes: Notes) -> Iterator[Atoms]:
    """Every frame of a trajectory of ASE.

    Raises:
        InputError: ASE reads more or fewer than the file says that it holds.
    """
    _, _, n, place_of_table, offsets = read_header(raw)
    if n:
        table = 1
        while table < n:
            table *= N1
        raw.seek(int(offsets[-1]))
        length = int(np.frombuffer(raw.read(8), np.int64)[0])
        # Frames are counted once they are whole.
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
    """Every row of a database of ASE in JSON, with its keys and values in ``info``.

    Raises:
        InputError: two entries of one name, or rows that its list of ids does not name.
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


def database_rows(file: Path, notes: Notes) -> Iterator[Atoms]:
    """Every row of a database of ASE, with its keys and values in ``info``; of Catalysis-Hub's, see the source.

    Raises:
        InputError: it is none, or ASE reads more or fewer rows than it has.
    """
    # connecting ASE to a database that is not its own would create tables in it
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
    """What a database of Catalysis-Hub says of adsorbed products, by their ``unique_id``; empty for other databases.

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
