"""What a folder of data holds, and what of it is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from molflt.data.ase_files import ase_format
from molflt.data.calculations import of_run
from molflt.data.compression import bare_suffix
from molflt.data.notes import Notes
from molflt.data.smiles_tables import LISTS, TABLES
from molflt.errors import in_line

SDF, SMILES = (".sdf", ".mol", ".mol2"), (*LISTS, *TABLES)
DATABASES = (".lmdb", ".mdb", ".aselmdb")


def is_companion(path: Path) -> bool:
    """Whether a file comes and goes beside the data: locks, kept sizes, what is being written."""
    return path.name.endswith((".natoms.npz", "-lock", "lock.mdb", ".lock", ".partial"))


def is_molecules(file: Path) -> bool:
    """Whether a file's name is that of structures: all that is read but databases over LMDB."""
    return bare_suffix(file) in (*SDF, *SMILES) or ase_format(file) is not None


def say_left_out(folder: Path, read: Collection[Path]) -> None:
    """Warn of what a folder holds besides the files that are read; hidden files and companions are not worth a word.

    Of a folder in which nothing is read only its own name is given, and of a run of VASP only files of structures.
    """
    names = list(_left_out(folder, folder, set(read), {place for path in read for place in path.parents}))
    if names:
        notes = Notes(str(folder))
        notes.add(f"left out: {in_line(names)}; give what holds structures by its own path")
        notes.give()


def _left_out(folder: Path, place: Path, read: set[Path], open_folders: set[Path]) -> Iterator[str]:
    run = any(path.parent == place and of_run(path) for path in read)
    for path in sorted(place.iterdir()):
        if path in read or path.name.startswith(".") or is_companion(path):
            continue
        if path in open_folders:
            yield from _left_out(folder, path, read, open_folders)
        elif not run or (not of_run(path) and (path.is_dir() or is_molecules(path))):
            yield path.relative_to(folder).as_posix() + "/" * path.is_dir()
