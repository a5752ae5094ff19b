"""Models of PDB and mmCIF files: one location of each atom, elements, charges, and the symmetry of a crystal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

import gemmi
import numpy as np
from ase import Atoms
from gemmi import cif

from molflt.data.cif_items import DEUTERIUM, Items
from molflt.data.extents import check_extents
from molflt.data.notes import Notes
from molflt.data.overlaps import check_contacts
from molflt.data.pdb_records import COLUMNS, Model, models_of
from molflt.data.symmetry import NO_SYMMETRY, Symmetry, expand
from molflt.errors import InputError

_NO_CELL = 1.0
"""Å: where there is no crystal, PDB asks for a cell of this length."""
_FEW = 6
"""Atoms other than hydrogen; smaller molecules without any are common: CO2, COCl2."""


class _Atom(NamedTuple):
    """An atom, where it belongs, and where it stands in its file, in words."""

    atom: gemmi.Atom
    residue: gemmi.Residue
    chain: str
    place: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.atom.name} of {self.residue.name} {self.residue.seqid} ({self.place})"


def _atoms(model: gemmi.Model, place: Callable[[gemmi.Atom], str]) -> list[_Atom]:
    return [_Atom(atom, residue, chain.name, place(atom)) for chain in model for residue in chain for atom in residue]


def pdb_frames(stream: IO[str], where: str, notes: Notes) -> Iterator[Atoms | InputError]:
    """Every model of a PDB file, with its cell and its symmetry where it is a crystal.

    Errors stand in the places of the models that they concern.

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
    """Every model of a block of an mmCIF file, the first of which has an index among the structures of the file.

    Errors stand in the places of the models that they concern.

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
    """What gemmi reads of a model, compared with its lines, which were looked at one by one."""
    begin, n = model.lines[0][0], len(model.lines)
    try:
        structure = gemmi.read_pdb_string(model.text(), split_chain_on_ter=True)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the model that begins in line {begin} cannot be read: {error}") from error
    atoms = _atoms(structure[0], lambda atom: f"line {model.lines[round(atom.b_iso)][0]}") if len(structure) else []
    # gemmi gathers residues; the order of the file came along as B factors
    atoms.sort(key=lambda one: one.atom.b_iso)
    if len(atoms) != n:
        raise InputError(f"line {begin}: {n} atoms, and {len(atoms)} of them can be read; correct the file")
    for one, (line, text) in zip(atoms, model.lines, strict=True):
        if max(abs(x - float(text[k : k + 8])) for x, k in zip(one.atom.pos.tolist(), COLUMNS, strict=True)) > 1e-6:
            raise InputError(f"line {line}: coordinates {text[30:54].strip()} cannot be read; correct them")
    return structure, atoms


def _elements(model: Model, atoms: list[_Atom], record: str, notes: Notes) -> list[_Atom]:
    """Mend what is made of names of atoms where the columns of the elements are empty."""
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
    lattice, periodic = np.asarray(frame.cell), np.asarray(frame.pbc)
    names, site = [one.name for one in atoms], frame.arrays.pop("site")
    check_contacts(
        frame.positions,
        lattice,
        periodic,
        frame.numbers,
        check_extents(frame.positions, lattice, periodic),
        lambda k: names[site[k]],
        "choose one of several alternatives, or correct the cell or the space group",
    )
    if charge := sum(atoms[k].atom.charge for k in site):
        frame.info["charge"] = charge
    return frame


def _expanded(atoms: list[_Atom], structure: gemmi.Structure, record: str, notes: Notes) -> Atoms:
    """The molecule or the crystal; an array ``site`` has the place of each of its atoms among the given ones."""
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
    """Of each residue with alternate locations the one of the highest occupancy, of several such the first."""
    shares: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in atoms:
        if one.atom.has_altloc():
            shares[one.chain, str(one.residue.seqid)][one.atom.altloc] += one.atom.occ
    chosen = {place: min(found, key=lambda letter: (-found[letter], letter)) for place, found in shares.items()}
    if any(len(found) > 1 for found in shares.values()):
        notes.add("of alternate locations the one with the highest occupancy is taken, or the first of such", record)
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
