"""Molecules from SMILES, InChI and RDKit's own objects."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from rdkit import Chem, rdBase
from scipy.spatial.distance import pdist
from torch_geometric.data import Data

from molflt.data.ase import from_atoms
from molflt.data.conformers import TRIED, canonical, embed, side_by_side
from molflt.data.dataset import ListDataset
from molflt.data.labels import one_number
from molflt.data.progress import track
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.record import ENERGIES, make_data
from molflt.data.tables import MOLECULE, SMILES, as_formula, formula_and_name, g2_atoms, read_rows, refuse_ambiguous
from molflt.errors import InputError, noting, refuse
from molflt.terminal_text import printable

_TIME = re.compile(r"^\[\d\d:\d\d:\d\d\] ?")
_SAYS_NOTHING = re.compile(r"(ERROR|WARNING):\s*$|.*Violation$")
_MAX_ATOMS = 2000
"""Most atoms, with hydrogens; the time of an embedding grows with their square or cube."""
_SAME = 0.02
"""Å: largest difference in the sorted distances of two conformers that count as one."""


def from_smiles(smiles: str, name: str | None = None, seed: int = 0, options: ReadOptions = DEFAULT) -> Data:
    """Build a molecule with hydrogens and conformers by ETKDGv3, then MMFF94 or else UFF.

    However a molecule is written, and whichever of its two mirror images it is, its conformers have the same
    distances: they are made from a canonical graph. A force-field geometry is a starting point: bonds of small linear
    molecules can be wrong by 0.2 Å.

    Args:
        smiles: the molecule, or its InChI; unconnected parts are placed side by side.
        name: kept as ``data.name``; the SMILES by default.
        seed: of the conformers; the same seed gives the same positions.
        options: the number of conformers, and whether ions and radicals are accepted.

    Returns:
        A structure without a cell, tags 0, in the conformer with the lowest force-field energy; if there are
        several, all are in ``conformers``.

    Raises:
        InputError: not a SMILES, no atoms, a charge, an open shell, or no conformer found.
    """
    name = smiles if name is None else name
    return _made(parse_smiles(smiles, name), name, options, seed=seed)


def check_text(text: str) -> Chem.Mol | None:
    """Return the graph of a molecule given by itself, not in a file; None for ``molecule:NAME``.

    Raises:
        InputError: neither a SMILES or InChI nor a molecule of ASE's g2 set.
    """
    if text.startswith(MOLECULE):
        g2_atoms(text)
        return None
    try:
        return parse_smiles(text.removeprefix(SMILES), text)
    except InputError as error:
        if ways := as_formula(text)[1]:
            raise InputError(f"{error}; or write {ways}") from error
        raise


def from_text(text: str, options: ReadOptions = DEFAULT) -> Data:
    """Build a molecule given as SMILES or InChI, ``smiles:TEXT`` or ``molecule:NAME``.

    Names are those of ASE's g2 set, with its geometry.

    Raises:
        InputError: as :func:`from_smiles`, or a SMILES that reads as the formula of another molecule.
    """
    mol = check_text(text)
    if mol is None:
        atoms, about = g2_atoms(text)
        data = from_atoms(atoms, text, options=options)
        data.about = about
        return data
    refuse_ambiguous(text, mol)
    return from_smiles(text.removeprefix(SMILES), options=options)


def from_any_mol(mol: Chem.Mol, name: str, options: ReadOptions = DEFAULT) -> Data:
    """Convert an RDKit molecule; one without a 3D conformer is embedded as in ``from_smiles``."""
    if mol.GetNumConformers() and (mol.GetConformer().Is3D() or mol.GetNumAtoms() == 1):
        return from_mol(mol, name, options=options)
    graph = Chem.Mol(mol)
    graph.RemoveAllConformers()
    with captured() as said:
        try:
            Chem.SanitizeMol(graph)
        except ValueError as error:
            raise InputError(f"{name}: not a molecule RDKit accepts{because(said() or meant(str(error)))}") from error
    if graph.GetNumAtoms() == 0:
        raise InputError(f"{name}: the molecule has no atoms")
    return _made(graph, name, options)


def from_mol(mol: Chem.Mol, name: str, options: ReadOptions = DEFAULT) -> Data:
    """Turn an RDKit molecule with 3D conformers and explicit hydrogens into a structure.

    Of several conformers the first gives the positions, and all are in ``conformers``. Properties ``energy``,
    ``y_init`` and ``y_relaxed`` (eV) become labels, or those named by ``options.labels``.

    Raises:
        InputError: no atoms, no conformer, a flat drawing, hydrogens that are not explicit, a charge or an open
            shell.
    """
    if mol.GetNumAtoms() == 0:
        raise InputError(f"{name}: the molecule has no atoms")
    if mol.GetNumConformers() == 0:
        raise InputError(f"{name}: the molecule has no positions; embed it first, or give its SMILES")
    if not mol.GetConformer().Is3D() and mol.GetNumAtoms() > 1:
        raise InputError(f"{name}: the positions are a flat drawing, not a 3D geometry; give the SMILES instead")
    # RDKit counts them at sanitisation only
    mol.UpdatePropertyCache(strict=False)
    _refuse_state(mol, name, options)
    if missing := sum(atom.GetTotalNumHs() for atom in mol.GetAtoms()):
        raise InputError(f"{name}: {missing} hydrogen atoms have no positions; add them, or mark what is a radical")
    n_atoms = mol.GetNumAtoms()
    conformers = np.array([c.GetPositions() for c in mol.GetConformers() if c.Is3D() or n_atoms == 1])
    fields = {
        "atomic_numbers": np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()]),
        "positions": conformers[0],
        "cell": np.zeros((1, 3, 3)),
        "pbc": np.zeros((1, 3), dtype=bool),
        "tags": np.zeros(n_atoms, dtype=np.int64),
        "fixed": np.zeros(n_atoms, dtype=bool),
    }
    if options.charges and (charge := options.stated_charge(name, {}, "", Chem.GetFormalCharge(mol))):
        fields["charge"] = np.array([float(charge)])
    if len(conformers) > 1:
        fields["conformers"] = conformers
    try:
        stored = mol.GetPropsAsDict(includePrivate=False, includeComputed=False)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: a property is not text in UTF-8 ({error.reason}); write the file in UTF-8"
        ) from error
    except RuntimeError as error:
        # RDKit stores its own data among the properties, and finds text there.
        raise InputError(
            f"{name}: a property has a name that RDKit keeps for itself, such as __computedProps; rename it"
        ) from error
    # As in the columns of a table, names match in any case.
    found = {key.lower(): value for key, value in stored.items()} | stored
    for label in ENERGIES:
        if label in found:
            fields[label] = one_number(found[label], label, name)
    texts = {} if options.labels is None else options.labels.apply(fields, found.get, stored, name)
    return make_data(fields, name, name, texts)


def named(where: str, own: str) -> str:
    """Combine file and record with the record's own name."""
    return printable(f"{where} ({own})") if own else where


