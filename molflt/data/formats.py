"""File formats in one table, frames read through ASE, and reports of ignored content."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatch
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from torch_geometric.data import Data

from molflt.data.ase import from_atoms, kept_info
from molflt.data.dataset import ListDataset, StructureDataset, is_companion
from molflt.data.labels import LabelSpec
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, KNOWN_VALUES, ReadOptions
from molflt.data.record import RECORD_KEYS
from molflt.data.text import COMPRESSED, Notes, bare_name, bare_suffix, content, remark
from molflt.errors import InputError, in_line, listed, noting, ordinary_file, warn_caller
from molflt.terminal_text import printable

TABLES, LISTS = (".csv", ".tsv"), (".smi", ".smiles", ".inchi")
SDF, SMILES = (".sdf", ".mol", ".mol2"), (*LISTS, *TABLES)
DATABASES = (".lmdb", ".mdb", ".aselmdb")
READERS: dict[str, str] = {
    ".lmdb": "oc20.lmdb:LmdbDataset",
    ".mdb": "oc20.lmdb:LmdbDataset",
    ".aselmdb": "databases:AseLmdbDataset",
    **dict.fromkeys(SDF, "molfiles:read_sdf"),
    **dict.fromkeys(SMILES, "rdkit:read_smiles_file"),
}
"""Data sets by file suffix: a module, imported when such a file is opened, and its reader."""
_FRAMES: dict[str, str] = {
    "*.extxyz": "xyz:xyz_frames",
    "*.xyz": "xyz:xyz_frames",
    "*.traj": "databases:trajectory_frames",
    "*.db": "databases:database_rows",
    "*.json": "databases:json_rows",
    "*.cif": "crystals:cif_frames",
    "*.mmcif": "crystals:cif_frames",
    "*.vasp": "poscar:poscar_frames",
    "*.poscar": "poscar:poscar_frames",
    "*poscar*": "poscar:poscar_frames",
    "*contcar*": "poscar:poscar_frames",
    "*outcar*": "vasp:outcar_frames",
    "*vasprun*.xml": "vasp:vasprun_frames",
    "*.pdb": "macromolecules:pdb_frames",
    "*.ent": "macromolecules:pdb_frames",
    "*.gen": "codes:gen_frames",
    "*.xsf": "codes:xsf_frames",
    "*.cube": "codes:cube_frames",
    "*.pwi": "codes:pwi_frames",
}
"""Readers of frames by lower-case file name. Each takes a text stream at its start, the file's name and its notes,
and gives ``Atoms``, or an error in place of a bad frame. Only readers that merely parse: others of ASE's
unpickle, run Python, or (``aims``: parametric constraints) evaluate expressions."""
_BINARY = ("databases:trajectory_frames", "databases:database_rows")
"""Readers of bytes, which are not compressed."""
_ANY_ENCODING = ("crystals:cif_frames", "macromolecules:pdb_frames")
"""Readers of text with irrelevant names of authors and places in any encoding; all else is ASCII."""
_SHOWN = 6


def ase_format(path: Path) -> str | None:
    """Return the name of a file's reader of frames, or None if there is none."""
    found = next((reader for pattern, reader in _FRAMES.items() if fnmatch(bare_name(path), pattern)), None)
    compressed = path.name.lower().endswith(COMPRESSED)
    return None if compressed and found in _BINARY else found


def reader_of(path: Path) -> Callable[[Path, ReadOptions], StructureDataset]:
    """Return the function or class that makes a data set of a file, by the file's name."""
    name = READERS.get(bare_suffix(path))
    return read_ase if name is None else _imported(name)


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(f"molflt.data.{module}"), function)
    return found


def read_ase(path: str | os.PathLike[str], options: ReadOptions = DEFAULT) -> ListDataset:
    """Read every frame of a file; the structures are named ``PATH#FRAME``.

    It may be extxyz, xyz, cif, VASP, pdb, gen, xsf, cube or Quantum ESPRESSO input (also .gz, .bz2, .xz), or ASE's
    traj, db or json. Arguments are those of :func:`molflt.data.open.open_dataset`.

    Raises:
        InputError: an unsupported format, an unreadable file, or an unusable frame.
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
            "(train: --energy-key, --forces-key; evaluate: --label, --force-label)"
        )
    if isinstance(atoms, Atoms) and was_cut(atoms):
        notes.add("was cut short; the steps that are complete are read")
    notes.give()
    give_skipped(skipped, len(structures) + len(bad) + len(skipped), str(file))
    return ListDataset.read(structures, bad, options.on_bad, str(file))


def read_frames(file: Path) -> list[Atoms]:
    """Read every frame of a file without changes.

    Raises:
        InputError: an unsupported format, an empty file, or an unreadable frame.
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
    reader = ase_format(file)
    if reader is None:
        known = ", ".join(sorted({*_FRAMES, *(f"*{suffix}" for suffix in READERS)}))
        raise InputError(
            f"{file}: no safe reader for this kind of file; known are {known}. Convert it, for instance to "
            "extxyz with 'ase convert'"
        )
    if ordinary_file(file).stat().st_size == 0:
        raise InputError(f"{file}: the file is empty")
    # imported here: a missing module says nothing about the file
    frames = _frames(file, reader, _imported(reader), notes)
    for index in count():
        try:
            with warnings.catch_warnings():
                # remarks on details of a format; the important ones are checked below
                warnings.simplefilter("ignore")
                atoms = next(frames, None)
        except InputError:
            raise
        # a damaged file makes ASE raise almost anything
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            kind = reader.partition(":")[2].partition("_")[0]
            raise InputError(f"{file}#{index}: cannot be read as {kind}: {reason[:400]}") from error
        if atoms is None:
            if index == 0:
                raise InputError(f"{file}: holds no structures")
            return
        yield atoms


