"""Structures from the files that ASE reads, with a check of what a text file may ask of its reader."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import IO

from ase import Atoms
from torch_geometric.data import Data

from molflt.data.ase_databases import database_rows, json_rows, trajectory_frames
from molflt.data.ase_io import from_atoms, kept_info
from molflt.data.code_files import cube_frames, gen_frames, xsf_frames
from molflt.data.compression import COMPRESSED, bare_name, content
from molflt.data.convergence import give_skipped, shortfall, was_cut
from molflt.data.crystals import cif_frames
from molflt.data.datasets import ListDataset
from molflt.data.macromolecules import pdb_frames
from molflt.data.notes import Notes
from molflt.data.poscar import poscar_frames
from molflt.data.progress import track
from molflt.data.qe import pwi_frames
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.unread import unread_names
from molflt.data.vasp import outcar_frames, vasprun_frames
from molflt.data.xyz import xyz_frames
from molflt.errors import InputError, noting, ordinary_file
from molflt.terminal_text import printable

_PATTERNS: dict[str, str] = {
    "*.extxyz": "extxyz",
    "*.xyz": "xyz",
    "*.traj": "traj",
    "*.db": "db",
    "*.json": "json",
    "*.cif": "cif",
    "*.mmcif": "cif",
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
    "json": json_rows,
    "gen": gen_frames,
    "xsf": xsf_frames,
    "cube": cube_frames,
    "espresso-in": pwi_frames,
    "vasp": poscar_frames,
    "vasp-out": outcar_frames,
    "vasp-xml": vasprun_frames,
}
"""Readers of text: a stream from its start, the file's name, and its notes.

An error in place of a frame concerns that frame alone."""


def ase_format(path: Path) -> str | None:
    """The ASE format of a file by its name, or None where molflt does not read it through ASE."""
    found = next((form for pattern, form in _PATTERNS.items() if fnmatch(bare_name(path), pattern)), None)
    compressed = path.name.lower().endswith(COMPRESSED)
    return None if compressed and found in _BINARY else found


def read_ase(
    path: str | os.PathLike[str],
    options: ReadOptions = DEFAULT,
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
    skipped: list[str] = []
    notes = Notes(str(file))
    unread: dict[str, None] = {}
    for index, atoms in enumerate(track(_checked_frames(file, notes), f"reading {file.name}")):
        name, place = f"{file}#{index}", index - len(skipped)
        if isinstance(atoms, InputError):
            atoms.record = name
            bad[place] = atoms
            continue
        record = f"{name} ({atoms.info['name']})" if isinstance(atoms.info.get("name"), str) else name
        if not options.accept_unconverged and (why := shortfall(atoms)):
            skipped.append(f"{record}: {why}")
            continue
        unread |= dict.fromkeys(unread_names(atoms, options.labels))
        with noting(bad, place, record, kept_info(atoms)):
            structure = from_atoms(atoms, name, options)
            structure.name = printable(record)
            structures.append(structure)
    if unread:
        notes.add(
            f"not read: {', '.join(map(printable, list(unread)[:_SHOWN]))}{', ...' * (len(unread) > _SHOWN)}. molflt "
            "reads Lattice, pbc, energy, forces, charge and move_mask, and labels that are named "
            "(data.label, data.force_label)"
        )
    if isinstance(atoms, Atoms) and was_cut(atoms):
        notes.add("was cut short; the steps that are complete are read")
    notes.give()
    give_skipped(skipped, len(structures) + len(bad) + len(skipped), str(file))
    return ListDataset.read(structures, bad, options.on_bad, str(file))


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
        yield from database_rows(file, notes)
        return
    # Readers go back a little at every frame, and in a compressed stream that means from its start: unpack all of it.
    compressed = file.name.lower().endswith(COMPRESSED)
    with io.BytesIO(content(file)) if compressed else file.open("rb") as raw:
        if form == "traj":
            yield from trajectory_frames(raw, str(file), notes)
            return
        # Names of authors and places, in any encoding, do not matter where all else is ASCII.
        errors = "replace" if form in ("cif", "proteindatabank") else "strict"
        yield from _OWN[form](io.TextIOWrapper(raw, encoding="utf-8-sig", errors=errors), str(file), notes)
