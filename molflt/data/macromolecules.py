"""Models of PDB and mmCIF files, checked line by line for atoms, ends of models and errors."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, NamedTuple

import gemmi
import numpy as np
from ase import Atoms
from gemmi import cif

from molflt.data.cif import DEUTERIUM, Items
from molflt.data.neighbours import check_contacts
from molflt.data.symmetry import NO_SYMMETRY, Symmetry, expand
from molflt.data.text import Notes
from molflt.errors import InputError

_PASSED_OVER = frozenset(
    """
    HEADER OBSLTE TITLE SPLIT CAVEAT COMPND SOURCE KEYWDS EXPDTA MDLTYP AUTHOR REVDAT SPRSDE JRNL REMARK DBREF
    DBREF1 DBREF2 SEQADV SEQRES MODRES HET HETNAM HETSYN FORMUL HELIX SHEET TURN SSBOND LINK LINKR HYDBND SLTBRG
    CISPEP SITE ORIGX1 ORIGX2 ORIGX3 MTRIX1 MTRIX2 MTRIX3 TVECT ANISOU SIGATM SIGUIJ TER CONECT MASTER USER
    FTNOTE
    """.split()  # noqa: SIM905
)
"""Records of the format that add no atoms."""
COLUMNS = (30, 38, 46)
"""Start columns of the coordinates, of eight characters each."""
_COORDINATES = 3
_FIRST_ROW = ["1.000000", "0.000000", "0.000000"]
_DECIMAL = re.compile(r"[-+]?\d+\.\d+")
_ELEMENT = re.compile(r"[ A-Za-z]{2}(  |\d[-+]|[-+]\d)")
_NEAR = 0.3
"""Å: no two atoms are so close, except the same atom in two frames of a trajectory."""


@dataclass
class Model:
    """A model: its atoms' lines, by number and text, and the line with its cell."""

    cell: str = ""
    scale: list[str] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)

    def text(self) -> str:
        """Write the model as a PDB file, with the index of each atom as its B factor."""
        atoms = (
            f"{'HETATM' if text[:1] in 'Hh' else 'ATOM  '}    1 {text[12:60]:48}{k:6d}{'':10}{_tail(text)}"
            for k, (_, text) in enumerate(self.lines)
        )
        return "\n".join([self.cell, *self.scale, *atoms, "END", ""]).encode("ascii", "replace").decode()


def _tail(line: str) -> str:
    """Element and charge; in files from before 1996 the columns hold line numbers."""
    tail = line[76:80].ljust(4)
    return "" if tail.replace(" ", "").isdecimal() else tail


def models_of(text: str, where: str, notes: Notes) -> list[Model]:
    """Split a file into models, by MODEL and ENDMDL, or by END as in trajectories.

    Raises:
        InputError: a line cannot be read, the file is cut short, or models cannot be told apart.
    """
    models: list[Model] = []
    # the cell and SCALE at the beginning apply to all models without their own
    model = Model()
    opened, declared = 0, 0
    for number, line in enumerate(text.split("\n"), start=1):
        record, here = _record(line), f"{where}: line {number}"
        if record in ("ATOM", "HETATM"):
            _check_atom(line, here)
            model.lines.append((number, line))
        elif record in ("MODEL", "END", "ENDMDL"):
            if opened and record != "ENDMDL":
                raise InputError(f"{here}: {record}, and the MODEL of line {opened} has no ENDMDL; add it")
            if model.lines:
                models.append(model)
            model = Model(model.cell, model.scale)
            opened = number if record == "MODEL" else 0
        elif record == "CRYST1":
            if model.lines:
                raise InputError(f"{here}: CRYST1 among the atoms of a model; end the model before it with END")
            _check_cell(line, here)
            model = Model(line)
        elif record.startswith("SCALE"):
            model.scale = [*model.scale[-2:], line]
        elif record == "NUMMDL" and line[10:14].strip().isdecimal():
            declared = int(line[10:14])
        elif record == "MTRIX1" and line[59:60] != "1" and line[10:40].split() != _FIRST_ROW:
            raise InputError(f"{here}: symmetry that is not of the crystal (MTRIX) is not applied; expand it")
        elif record not in _PASSED_OVER and len(_DECIMAL.findall(line)) >= _COORDINATES:
            raise InputError(f"{here}: '{line.strip():.40}' is not a record of a PDB file; correct or remove it")
    if opened or (models and model.lines):
        raise InputError(
            f"{where}: line {model.lines[0][0] if model.lines else opened}: the model that begins here has no end; "
            "the file is cut short, or END or ENDMDL is missing"
        )
    if model.lines:
        notes.add("the file has no END: if it was cut short, atoms are missing")
        models = _frames_of(model, where)
    if declared and declared != len(models):
        raise InputError(f"{where}: NUMMDL declares {declared} models, and there are {len(models)}; correct it")
    return models


