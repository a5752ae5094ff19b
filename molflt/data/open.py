"""Reading of all kinds of inputs: paths, patterns, SMILES, standard input, objects."""

from __future__ import annotations

import glob
import os
import warnings
from codecs import BOM_UTF8
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import torch
from ase import Atoms
from rdkit import Chem
from torch_geometric.data import Data

from molflt import vocabulary
from molflt.data.ase import from_atoms
from molflt.data.dataset import ConcatDataset, ListDataset, StructureDataset, is_companion, is_prepared
from molflt.data.formats import DATABASES, TABLES, is_molecules, of_run, reader_of, say_left_out
from molflt.data.rdkit import check_text, from_any_mol, from_text
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.record import check_structure
from molflt.data.runs import (
    NO_PAIRS,
    Calculation,
    files_of,
    find_pairs,
    find_runs,
    named_ends,
    read_calculations,
    suggest_pairs,
)
from molflt.data.tables import MOLECULE
from molflt.data.text import bare_suffix
from molflt.errors import InputError, InputWarning, in_line, noting, refuse, warn_caller
from molflt.files import standard_input
from molflt.terminal_text import printable

STANDARD_INPUT = "-"


def open_dataset(path: str | os.PathLike[str], options: ReadOptions = DEFAULT) -> StructureDataset:
    """Open any supported path.

    Args:
        path: an LMDB or aselmdb file or folder (of shards), a file ASE reads, SDF, MOL or mol2, SMILES or InChI
            (.smi, or .csv or .tsv with a column ``smiles`` or ``inchi``), all of text also compressed, or a folder of
            structures (in the order of their names) and VASP runs; ``-``: standard input, (extended) xyz or lines of
            SMILES. Files of a folder that are ignored are named in an ``InputWarning``.
        options: for tags, labels, ions and molecules without positions, and the treatment of bad structures.

    Raises:
        InputError: nothing there, an unsupported kind of file, or damaged content.
    """
    if os.fspath(path) == STANDARD_INPUT:
        return _read_standard_input(options)
    source = Path(path)
    if not source.exists():
        raise InputError(f"{source}: no such file or folder")
    if source.is_dir():
        return _open_folder(source, options)
    return reader_of(source)(source, options)


def _open_folder(folder: Path, options: ReadOptions) -> StructureDataset:
    if is_prepared(folder):
        from molflt.data.prepared import PreparedSet

        return PreparedSet(folder, options)
    if (folder / "data.mdb").is_file():
        say_left_out(folder, [folder / "data.mdb"])
        return reader_of(folder / "data.mdb")(folder, options)
    calculations, files = _contents(folder, options)
    found = [read_calculations(calculations, folder, options)] if calculations else []
    return ConcatDataset([*found, *_all(files, lambda file: open_dataset(file, options), str(folder))])


def _contents(folder: Path, options: ReadOptions) -> tuple[list[Calculation], list[Path]]:
    """Calculations and further files of a folder."""
    children = sorted(path for path in folder.iterdir() if not path.name.startswith(".") and not is_companion(path))
    if databases := [path for path in children if path.suffix in DATABASES]:
        say_left_out(folder, databases)
        return [], databases
    pairs = find_pairs(children) if options.makes_pairs else []
    if not pairs:
        suggest_pairs(filter(Path.is_file, children), str(folder))
    calculations = [*pairs, *find_runs(folder, pairs)]
    used = files_of(calculations)
    files = [path for path in children if path.is_file() and is_molecules(path) and path not in used]
    if calculations:
        # A table holds results of the calculations, and the files of a run are one calculation.
        tables = [path for path in files if bare_suffix(path) in TABLES]
        files = [path for path in files if path not in tables and not of_run(path)]
        used |= {*tables}
    elif options.pairs:
        raise InputError(f"{folder}: {NO_PAIRS}")
    elif not files:
        raise InputError(
            f"{folder}: the folder holds no LMDB and no structure file that molflt reads"
            + (
                "; give its folders by their own paths (and --pairs, if they are of initial and relaxed geometries)"
                if any(map(Path.is_dir, children))
                else ""
            )
        )
    say_left_out(folder, used.union(files))
    return calculations, files


def is_database(text: str) -> bool:
    """True for an LMDB, whose records are read one by one."""
    return Path(text).suffix in DATABASES or (Path(text) / "data.mdb").is_file()


def pieces(text: str, options: ReadOptions) -> list[str]:
    """Return what can be opened one after the other in place of an input."""
    folder = Path(text)
    if not folder.is_dir() or is_database(text) or is_prepared(folder):
        return [text]
    calculations, files = _contents(folder, options)
    return [text] if calculations else [piece for file in files for piece in pieces(str(file), options)]


def paths_behind(text: str) -> list[str]:
    """Return the path if it exists, else the matches of a glob pattern; nothing for a SMILES."""
    return [text] if os.path.exists(text) else sorted(glob.glob(text, recursive=True))


