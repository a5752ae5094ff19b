"""Molecules with positions from SDF, MOL and mol2 files, with a check of their lines."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ase.data import atomic_numbers
from rdkit import Chem
from torch_geometric.data import Data

from molflt.data.dataset import ListDataset
from molflt.data.rdkit import because, captured, from_mol, named
from molflt.data.reading import DEFAULT, ReadOptions
from molflt.data.text import (
    BYTE_ORDER_MARK,
    Line,
    Notes,
    bare_suffix,
    content,
    hydrogen_of,
    numbered,
    numbers,
    read_text,
    refuse,
)
from molflt.errors import InputError, noting

_END = b"$$$$"
_FIELD = re.compile(rb">.*?<(.+)>")
_PROPERTIES = (b"M  ", b"A  ", b"V  ", b"G  ", b"S  ")
_WITH_TEXT = (b"A  ", b"G  ")
"""Properties followed by a line of text."""
_V3000_COUNTS = re.compile(rb"M  V30 COUNTS +(\d+)")


def read_sdf(path: str | os.PathLike[str], options: ReadOptions = DEFAULT) -> ListDataset:
    """Read every molecule of an SDF, MOL or mol2 file, with its positions.

    Structures are named ``PATH#INDEX (TITLE)``.

    Raises:
        InputError: no such file, no molecules, or a molecule that cannot be read.
    """
    file = Path(path)
    structures: list[Data] = []
    bad: dict[int, InputError] = {}
    notes = Notes(str(file))
    with captured():
        for index, record in enumerate(_records_of(file)):
            name = f"{file}#{index}"
            info: dict[str, Any] = {}
            # Errors name the record if it has a name.
            with noting(bad, index, name, info):
                mol = record.mol(name, notes, options)
                if mol is None:
                    with captured() as said:
                        record.mol(name, notes, options)
                        why = because(said())
                    raise InputError(f"{name}: not a readable molecule block, from line {record.first_line} on{why}")
                info |= _properties(mol)
                with noting(bad, index, named(name, info.get("name", "")), info):
                    options.refuse_stated(name, info, "property {!r}")
                    structure = from_mol(mol, name, options)
                    structure.name, structure.info = named(name, info.get("name", "")), info
                    structures.append(structure)
    notes.give()
    if not structures and not bad:
        raise InputError(f"{file}: holds no molecules")
    return ListDataset.read(structures, bad, options.on_bad, str(file))


def _records_of(file: Path) -> Iterator[Mol2 | _Record]:
    if bare_suffix(file) == ".mol2":
        yield from mol2_blocks(read_text(file), str(file))
    else:
        yield from _records(
            content(file).replace(BYTE_ORDER_MARK.encode(), b""), must_end=bare_suffix(file) != ".mol"
        )


def _properties(mol: Chem.Mol) -> dict[str, Any]:
    """Title and properties of a molecule in an SDF file; those that are not text are ignored."""
    found: dict[str, Any] = {}
    # from_mol reports errors in properties.
    with suppress(UnicodeDecodeError, RuntimeError):
        if mol.HasProp("_Name") and (title := mol.GetProp("_Name").strip()):
            found["name"] = title
        found |= mol.GetPropsAsDict(includePrivate=False, includeComputed=False)
    return {key: value for key, value in found.items() if isinstance(value, str | int | float)}


@dataclass(frozen=True)
class _Record:
    """Lines of one record of an SDF file, without the final separator."""

    lines: list[bytes]
    first_line: int
    problem: str

    def mol(self, name: str, notes: Notes, options: ReadOptions) -> Chem.Mol | None:
        """Return the molecule, or None if RDKit cannot read it.

        Raises:
            InputError: an empty or incomplete record; lines that belong to nothing; duplicate fields; or atoms or
                fields that RDKit ignores.
        """
        if self.problem:
            self._refuse(name, len(self.lines) - 1, self.problem)
        if not any(line.strip() for line in self.lines):
            self._refuse(name, 0, "an empty record; remove it")
        stripped = [*map(bytes.rstrip, self.lines)]
        if b"M  END" not in stripped:
            self._refuse(name, len(self.lines) - 1, "the record has no line 'M  END'; it is cut short")
        end = stripped.index(b"M  END")
        n_atoms = self._announced(name, end)
        fields = self._fields(name, end + 1, notes)
        block = b"\n".join([*self.lines, b"$$$$", b""])
        mol = next(Chem.ForwardSDMolSupplier(io.BytesIO(block), sanitize=False, removeHs=False), None)
        if mol is None:
            return None
        if n_atoms is not None and mol.GetNumAtoms() != n_atoms:
            self._refuse(name, 3, f"announces {n_atoms} atoms, and RDKit reads {mol.GetNumAtoms()}")
        # from_mol reports errors in these.
        with suppress(UnicodeDecodeError, RuntimeError):
            if lost := fields - set(mol.GetPropNames(includePrivate=True)):
                self._refuse(name, end + 1, f"RDKit passes over the field '{min(lost):.40}'")
        return mol

    def _refuse(self, name: str, k: int, why: str) -> NoReturn:
        raise InputError(f"{name}: line {self.first_line + max(k, 0)}: {why}")

    def _announced(self, name: str, end: int) -> int | None:
        """Number of atoms that the record states, after a check of its property lines."""
        counts = self.lines[3] if end > 3 else b""
        if b"V3000" in counts:
            found = next(filter(None, map(_V3000_COUNTS.match, self.lines[:end])), None)
            return None if found is None else int(found[1])
        if not counts[:3].strip().isdigit() or not counts[3:6].strip().isdigit():
            self._refuse(name, 3, "expected the numbers of atoms and bonds, three columns each")
        n_atoms, n_bonds = int(counts[:3]), int(counts[3:6])
        k = 4 + n_atoms + n_bonds
        if k > end:
            self._refuse(name, end, f"{n_atoms} atoms and {n_bonds} bonds are announced, and the block ends before")
        while k < end:
            line = self.lines[k]
            if line.strip() and not line.startswith(_PROPERTIES):
                self._refuse(name, k, f"more lines than the {n_atoms} atoms and {n_bonds} bonds that are announced")
            k += 2 if line.startswith(_WITH_TEXT) else 1
        return n_atoms

    def _fields(self, name: str, start: int, notes: Notes) -> set[str]:
        """Names of the data fields after the molecule."""
        found: set[str] = set()
        within = False
        for k in range(start, len(self.lines)):
            line = self.lines[k]
            if not line.strip():
                within = False
            elif line.startswith(b">") and (not within or _FIELD.match(line)):
                if within:
                    self._refuse(name, k, "no blank line before this field")
                within = True
                if (match := _FIELD.match(line)) is None:
                    self._refuse(name, k, "a field without a name in <>")
                field = match[1].decode("utf-8", "replace")
                if field in found:
                    self._refuse(name, k, f"a second field '{field:.40}'; leave one")
                if field.startswith("_") and not field.startswith("__"):
                    notes.add("fields with names that begin with '_' are not read")
                found.add(field)
            elif not within:
                self._refuse(name, k, "expected a field, > <NAME>, or the end of the record, $$$$")
        return found


def _records(raw: bytes, must_end: bool) -> Iterator[_Record]:
    """Yield records of an SDF file; text after the last ``$$$$`` is one unless it is blank."""
    lines = raw.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    start = 0
    for k, line in enumerate(lines):
        if line.startswith(_END):
            yield _Record(lines[start:k], start + 1, "")
            start = k + 1
    if any(line.strip() for line in lines[start:]):
        cut = "ends without $$$$: cut short; a file of one molecule without that line is to be named .mol"
        yield _Record(lines[start:], start + 1, cut if must_end or start else "")


_MOL2 = re.compile(r"^@<TRIPOS>MOLECULE", re.MULTILINE)
_SECTION = "@<TRIPOS>"
_GAFF = re.compile(r"(cl|br|[fi])|([chnops])[a-z0-9+]?")
"""Types of GAFF and GAFF2: lower case, the first letter is the element except for halogens; Sybyl's types begin
with the element in upper case."""
_TYPE = 5
"""Index of the atom type among the words of an atom: number, name, x, y, z, type, ..."""


@dataclass(frozen=True)
class Mol2:
    """The text of one molecule of a mol2 file."""

    text: str
    first_line: int

    def mol(self, name: str, notes: Notes, options: ReadOptions) -> Chem.Mol | None:
        """Return the molecule, or None if RDKit cannot read it.

        Raises:
            InputError: more or fewer atoms or bonds than announced, an unknown atom type, or partial charges of an
                ion while the bonds have another charge.
        """
        lines = [Line(self.first_line + line.number - 1, line.words) for line in numbered(self.text.split("\n"), "#")]
        sections: dict[str, list[Line]] = {}
        for line in lines:
            if line.words[0].startswith(_SECTION):
                key = line.words[0].removeprefix(_SECTION)
                if key in sections and key in ("ATOM", "BOND"):
                    refuse(name, [line], f"a second section {key}")
                section = sections.setdefault(key, [])
            else:
                section.append(line)
        # The name may be blank.
        head = self.text.split("\n")[2:3]
        counts = head[0].split() if head else []
        atoms = sections.get("ATOM", [])
        for what, n, rows in zip(("atoms", "bonds"), counts, (atoms, sections.get("BOND", [])), strict=False):
            if not n.isdigit() or len(rows) != int(n):
                place = Line(self.first_line + 2, [])
                refuse(name, [place], f"announces {n:.20} {what}, and there are {len(rows)}")
        if not counts:
            refuse(name, lines[:1], "the number of atoms is not two lines below")
        text = "\n".join(self._typed(lines, atoms, name, notes))
        # Even if RDKit cannot interpret the bonds, positions and elements are right.
        mol = Chem.MolFromMol2Block(text, removeHs=False) or Chem.MolFromMol2Block(
            text, sanitize=False, removeHs=False
        )
        if mol is None:
            return None
        if mol.GetNumAtoms() != len(atoms):
            raise InputError(f"{name}: has {len(atoms)} atoms, of which RDKit reads {mol.GetNumAtoms()}")
        partial = numbers(row.words[8] for row in atoms if len(row.words) > 8)
        total, formal = sum(partial or []), Chem.GetFormalCharge(mol)
        if round(total) not in (0, formal) and not options.allow_charged:
            raise InputError(
                f"{name}: its partial charges add up to {total:+.2f} e, and its bonds and atom types to {formal:+d} "
                "e; correct them, or take it as if it were neutral with --allow-charged"
            )
        return mol

    def _typed(self, lines: Sequence[Line], atoms: Sequence[Line], name: str, notes: Notes) -> Iterator[str]:
        """Yield the lines with types that RDKit reads."""
        types = {}
        for row in atoms:
            if len(row.words) <= _TYPE:
                refuse(name, [row], "expected an atom: its number, name, three coordinates and type")
            kind = row.words[_TYPE]
            if gaff := _GAFF.fullmatch(kind):
                notes.add("atom types of GAFF are read as their elements, as c3 for carbon")
                types[row.number] = gaff[0][0].upper() + (gaff[0][1] if gaff[1] and len(gaff[1]) > 1 else "")
                continue
            element = hydrogen_of(kind.split(".")[0], notes)
            if element not in atomic_numbers:
                refuse(
                    name,
                    [row],
                    f"'{kind:.20}' is not an atom type of Sybyl or GAFF; give Sybyl's types (with Open Babel: obabel "
                    "in.mol2 -O out.mol2) or an SDF",
                )
            if element != kind.split(".")[0]:
                types[row.number] = element
        raw = self.text.split("\n")
        for number, line in enumerate(raw, self.first_line):
            words = line.split()
            yield line if number not in types else " ".join([*words[:_TYPE], types[number], *words[_TYPE + 1 :]])


def mol2_blocks(text: str, where: str) -> Iterator[Mol2]:
    """Yield every molecule of a mol2 file.

    Raises:
        InputError: there is text before the first.
    """
    starts = [found.start() for found in _MOL2.finditer(text)]
    if before := numbered(text[: starts[0] if starts else None].split("\n"), "#"):
        refuse(where, before, "expected @<TRIPOS>MOLECULE")
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield Mol2(text[start:end], text.count("\n", 0, start) + 1)