def _record(line: str) -> str:
    """Name of a line's record; serial numbers of six digits may touch it."""
    record = line[:6].upper()
    if record.startswith(("ATOM", "MODEL")) and not record.strip("ATOMDEL 0123456789"):
        return record[:5].strip()
    return record.rstrip()


def _check_atom(line: str, where: str) -> None:
    fields = [line[k : k + 8] for k in COLUMNS]
    if not line.isprintable() or len(line) < 54:
        raise InputError(f"{where}: an atom needs fixed columns, coordinates in 31-54; write it so, without tabs")
    if _tail(line).strip() and not _ELEMENT.fullmatch(_tail(line)):
        raise InputError(
            f"{where}: '{_tail(line)}' in columns 77-80 is not an element with a charge; correct the line"
        )
    for text in fields:
        try:
            good = math.isfinite(float(text)) and "_" not in text
        except ValueError:
            good = False
        if not good:
            raise InputError(f"{where}: '{text.strip()}' in columns 31-54 is not a coordinate; correct the line")


def _check_cell(line: str, where: str) -> None:
    fields = [line[start:end] for start, end in pairwise((6, 15, 24, 33, 40, 47, 54))]
    try:
        values = [float(text) for text in fields]
    except ValueError:
        values = [math.nan]
    if not all(0 < value < math.inf for value in values) or max(values[3:]) >= 180:
        raise InputError(f"{where}: '{line[6:54].strip()}' are not lengths and angles of a cell; correct CRYST1")


def _frames_of(model: Model, where: str) -> list[Model]:
    """Split a model that numbers its atoms several times, as programs do that omit END.

    Raises:
        InputError: the parts may be frames, or molecules side by side.
    """
    # serial number, name, residue, chain: they repeat where the first one occurs a second time
    names = [text[6:27] for _, text in model.lines]
    if names[0] not in names[1:]:
        return [model]
    n = names.index(names[0], 1)
    if len(set(names[:n])) < n or names != names[:n] * (len(names) // n):
        return [model]
    places = np.array([[float(text[k : k + 8]) for k in COLUMNS] for _, text in model.lines]).reshape(-1, n, 3)
    if np.linalg.norm(places[1:] - places[:-1], axis=2).min() > _NEAR:
        raise InputError(
            f"{where}: line {model.lines[n][0]}: the numbers and names of its first {n} atoms begin again; write END "
            "before it if another frame begins there, or number on if it is one structure"
        )
    return [Model(model.cell, model.scale, model.lines[k : k + n]) for k in range(0, len(names), n)]


_NO_CELL = 1.0
"""Å: length of the formal cell that PDB requires without a crystal."""
_FEW = 6
"""Heavy atoms; smaller molecules without hydrogen are common: CO2, COCl2."""


class _Atom(NamedTuple):
    """Atom with its residue and chain, and its place in the file, in words."""

    atom: gemmi.Atom
    residue: gemmi.Residue
    chain: str
    place: str

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.atom.name} of {self.residue.name} {self.residue.seqid} ({self.place})"


def _atoms(model: gemmi.Model, place: Callable[[gemmi.Atom], str]) -> list[_Atom]:
    return [_Atom(atom, residue, chain.name, place(atom)) for chain in model for residue in chain for atom in residue]