def read_smiles_file(path: str | os.PathLike[str], options: ReadOptions = DEFAULT) -> ListDataset:
    """Read a list or a table of SMILES or InChI, see :func:`molflt.data.tables.read_rows`.

    Columns ``energy``, ``y_init`` and ``y_relaxed`` of a CSV (eV) become labels, or those of ``options``.
    Structures are named ``PATH#INDEX (NAME)``, after their SMILES if they have no name.

    Raises:
        InputError: no such file, no such column, no molecules, or a line that is not a SMILES.
    """
    file = Path(path)
    rows = read_rows(file)
    structures = []
    bad: dict[int, InputError] = {}
    mols: dict[int, Chem.Mol] = {}
    for index, row in enumerate(rows):
        name = f"{file}#{index}"
        with noting(bad, index, named(name, row.own_name), row.columns):
            if row.problem:
                raise InputError(f"{name}: {row.problem}")
            options.refuse_stated(name, row.columns, "column {!r}")
            mols[index] = parse_smiles(row.molecule, name)
            _refuse_state(mols[index], name, options)
    if options.on_bad == "stop":
        # Before the conformers, which take time.
        refuse(bad, len(rows), str(file))
    for index, mol in track(mols.items(), f"conformers of {file.name}", total=len(mols)):
        name, row = f"{file}#{index}", rows[index]
        with noting(bad, index, named(name, row.own_name), row.columns):
            for column, text in row.labels.items():
                mol.SetProp(column, text)
            structure = _made(mol, name, options)
            structure.name, structure.info = named(name, row.own_name), row.columns
            structures.append(structure)
    return ListDataset.read(structures, bad, options.on_bad, str(file))


_NAMES = "; names are not known: give the SMILES, such as CCO for ethanol, or molecule:NAME of ASE's g2 set"