def resolve_inputs(inputs: Sequence[str], options: ReadOptions = DEFAULT) -> StructureDataset:
    """Read several inputs: paths, glob patterns, SMILES and ``-`` for standard input, mixed.

    An existing path takes precedence. Other arguments are those of :func:`open_dataset`.

    Returns:
        All structures in the order of the inputs, but pairs first, named ``PATH#INDEX`` or by their SMILES; records
        with a name of their own keep it.

    Raises:
        InputError: no inputs, or an input that is neither a path, a pattern with matches nor a SMILES.
    """
    if not inputs:
        raise InputError("no inputs: give files, folders, glob patterns or SMILES")
    paths = [Path(path) for text in inputs if text != STANDARD_INPUT for path in paths_behind(text)]
    found, paired = [], set[Path]()
    if not options.makes_pairs:
        suggest_pairs(paths, "the inputs")
    else:
        beside: dict[Path, list[Path]] = {}
        for path in paths:
            beside.setdefault(path.parent, []).append(path)
        for parent, some in beside.items():
            if pairs := find_pairs(some):
                found.append(read_calculations(pairs, parent, options, with_table=False))
                ends = [path for both in named_ends(some).values() for end in both for path in end]
                paired.update(ends)
                for end in filter(Path.is_dir, ends):
                    say_left_out(end, files_of(pairs))
        inputs = [one for text in inputs for one in paths_behind(text) or [text] if Path(one) not in paired]
        if options.pairs and not paired and not any(path.is_dir() for path in paths):
            raise InputError(f"{in_line(inputs)}: {NO_PAIRS}")

    def opened(text: str) -> StructureDataset:
        if os.path.exists(text) or text == STANDARD_INPUT:
            return open_dataset(text, options)
        if matches := paths_behind(text):
            return ConcatDataset(_all(matches, lambda match: open_dataset(match, options), text))
        try:
            check_text(text)
        except InputError as error:
            if text.startswith(MOLECULE):
                raise
            if bare_suffix(Path(text)) in DATABASES or is_molecules(Path(text)):
                raise InputError(f"{text}: no such file") from error
            why = str(error).removeprefix(f"{text}: ")
            raise InputError(f"'{text}' is not a file, a folder, a pattern of files or a molecule: {why}") from error
        return ListDataset([from_text(text, options)])

    return ConcatDataset([*found, *_all(inputs, opened, "the inputs")])


_Item = TypeVar("_Item")


def _all(items: Sequence[_Item], opened: Callable[[_Item], StructureDataset], where: str) -> list[StructureDataset]:
    """Open every item, and refuse all of those that cannot be opened at once."""
    found: list[StructureDataset] = []
    bad: dict[int, InputError] = {}
    for place, item in enumerate(items):
        with noting(bad, place, str(item), {}):
            found.append(opened(item))
    refuse(bad, len(items), where, "inputs")
    return found


def structures_of(entry: Any, name: str, options: ReadOptions = DEFAULT) -> StructureDataset:
    """Read one entry of a mixed list; ``name`` is for entries without a name.

    An entry is ASE ``Atoms``; an RDKit ``Mol`` (without 3D conformers it gets hydrogens and conformers); a SMILES, a
    path or a glob pattern; a structure under the vocabulary; or a data set of them. Paths and data sets may hold
    several structures. Other arguments are those of :func:`open_dataset`.

    Raises:
        InputError: the entry is of an unsupported kind, or it cannot be read.
    """
    if isinstance(entry, str | os.PathLike):
        return resolve_inputs([os.fspath(entry)], options)
    if isinstance(entry, Atoms):
        return ListDataset([from_atoms(entry, name, options)])
    if isinstance(entry, Chem.Mol):
        return ListDataset([from_any_mol(entry, name, options=options)])
    if isinstance(entry, Data):
        return ListDataset([_checked(entry, name, options)])
    if isinstance(entry, StructureDataset):
        return entry
    raise InputError(
        f"{name}: {type(entry).__name__} holds no structure; give ASE Atoms, an RDKit Mol, a SMILES, "
        "a path, or a torch_geometric Data with the fields of molflt.vocabulary"
    )


def _checked(data: Data, name: str, options: ReadOptions) -> Data:
    """Copy a structure with the fields of the vocabulary only, and with a name."""
    fields = {key: data[key] for key in data.keys() if key in vocabulary.FIELDS}  # noqa: SIM118 (Data is no dict)
    for key in ("edge_index", "cell_offsets"):
        fields.pop(key, None)
    for key, value in fields.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"{name}: '{key}' is {type(value).__name__}, expected a tensor")
    check_structure(fields, name)
    options.refuse_slab(name, fields["pbc"].tolist()[0])
    if "charge" in fields:
        stated = {"charge": fields.pop("charge").item()}
        options.refuse_stated(name, stated, "field {!r}")
        if options.charges and (charge := options.stated_charge(name, stated, "field {!r}")):
            fields["charge"] = torch.tensor([charge], dtype=torch.float64)
    structure = Data(**fields)
    structure.num_nodes = int(fields["atomic_numbers"].shape[0])
    structure.name = printable(data["name"] if isinstance(data.get("name"), str) else name)
    if isinstance(data.get("info"), dict):
        structure.info = data["info"]
    return structure


def _read_standard_input(options: ReadOptions) -> ListDataset:
    what = "SMILES, one a line, or (extended) xyz"
    content = standard_input(what=what)
    if not content.strip():
        raise InputError(f"standard input is empty; pipe {what} into it")
    # xyz begins with the number of atoms, and no SMILES with a digit.
    suffix = ".xyz" if content.removeprefix(BOM_UTF8).lstrip()[:1].isdigit() else ".smi"
    with TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", InputWarning)
        file = Path(folder) / f"standard_input{suffix}"
        file.write_bytes(content)
        try:
            found = cast("ListDataset", reader_of(file)(file, options))
        except InputError as error:
            raise _of_standard_input(error, file) from error
    for remark in remarks:
        warn_caller(_renamed(str(remark.message), file), remark.category)
    for place, item in enumerate(found.items):
        if isinstance(item, InputError):
            found.items[place] = _of_standard_input(item, file)
        else:
            item.name = item.name.replace(str(file), STANDARD_INPUT)
    return found


def _renamed(message: str, file: Path) -> str:
    return message.replace(f"{file}#", "standard input #").replace(str(file), "standard input")


def _of_standard_input(error: InputError, file: Path) -> InputError:
    renamed = InputError(_renamed(str(error), file))
    renamed.record, renamed.info = error.record.replace(str(file), STANDARD_INPUT), error.info
    return renamed