def pdb_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms | InputError]:
    """Yield every model of a PDB file, with its cell and symmetry, or errors in their place.

    Raises:
        InputError: a line cannot be read, or models cannot be told apart.
    """
    for index, model in enumerate(models_of(stream.read(), where, notes)):
        record = f"{where}#{index}"
        try:
            structure, atoms = _read(model)
            yield _frame(_elements(model, atoms, record, notes), structure, record, notes)
        except InputError as error:
            yield InputError(f"{record}: {error}")


def mmcif_frames(items: Items, where: str, index: int, notes: Notes) -> Iterator[Atoms | InputError]:
    """Yield every model of an mmCIF block; ``index`` is that of the first in the file.

    Raises:
        InputError: the block cannot be read.
    """
    line, n = items.line("_atom_site_cartn_x"), len(items.column("_atom_site_cartn_x"))
    places = zip(*(items.column(f"_atom_site_cartn_{axis}", n) for axis in "xyz"), strict=True)
    for k, place in enumerate(places, start=1):
        if not np.isfinite([cif.as_number(value) for value in place]).all():
            raise InputError(f"row {k} of the loop at line {line} has coordinates {', '.join(place)}; correct them")
    ids = items.block.find_values("_atom_site.id")
    if len(ids) != n:
        raise InputError(f"line {line}: the loop of atoms has no column _atom_site.id; number its rows")
    for k in range(len(ids)):
        ids[k] = str(k)
    try:
        structure = gemmi.make_structure_from_block(items.block)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"line {line}: cannot be read as mmCIF: {error}") from error
    models = [_atoms(model, lambda atom: f"row {atom.serial + 1}") for model in structure]
    if (read := sum(map(len, models))) != n:
        raise InputError(f"line {line}: {n} atoms are listed, and {read} of them can be read; correct the loop")
    for k, atoms in enumerate(models):
        record = f"{where}#{index + k}"
        atoms.sort(key=lambda one: one.atom.serial)
        try:
            yield _frame(atoms, structure, record, notes)
        except InputError as error:
            yield InputError(f"{record}: {error}")


def _read(model: Model) -> tuple[gemmi.Structure, list[_Atom]]:
    """Read a model with gemmi, and compare it with its lines, which were checked one by one."""
    begin, n = model.lines[0][0], len(model.lines)
    try:
        structure = gemmi.read_pdb_string(model.text(), split_chain_on_ter=True)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the model that begins in line {begin} cannot be read: {error}") from error
    atoms = _atoms(structure[0], lambda atom: f"line {model.lines[round(atom.b_iso)][0]}") if len(structure) else []
    # gemmi regroups residues; the order of the file is stored in the B factors
    atoms.sort(key=lambda one: one.atom.b_iso)
    if len(atoms) != n:
        raise InputError(f"line {begin}: {n} atoms, and {len(atoms)} of them can be read; correct the file")
    for one, (line, text) in zip(atoms, model.lines, strict=True):
        if max(abs(x - float(text[k : k + 8])) for x, k in zip(one.atom.pos.tolist(), COLUMNS, strict=True)) > 1e-6:
            raise InputError(f"line {line}: coordinates {text[30:54].strip()} cannot be read; correct them")
    return structure, atoms


def _elements(model: Model, atoms: list[_Atom], record: str, notes: Notes) -> list[_Atom]:
    """Infer missing elements from atom names."""
    ambiguous = set()
    for one, (_, text) in zip(atoms, model.lines, strict=True):
        if text[76:78].strip().isalpha():
            continue
        notes.add("elements come from the names of atoms, for columns 77-78 are empty", record)
        guess, letters = one.atom.element.name, re.sub(r"[^A-Za-z]", "", one.atom.name)
        table = gemmi.find_tabulated_residue(one.residue.name)
        if len(guess) == 2 and letters and gemmi.Element(letters[0]).atomic_number:
            if (table.is_amino_acid() or table.is_nucleic_acid()) and guess != "Se":
                one.atom.element = gemmi.Element(letters[0])
            if one.atom.name.upper() != one.residue.name.upper():
                ambiguous.add(f"{one.atom.name} of {one.residue.name} as {one.atom.element.name}")
    if ambiguous:
        notes.add(f"names that may mean two elements are read so: {', '.join(sorted(ambiguous)):.300}", record)
    return atoms