def parse_smiles(smiles: str, name: str) -> Chem.Mol:
    """Parse a SMILES or InChI as a graph without positions; ``name`` is for messages.

    Raises:
        InputError: neither, or no atoms.
    """
    kind = "InChI" if smiles.startswith("InChI=") else "SMILES"
    with captured() as said:
        try:
            mol = (Chem.MolFromInchi if kind == "InChI" else Chem.MolFromSmiles)(smiles)
        except UnicodeEncodeError:
            # half of a surrogate pair, as in Python's form of file names with invalid text
            mol = None
        messages = said()
    if mol is None:
        ways = as_formula(smiles)[0]
        remedy = f"; as a formula, its SMILES is {ways}" if ways else _NAMES * smiles.isalpha()
        raise InputError(f"{name}: '{smiles:.200}' is not a valid {kind}{because(messages)}{remedy}")
    if mol.GetNumAtoms() == 0:
        raise InputError(f"{name or repr(name)}: the SMILES is empty; give one, such as CCO for ethanol")
    return mol


def _refuse_state(mol: Chem.Mol, name: str, options: ReadOptions) -> None:
    unpaired = sum(atom.GetNumRadicalElectrons() for atom in mol.GetAtoms())
    if unpaired and sorted(atom.GetAtomicNum() for atom in mol.GetAtoms()) == [6, 8] and mol.GetNumBonds():
        name = f"{name} (carbon monoxide is [C-]#[O+])"
    options.refuse_state(name, Chem.GetFormalCharge(mol), unpaired)


def _made(mol: Chem.Mol, name: str, options: ReadOptions, seed: int = 0) -> Data:
    """Build the structure of a sanitised graph, with new conformers."""
    _refuse_state(mol, name, options)
    mol = Chem.AddHs(mol)
    if mol.GetNumAtoms() > _MAX_ATOMS:
        raise InputError(
            f"{name}: {mol.GetNumAtoms():,} atoms are too many to find a geometry for "
            f"(at most {_MAX_ATOMS:,}); give one"
        )
    with captured() as said:
        try:
            graph, places, mirrored = canonical(mol)
            energies, remark = embed(graph, name, seed, options.conformers)
            if not energies:
                raise InputError(
                    f"{name}: RDKit found no conformer{because(said())}, tried by {TRIED}; give a geometry"
                )
        except (RuntimeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{name}: RDKit could not build a geometry{because(meant(str(error)))}") from error
    kept: list[np.ndarray] = []
    shapes: list[np.ndarray] = []
    for k in sorted(energies, key=lambda k: energies[k]):
        positions = side_by_side(graph, graph.GetConformer(k).GetPositions())[places]
        if mirrored:
            positions[:, 0] *= -1
        shape = np.sort(pdist(positions))
        if all(np.abs(shape - other).max(initial=0.0) > _SAME for other in shapes):
            kept.append(positions)
            shapes.append(shape)
    mol.RemoveAllConformers()
    for positions in kept:
        conformer = Chem.Conformer(len(positions))
        conformer.SetPositions(np.ascontiguousarray(positions))
        mol.AddConformer(conformer, assignId=True)
    data = from_mol(mol, name, options)
    data.about = formula_and_name(mol)
    if remark:
        data.remark = remark
    return data


def meant(message: str) -> str:
    """Extract the first informative line of an RDKit message, and the place in a SMILES."""
    # "[12:00:00] text", one per line; a broken assertion begins with stars
    lines = [_TIME.sub("", line).strip() for line in message.split("\n")]
    first = next((line for line in lines if line.strip("*-~^ ") and not _SAYS_NOTHING.match(line)), "")
    place = next((line for line in lines if "check for mistakes around" in line and line != first), "")
    return "; ".join(filter(None, (first, place.rstrip(":")))).replace("SMILES Parse Error: ", "")


def _said(log: object) -> str:
    """Return RDKit's messages so far, in a line."""
    try:
        return meant(str(getattr(log, "messages", "") or ""))
    except UnicodeDecodeError:
        # RDKit quotes the offending line, even if its bytes are invalid text.
        return "the file holds bytes that are not text"


_LOG = threading.RLock()
"""RDKit has one log for all threads, so only one at a time may redirect, write and restore it."""


@contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Keep RDKit from writing to standard error; all of its functions that log run in here."""
    # older RDKit has no capture: then errors come without its reasons
    with _LOG, rdBase.BlockLogs(), getattr(rdBase, "CaptureErrorLog", nullcontext)() as log:
        yield lambda: _said(log)


def because(messages: str) -> str:
    """RDKit's reasons, as the end of a message; empty without any."""
    return f" ({messages[:300]})" if messages else ""