def _frames(
    file: Path, reader: str, read: Callable[..., Iterator[Atoms | InputError]], notes: Notes
) -> Iterator[Atoms | InputError]:
    # Readers step back a little at every frame, which rewinds a compressed stream to its start: unpack all of it.
    compressed = file.name.lower().endswith(COMPRESSED)
    with io.BytesIO(content(file)) if compressed else file.open("rb") as raw:
        stream: IO[Any] = raw
        if reader not in _BINARY:
            errors = "replace" if reader in _ANY_ENCODING else "strict"
            stream = io.TextIOWrapper(raw, encoding="utf-8-sig", errors=errors)
        yield from read(stream, str(file), notes)


_LABEL = re.compile(r"energ|force|virial|(?<![a-z])e(?![a-z])")
_STATE = re.compile(r"charge|lattice|constrain|fixed|frozen|(?<![a-z])(?:cell|mask)(?![a-z])")
_READ = frozenset(
    {*RECORD_KEYS, *KNOWN_VALUES, *all_properties, "initial_charges", "partial_charges"}
    - {"charges", "fixed", "cell", "force"}
)
"""Names that are read, and results whose meaning ASE defines."""
_OURS = "predicted_"
"""Prefix of names written by ``predict``."""
_NUMBER = re.compile(r"[\s\[({]*[-+]?\.?\d")


def unread_names(atoms: Atoms, labels: LabelSpec | None) -> Iterator[str]:
    """Yield names like a cell, energy, forces, charge or constraint that are not read.

    A name counts whatever its case, unless its value is a word or a logical value. If the user names a label, other
    energies and forces are not reported.

    Args:
        atoms: a structure as it was read from a file.
        labels: the label that is read.
    """
    named = {name.lower() for name in (labels.label, labels.force_label) if name} if labels is not None else set()
    for name, value in {**atoms.arrays, **getattr(atoms.calc, "results", {}), **atoms.info}.items():
        folded = str(name).lower()
        if folded in _READ or folded in named or folded.startswith(_OURS):
            continue
        if not (_STATE.search(folded) or (not named and _LABEL.search(folded))):
            continue
        if name in atoms.arrays or (not isinstance(value, bool | np.bool_) and _NUMBER.match(str(value))):
            yield str(name)


UNCONVERGED = "unconverged"
"""Key of ``info`` for a reader's reason why the results of a frame are not converged."""
_NO = ("false", "f", "no", "n", "0")


class UnfinishedError(InputError):
    """Error for a calculation whose file ends before its first result."""


def shortfall(atoms: Atoms) -> str:
    """Return the reason why the results of a frame are no labels; empty if none is stated.

    It comes from the readers of VASP; for other files from a false entry ``converged`` of ``info``.
    """
    if reason := atoms.info.get(UNCONVERGED):
        return str(reason)
    for key, value in atoms.info.items():
        if isinstance(key, str) and key.lower() == "converged" and str(value).strip().lower() in _NO:
            return f"{key} is {value}"
    return ""


def was_cut(atoms: Atoms) -> bool:
    """True if a frame comes from a calculation with incomplete output."""
    return getattr(atoms.calc, "parameters", {}).get("complete") is False


def give_skipped(skipped: Sequence[str], n: int, where: str, what: str = "structures") -> None:
    """Warn about structures left out for their :func:`shortfall`.

    Args:
        skipped: names and reasons.
        n: number of all structures.
        where: what holds them.
        what: plural noun for them.

    Raises:
        InputError: nothing is left.
    """
    if not skipped:
        return
    text = listed(
        f"{where}: {len(skipped)} of {n} {what} skipped: their calculations are not converged or not complete; take "
        "them with --accept-unconverged (in training data.accept_unconverged=true)",
        skipped,
    )
    if len(skipped) == n:
        raise InputError(text)
    warn_caller(text)


def is_molecules(file: Path) -> bool:
    """True if a file's name is that of structures, other than a database in LMDB."""
    return (bare_suffix(file) in READERS and bare_suffix(file) not in DATABASES) or ase_format(file) is not None


def say_left_out(folder: Path, read: Collection[Path]) -> None:
    """Warn about files in a folder that are not read, except hidden files and companions.

    If nothing in a subfolder is read only its name is given, and for a run of VASP only files of structures.
    """
    names = list(_left_out(folder, folder, set(read), {place for path in read for place in path.parents}))
    if names:
        remark(str(folder), f"left out: {in_line(names)}; give what holds structures by its own path")


def _left_out(folder: Path, place: Path, read: set[Path], open_folders: set[Path]) -> Iterator[str]:
    run = any(path.parent == place and of_run(path) for path in read)
    for path in sorted(place.iterdir()):
        if path in read or path.name.startswith(".") or is_companion(path):
            continue
        if path in open_folders:
            yield from _left_out(folder, path, read, open_folders)
        elif not run or (not of_run(path) and (path.is_dir() or is_molecules(path))):
            yield path.relative_to(folder).as_posix() + "/" * path.is_dir()


OUTPUTS = ("vasprun.xml", "outcar")
RUN_FILES = ("poscar", "contcar", *OUTPUTS)


def of_run(path: Path) -> bool:
    """True if a file is one of those that are read from a run of VASP."""
    return bare_name(path) in RUN_FILES
