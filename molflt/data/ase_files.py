"""Structures from the files that ASE reads, with a check of what a text file may ask of its reader."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import ase.db
import ase.io
from ase import Atoms
from ase.io.formats import get_ioformat
from torch_geometric.data import Data

from molflt.choices import TagConvention
from molflt.data.ase_io import from_atoms, kept_info
from molflt.data.compression import COMPRESSED, bare_name, content
from molflt.data.crystals import cif_frames, pdb_frames
from molflt.data.datasets import ListDataset
from molflt.data.labels import LabelSpec
from molflt.data.notes import Notes
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, Reading
from molflt.data.unread import unread_names
from molflt.data.xyz import xyz_frames
from molflt.errors import InputError, OnBad, noting, ordinary_file
from molflt.printable import printable

_PATTERNS: dict[str, str] = {
    "*.extxyz": "extxyz",
    "*.xyz": "xyz",
    "*.traj": "traj",
    "*.db": "db",
    "*.json": "json",
    "*.cif": "cif",
    "*.vasp": "vasp",
    "*.poscar": "vasp",
    "*poscar*": "vasp",
    "*contcar*": "vasp",
    "*outcar*": "vasp-out",
    "*vasprun*.xml": "vasp-xml",
    "*.pdb": "proteindatabank",
    "*.ent": "proteindatabank",
    "*.gen": "gen",
    "*.xsf": "xsf",
    "*.cube": "cube",
    "*.pwi": "espresso-in",
}
"""Formats by lower-case file name. Only readers that parse and nothing else: others of ASE's unpickle, run
Python, or (``aims``: parametric constraints) evaluate expressions from the file."""
_BINARY = ("traj", "db")
_SHOWN = 6
_OWN: dict[str, Callable[[IO[str], str, Notes], Iterator[Atoms | InputError]]] = {
    "extxyz": xyz_frames,
    "xyz": xyz_frames,
    "cif": cif_frames,
    "proteindatabank": pdb_frames,
}
"""Formats that are not simply handed to ASE: a text stream from its start, the file's name, and its notes."""


def ase_format(path: Path) -> str | None:
    """The ASE format of a file by its name, or None where molflt does not read it through ASE."""
    found = next((form for pattern, form in _PATTERNS.items() if fnmatch(bare_name(path), pattern)), None)
    compressed = path.name.lower().endswith(COMPRESSED)
    return None if compressed and found in _BINARY else found


def read_ase(
    path: str | os.PathLike[str],
    tags: TagConvention = "auto",
    labels: LabelSpec | None = None,
    on_bad: OnBad = "stop",
    how: Reading = DEFAULT,
) -> ListDataset:
    """Read every frame of a file; the structures are named ``PATH#FRAME``.

    It may be extxyz, xyz, cif, VASP, pdb, gen, xsf, cube or Quantum ESPRESSO input (also .gz, .bz2, .xz), or ASE's
    traj, db or json. Arguments are those of :func:`molflt.data.sources.open_dataset`.

    Raises:
        InputError: a format that is not on the list, a file that cannot be read, or a frame that cannot be used.
    """
    file = Path(path)
    structures: list[Data] = []
    bad: dict[int, InputError] = {}
    notes = Notes(str(file))
    unread: dict[str, None] = {}
    for index, atoms in enumerate(track(_checked_frames(file, notes), f"reading {file.name}")):
        name = f"{file}#{index}"
        if isinstance(atoms, InputError):
            with noting(bad, index, name, {}):
                raise atoms
            continue
        record = f"{name} ({atoms.info['name']})" if isinstance(atoms.info.get("name"), str) else name
        unread |= dict.fromkeys(unread_names(atoms, labels))
        with noting(bad, index, record, kept_info(atoms)):
            structure = from_atoms(atoms, name, tags, labels, how)
            structure.name = printable(record)
            structures.append(structure)
    if unread:
        notes.add(
            f"not read: {', '.join(map(printable, list(unread)[:_SHOWN]))}{', ...' * (len(unread) > _SHOWN)}. molflt "
            "reads Lattice, pbc, energy, forces, charge and move_mask, and labels that are named "
            "(data.label, data.force_label)"
        )
    notes.give()
    return ListDataset.read(structures, bad, on_bad, str(file))


def read_frames(file: Path) -> list[Atoms]:
    """Every frame of a file as it is.

    Raises:
        InputError: a format that is not on the list, a file that is empty, or a frame that cannot be read.
    """
    notes = Notes(str(file))
    frames: list[Atoms] = []
    for atoms in _checked_frames(file, notes):
        if isinstance(atoms, InputError):
            raise atoms
        frames.append(atoms)
    notes.give()
    return frames


def _checked_frames(file: Path, notes: Notes) -> Iterator[Atoms | InputError]:
    form = ase_format(file)
    if form is None:
        known = ", ".join(sorted(_PATTERNS))
        raise InputError(
            f"{file}: no safe reader for this kind of file; known are {known}. Convert it, for instance to "
            "extxyz with 'ase convert'"
        )
    if ordinary_file(file).stat().st_size == 0:
        raise InputError(f"{file}: the file is empty")
    frames = _frames(file, form, notes)
    for index in count():
        try:
            with warnings.catch_warnings():
                # remarks on details of a format; what matters here is checked below
                warnings.simplefilter("ignore")
                atoms = next(frames, None)
        except InputError:
            raise
        # a damaged file makes ASE raise almost anything
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise InputError(f"{file}#{index}: cannot be read as {form}: {reason[:400]}") from error
        if atoms is None:
            if index == 0:
                raise InputError(f"{file}: holds no structures")
            return
        yield atoms


def _frames(file: Path, form: str, notes: Notes) -> Iterator[Atoms | InputError]:
    if form == "db":
        yield from _database_rows(file)
        return
    # Readers go back a little at every frame, and in a compressed stream that means from its start: unpack all of it.
    compressed = file.name.lower().endswith(COMPRESSED)
    with io.BytesIO(content(file)) if compressed else file.open("rb") as raw:
        if get_ioformat(form).isbinary:
            yield from ase.io.iread(raw, index=":", format=form, do_not_split_by_at_sign=True)
            return
        stream = io.TextIOWrapper(raw, encoding="utf-8-sig")
        if (own := _OWN.get(form)) is not None:
            yield from own(stream, str(file), notes)
        else:
            yield from ase.io.iread(stream, index=":", format=form, do_not_split_by_at_sign=True)


def _database_rows(file: Path) -> Iterator[Atoms]:
    # connecting ASE to a database that is not its own would create tables in it
    with closing(sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)) as connection:
        query = "SELECT 1 FROM sqlite_master WHERE type='table' AND name='systems'"
        if connection.execute(query).fetchone() is None:
            raise InputError(f"{file}: not an ASE database")
        reactions = _adsorptions(connection)
    with ase.db.connect(str(file.absolute()), type="db", serial=True, use_lock_file=False) as database:
        for row in database.select():
            for adsorption in reactions.get(row.get("unique_id"), []) if reactions else [{}]:
                atoms = row.toatoms()
                atoms.info.update({**row.key_value_pairs, **adsorption})
                yield atoms


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