def _frame(atoms: list[_Atom], structure: gemmi.Structure, record: str, notes: Notes) -> Atoms:
    atoms = _one_location(atoms, record, notes)
    for one in atoms:
        if one.atom.element.atomic_number == 0:
            raise InputError(f"{one.name} is of no known element ({one.atom.element.name}); correct or remove it")
    if any(one.atom.element.name == "D" for one in atoms):
        notes.add(DEUTERIUM, record)
    _refuse_missing_hydrogens(atoms)
    if any(0 < one.atom.occ < 0.995 and not one.atom.has_altloc() for one in atoms):
        notes.add("atoms with an occupancy below 1 and no alternative are taken as if they were always there", record)
    frame = _expanded(atoms, structure, record, notes)
    names, site = [one.name for one in atoms], frame.arrays.pop("site")
    remedy = "choose one of several alternatives, or correct the cell or the space group"
    lattice = np.asarray(frame.cell)
    check_contacts(frame.positions, lattice, frame.pbc, frame.numbers, lambda k: names[site[k]], remedy)
    if charge := sum(atoms[k].atom.charge for k in site):
        frame.info["charge"] = charge
    return frame


def _expanded(atoms: list[_Atom], structure: gemmi.Structure, record: str, notes: Notes) -> Atoms:
    """Build the molecule or crystal; an array ``site`` holds each atom's index among the sites."""
    numbers, site = np.array([one.atom.element.atomic_number for one in atoms]), np.arange(len(atoms))
    cell = structure.cell
    if max(cell.a, cell.b, cell.c) <= _NO_CELL:
        frame = Atoms(numbers=numbers, positions=[one.atom.pos.tolist() for one in atoms])
        frame.set_array("site", site)
        return frame
    lattice = np.array(cell.orth.mat.tolist()).T
    symmetry = Symmetry(name=structure.spacegroup_hm)
    if symmetry == Symmetry():
        notes.add(NO_SYMMETRY, record)
    found = symmetry.candidates(lattice)
    if len(found) > 1:
        settings = " or ".join(name for name, _ in found)
        raise InputError(f"the space group may be meant in setting {settings}; write :1 or :2 behind its name")
    fractions = np.array([cell.fractionalize(one.atom.pos).tolist() for one in atoms])
    fractions, site, _ = expand(fractions, found[0][1], lattice, lambda k: atoms[k].name)
    frame = Atoms(numbers=numbers[site], positions=fractions @ lattice, cell=lattice, pbc=True)
    frame.set_array("site", site)
    return frame


def _one_location(atoms: list[_Atom], record: str, notes: Notes) -> list[_Atom]:
    """Keep the location of highest occupancy in each residue, of several such the first."""
    shares: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in atoms:
        if one.atom.has_altloc():
            shares[one.chain, str(one.residue.seqid)][one.atom.altloc] += one.atom.occ
    chosen = {place: min(found, key=lambda letter: (-found[letter], letter)) for place, found in shares.items()}
    if any(len(found) > 1 for found in shares.values()):
        notes.add("of alternate locations the one with the highest occupancy is taken, or the first of them", record)
    return [
        one
        for one in atoms
        if not one.atom.has_altloc() or one.atom.altloc == chosen[one.chain, str(one.residue.seqid)]
    ]


def _refuse_missing_hydrogens(atoms: Sequence[_Atom]) -> None:
    remedy = "add the hydrogens (in most viewers, or with Open Babel: obabel -h), or give the molecule's SMILES"
    numbers = {one.atom.element.atomic_number for one in atoms}
    if 1 not in numbers and len(atoms) >= _FEW and 6 in numbers and {7, 8, 15, 16} & numbers:
        raise InputError(f"{len(atoms)} atoms and not one hydrogen; {remedy}")
    residues = defaultdict(list)
    for one in atoms:
        residues[one.chain, str(one.residue.seqid), one.residue.name].append(one)
    for (_, _, name), residue in residues.items():
        table = gemmi.find_tabulated_residue(name)
        known = table.is_amino_acid() or table.is_nucleic_acid() or table.is_water()
        if known and all(one.atom.element.atomic_number != 1 for one in residue):
            raise InputError(f"{residue[0].name}: its residue has no hydrogen; {remedy}")
